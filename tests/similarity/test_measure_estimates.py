"""Curves of the measures beside CKA: what their errors are, how far they are right, and where there are none."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.context import settings
from layerprobe.errors import DataError
from layerprobe.similarity.inference import MIN_UNITS
from layerprobe.similarity.maps import PARTS, MapEstimate, _without_parts, measure_layers
from layerprobe.similarity.measures import SVCCA
from layerprobe.similarity.values import CurveUncertainty, Normalize
from tests.similarity.beside_cka import BESIDE_CKA, NEIGHBOUR_MEASURES, measure_map, measured

Array = NDArray[np.float64]
measures = pytest.mark.parametrize("name", BESIDE_CKA)


def pair(n: int, *, noise: float = 1.0, d: int = 4, layers: int = 2, seed: int = 0) -> tuple[Array, Array]:
    """(layers, n, d) of two related models."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(layers, n, d))
    return X, X + noise * rng.normal(size=X.shape)


def width(name: str) -> int:
    """Features with which a measure is defined on four samples."""
    return 1 if name == "svcca" else 4


def uncertainty(estimate: MapEstimate) -> CurveUncertainty:
    found = estimate.curve("same-index").uncertainty
    assert found is not None
    return found


@measures
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
@pytest.mark.parametrize("n", [43, 8])
def test_the_covariance_is_that_of_values_without_one_group(name: str, normalize: Normalize, n: int) -> None:
    X, Y = pair(n, d=width(name))
    measure = measured(name, normalize, neighbours=min(5, n - 3))
    n_groups = min(n, PARTS)
    groups = np.array_split(np.random.default_rng(0).permutation(n), n_groups)
    thetas = np.array(
        [
            [measure_map([np.delete(A, g, 0)], [np.delete(B, g, 0)], measure)[0][0] for A, B in zip(X, Y, strict=True)]
            for g in groups
        ]
    )
    expected = (n_groups - 1) ** 2 / n_groups * np.cov(thetas.T)
    found = uncertainty(measure_layers(X, Y, measure))
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-8, atol=1e-15)


def pairs_of_layers(n: int, repeats: int) -> Iterator[tuple[Array, Array]]:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 5))
    for _ in range(repeats):
        X = rng.normal(size=(n, 5))
        yield X, X @ mixing + 2 * rng.normal(size=(n, 5))


@pytest.mark.slow
@measures
def test_standard_errors_are_the_spread_over_samples(name: str) -> None:
    """Of measures by neighbours they are too large, as the docstring says."""
    found = [measure_layers([X], [Y], measured(name)) for X, Y in pairs_of_layers(150, 80)]
    spread = np.std([estimate.map.values[0][0] for estimate in found], ddof=1)
    variances = [uncertainty(estimate).covariance[0][0] for estimate in found]
    lowest, highest = (1.2, 2.0) if name in NEIGHBOUR_MEASURES else (0.75, 1.35)
    assert lowest < np.sqrt(np.mean(variances)) / spread < highest


@pytest.mark.parametrize("n", [5, 9, 10, 30])
def test_intervals_and_tests_have_the_degrees_of_freedom_of_their_groups(n: int) -> None:
    X, Y = pair(n, noise=2)
    estimate = measure_layers(X, Y, measured("procrustes"))
    curve = estimate.curve("same-index")
    found, freedom = uncertainty(estimate), min(n, PARTS) - 1
    half = stats.t(freedom).isf(0.025) * np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(found.lower, np.maximum(np.array(curve.values) - half, -1))
    np.testing.assert_allclose(found.upper, np.minimum(np.array(curve.values) + half, 1))
    (step,) = estimate.differences(estimate, [((0, 0), (1, 1))])
    first, second = (estimate.spread((i, i)) for i in (0, 1))
    assert first is not None
    assert second is not None
    error = np.sqrt(freedom * np.var(second.influences - first.influences))
    np.testing.assert_allclose(step.interval[1] - step.value, stats.t(freedom).isf(0.025) * error)
    np.testing.assert_allclose(step.p_value, 2 * stats.t(freedom).sf(abs(step.value) / error))


@measures
@pytest.mark.parametrize("n", [5, 6, 12])
def test_ends_are_in_the_range_of_the_measure_and_around_the_values(name: str, n: int) -> None:
    X, Y = pair(n, noise=0.2, d=width(name))
    estimate = measure_layers(X, np.concatenate([Y[:1], X[1:]]), measured(name, neighbours=2))
    lowest, highest = measured(name).range
    values, found = estimate.curve("same-index").values, uncertainty(estimate)
    for ends in (found.lower, found.band_lower):
        assert all(lowest - 1e-12 <= end <= value for end, value in zip(ends, values, strict=True))
    for ends in (found.upper, found.band_upper):
        assert all(value <= end <= highest + 1e-12 for end, value in zip(ends, values, strict=True))


