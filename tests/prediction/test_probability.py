"""How certain a rule is: known errors, a second formula, and coverage."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from layerprobe.prediction.rule import decline_interval, redraw
from layerprobe.prediction.rules import plateau_rule
from layerprobe.prediction.values import DropPrediction
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.similarity.values import SimilarityCurve

from .curves import equicorrelated, matrix, uncertain

ELECTRA = (0.67, 0.41, 0.40, 0.39, 0.37, 0.35, 0.39, 0.38, 0.22)
EDGE = (*[0.9] * 12, 0.85)
"""The last layer lies at the threshold exactly: 0.05 below a plateau without a wobble."""


def redrawn(curve: SimilarityCurve, **options: int) -> DropPrediction:
    prediction = plateau_rule(curve, **options)  # type: ignore[arg-type]
    assert prediction.flagged_in
    return prediction


# ---- what known errors give ---------------------------------------------------------------------------


def test_a_curve_at_the_threshold_is_flagged_in_half_of_the_redraws() -> None:
    """Only the last layer varies: with the others it would be the wobble that decides."""
    covariance = np.zeros((13, 13))
    covariance[12, 12] = 0.01**2
    assert redrawn(uncertain(EDGE, covariance)).flagged_in[-1] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("scale", [0.01, 0.03])
def test_the_probability_is_that_of_the_normal_distribution(scale: float) -> None:
    """The drop is 0.05 beyond the threshold in the one layer that varies."""
    covariance = np.zeros((13, 13))
    covariance[12, 12] = scale**2
    shares = redrawn(uncertain([*[0.9] * 12, 0.80], covariance))
    assert shares.flagged_in[-1] == pytest.approx(stats.norm.cdf(0.05 / scale), abs=0.01)


def test_errors_that_all_layers_share_change_nothing() -> None:
    """The whole curve moves up and down; the rule does not know its level."""
    assert redrawn(uncertain(ELECTRA, equicorrelated(9, 0.3, 1.0))).flagged_in[-1] == 1.0


@given(st.lists(st.floats(-0.2, 1.0), min_size=4, max_size=25))
def test_without_errors_every_redraw_is_the_curve(values: list[float]) -> None:
    prediction = plateau_rule(uncertain(values, np.zeros((len(values), len(values)))), draws=10)
    assert prediction.flagged_in == tuple(float(layer in prediction.drop_layers) for layer in range(len(values)))
    assert prediction.recommended_in == tuple(
        float(layer == prediction.recommended_layer) for layer in range(len(values))
    )
    assert prediction.flagged_in[-1] == float(prediction.drops)
    assert prediction.evidence is not None
    assert prediction.evidence.decline_interval == pytest.approx((prediction.evidence.decline,) * 2, abs=1e-12)


# ---- a second formula ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [4, 7, 13, 25])
def test_counting_the_predictions_of_single_redraws_gives_the_same(n_layers: int) -> None:
    rng = np.random.default_rng(n_layers)
    root = rng.normal(size=(n_layers, n_layers)) * 0.03
    curve = uncertain(np.linspace(0.8, 0.6, n_layers) - 0.2 * (np.arange(n_layers) > 0.7 * n_layers), root @ root.T)
    shares = redrawn(curve, draws=300, seed=5)
    drawn = redraw(curve.values, matrix(root @ root.T), draws=300, seed=5)
    single = [plateau_rule(without_intervals(curve, values)) for values in drawn.tolist()]
    for layer in range(n_layers):
        assert shares.flagged_in[layer] == np.mean([layer in one.drop_layers for one in single])
        assert shares.recommended_in[layer] == np.mean([one.recommended_layer == layer for one in single])
    assert shares.flagged_in[-1] == np.mean([one.drops for one in single])
    assert 0 < shares.flagged_in[-1] < 1


def without_intervals(curve: SimilarityCurve, values: list[float]) -> SimilarityCurve:
    return dataclasses.replace(curve, values=tuple(values), uncertainty=None)


def test_redraws_have_the_mean_and_covariance_of_the_curve() -> None:
    covariance = equicorrelated(9, 0.02, 0.7)
    drawn = redraw(ELECTRA, matrix(covariance), draws=50_000)
    np.testing.assert_allclose(drawn.mean(axis=0), ELECTRA, atol=4e-4)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=1.5e-5)


def test_layers_that_are_copies_of_each_other_are_redrawn_alike() -> None:
    """Their covariance has no Cholesky factor."""
    drawn = redraw([0.5] * 4, matrix(equicorrelated(4, 0.1, 1.0)), draws=100)
    np.testing.assert_allclose(drawn, drawn[:, :1] * np.ones(4), atol=1e-7)


# ---- the interval of the decline ----------------------------------------------------------------------


def coverage(truth: Sequence[float], covariance: np.ndarray, level: float) -> float:
    """Return the share of 1500 curves around the truth whose interval holds the true decline."""
    decline = float(np.median(truth[:3])) - truth[3]
    covered = []
    for values in np.random.default_rng(0).multivariate_normal(truth, covariance, 1500):
        drawn = redraw(values.tolist(), matrix(covariance), draws=500)
        low, high = decline_interval(drawn, (0, 1, 2), level=level)
        covered.append(low <= decline <= high)
    return float(np.mean(covered))


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_interval_of_the_decline_covers_the_true_one(level: float, correlation: float) -> None:
    covariance = equicorrelated(4, 0.02, correlation)
    assert coverage((0.5, 0.6, 0.7, 0.4), covariance, level) == pytest.approx(level, abs=0.025)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_interval_is_a_little_wide_where_the_plateau_is_level(level: float, correlation: float) -> None:
    """The median of three equal layers varies less than each of them; redraws spread around unequal ones."""
    covered = coverage((0.6, 0.6, 0.6, 0.4), equicorrelated(4, 0.02, correlation), level)
    assert level - 0.01 < covered < level + 0.06


# ---- what is kept, refused and said -------------------------------------------------------------------


def test_the_observed_curve_alone_decides_what_is_flagged() -> None:
    curve = uncertain(ELECTRA, equicorrelated(9, 0.2))
    uncertainly, surely = plateau_rule(curve), plateau_rule(dataclasses.replace(curve, uncertainty=None))
    assert uncertainly.drop_layers == surely.drop_layers == (8,)
    assert uncertainly.evidence is not None
    assert dataclasses.replace(uncertainly.evidence, decline_interval=None, level=None) == surely.evidence
    assert surely.flagged_in == ()


def test_resampling_is_a_fact_and_not_how_certain_it_is() -> None:
    predicted = plateau_rule(uncertain(ELECTRA, equicorrelated(9, 0.01, 0.5)))
    fall = predicted.facts["fall"]
    assert predicted.evidence is not None
    assert (fall.value, fall.interval, fall.level) == (
        predicted.evidence.decline,
        predicted.evidence.decline_interval,
        0.95,
    )
    assert predicted.facts["same"].value == predicted.same
    assert (">99 %", "of bootstrap samples of the texts give the same layer") in words.tiles(predicted.conclusion)
    assert (predicted.verdict, "99 %" in words.certainty(predicted.conclusion)) == (Verdict.UNDECIDED, False)
    read = dataclasses.replace(predicted, n_texts=(128, 2552))
    assert ("128", "texts read of 2,552") in words.tiles(read.conclusion)