def test_an_end_beyond_the_range_is_cut_and_the_value_is_not() -> None:
    X, Y = pair(12, noise=0.3)
    uncertain = uncertainty(measure_layers(X, Y, measured("svcca")))
    assert 1.0 in uncertain.upper


def assert_no_errors(estimate: MapEstimate) -> None:
    curve = estimate.curve("same-index")
    assert curve.uncertainty is None
    assert estimate.differences(estimate, [((0, 0), (1, 1))]) == ()


@measures
def test_four_texts_have_values_and_no_intervals(name: str) -> None:
    X, Y = pair(4, d=width(name))
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=3)))


def test_no_intervals_were_asked_for() -> None:
    assert_no_errors(measure_layers(*pair(30), measured("procrustes"), level=None))


@pytest.mark.parametrize("n_groups", [4, 5, 9, 10])
def test_groups_are_the_units(n_groups: int) -> None:
    X, Y = pair(60)
    groups = np.random.default_rng(1).permutation(np.arange(60) % n_groups)
    estimate = measure_layers(X, Y, measured("procrustes"), groups=7 * groups)
    if n_groups < MIN_UNITS:
        assert_no_errors(estimate)
        return
    remaining = _without_parts(groups, measured("procrustes"))
    gone = [set(groups[~rows]) for rows in remaining]
    assert sorted(int(group) for left in gone for group in left) == list(range(n_groups))
    assert all(set(groups[rows]).isdisjoint(left) for rows, left in zip(remaining, gone, strict=True))
    assert uncertainty(estimate)


def test_there_is_a_document_for_every_text() -> None:
    with pytest.raises(DataError, match="expected a group for each of 30 samples, got an array of shape"):
        measure_layers(*pair(30), measured("procrustes"), groups=np.arange(29))


def test_one_document_that_holds_most_texts_leaves_no_intervals() -> None:
    groups = np.array([0] * 26 + [1, 2, 3, 4])
    assert_no_errors(measure_layers(*pair(30), measured("mutual-knn"), groups=groups))
    assert uncertainty(measure_layers(*pair(30), measured("procrustes"), groups=groups))


@pytest.mark.parametrize("name", NEIGHBOUR_MEASURES)
@pytest.mark.parametrize(("n", "most"), [(12, 8), (150, 133)])
def test_neighbours_that_are_too_many_without_a_group_leave_no_intervals(name: str, n: int, most: int) -> None:
    """The largest group of 12 texts has 2, so that 10 stay: with 9 neighbours all would be neighbours."""
    X, Y = pair(n)
    assert max(uncertainty(measure_layers(X, Y, measured(name, neighbours=most))).covariance[0]) > 0
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=most + 1)))
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=n - 1)))


@pytest.mark.parametrize("name", NEIGHBOUR_MEASURES)
def test_neighbours_beyond_the_other_texts_are_refused(name: str) -> None:
    layers = np.random.default_rng(0).normal(size=(1, 12, 3))
    with pytest.raises(DataError, match="neighbours is 12, expected 1 to 11, the other samples of layer 0 of the ref"):
        measure_layers(layers, layers, measured(name, neighbours=12))


def test_canonical_correlations_that_are_one_without_a_group_leave_no_intervals() -> None:
    """Of 30 texts two layers keep 14 + 14 dimensions, of 27 they would keep more than the 26 there are."""
    X, Y = np.random.default_rng(0).normal(size=(2, 2, 30, 14))
    estimate = measure_layers(X, Y, SVCCA(variance=1))
    assert estimate.map.values[0][0] < 1
    assert_no_errors(estimate)


def test_a_model_without_layers_is_refused() -> None:
    X, _ = pair(30)
    with pytest.raises(DataError, match="bert has no layers, expected at least one"):
        measure_layers([], X, measured("procrustes"), model_name="bert")
    with pytest.raises(DataError, match="bert has no layers, expected at least one"):
        measure_layers(X, [], measured("procrustes"), reference_name="bert")


def test_all_that_is_done_is_told() -> None:
    reports: list[tuple[str, int, int]] = []
    with settings(progress=lambda *report: reports.append(report)):
        measure_layers(*pair(30), measured("procrustes")).curve("same-index")
    assert reports[-1] == ("estimating errors", 4, 4)
    reports.clear()
    with settings(progress=lambda *report: reports.append(report)):
        measure_layers(*pair(4), measured("procrustes"))
    assert reports[-1] == ("comparing layers", 1, 1)


@pytest.mark.parametrize(("n", "parts"), [(43, 10), (7, 7)])
def test_every_sample_is_left_out_once(n: int, parts: int) -> None:
    remaining = np.array(_without_parts(np.arange(n), measured("procrustes")))
    assert remaining.shape == (parts, n)
    np.testing.assert_array_equal((~remaining).sum(axis=0), 1)
    assert np.ptp(remaining.sum(axis=1)) <= 1
