"""Means of layers and their differences over seeds and items: against scipy, by hand, and what they leave out."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from layerprobe.finetuning.outcomes import NO_ITEMS, RunItems, difference, outcomes
from layerprobe.finetuning.values import FineTuningRun, Protocol, RunKey
from layerprobe.interval import Interval
from layerprobe.metrics.names import bounded
from layerprobe.stats.crossed import Links, crossed
from layerprobe.stats.values import seed_scores

SCORES = st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=6)
EARLIER, LAST = (80.0, 80.1, 79.9), (78.0, 78.2, 77.9)


def run_of(layer: int, seed: int, test: float, validation: float = 80.0) -> FineTuningRun:
    return FineTuningRun(
        layer=layer,
        seed=seed,
        protocol=Protocol(),
        parameters=1000 * (layer + 1),
        best_epoch=1,
        primary="spearman",
        validation={"spearman": validation, "pearson": validation},
        test={"spearman": test, "pearson": test},
        epochs=(),
        seconds=1.0,
        peak_memory=1,
    )


def runs_at(layer: int, scores: Sequence[float]) -> list[FineTuningRun]:
    return [run_of(layer, seed, score) for seed, score in enumerate(scores)]


def compared(
    earlier: Sequence[float], last: Sequence[float], items: RunItems = NO_ITEMS, level: float = 0.95
) -> Interval | None:
    """By how much layer 4 scores more than layer 6."""
    return difference(runs_at(4, earlier), runs_at(6, last), (items, items), level=level)


def items_of(n: int, spread: float, *, runs: int = 3, links: Links | None = None) -> RunItems:
    """Influences of n pairs, as large as `spread`, on runs at layers 4 and 6, most of them common to the seeds."""
    rng = np.random.default_rng(0)
    common = {layer: rng.normal(size=n) for layer in (4, 6)}
    influences: dict[RunKey, Any] = {}
    for layer, seed in itertools.product((4, 6), range(runs)):
        of_seed = common[layer] + 0.3 * rng.normal(size=n)
        influences[(layer, ()), seed] = spread * (of_seed - of_seed.mean())
    return RunItems(unit="pair", influences={"test": influences, "validation": influences}, links={"test": links})


# ---- differences --------------------------------------------------------------------------------------


@given(SCORES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_over_seeds_is_scipys(scores: list[tuple[float, float]], level: float) -> None:
    earlier, last = zip(*scores, strict=True)
    difference = compared(earlier, last, level=level)
    assert difference is not None
    assert difference.value == pytest.approx(np.mean(earlier) - np.mean(last), abs=1e-9)
    if np.ptp(np.subtract(earlier, last)) > 1e-6:
        expected = stats.ttest_rel(earlier, last).confidence_interval(level)
        ends = np.clip((expected.low, expected.high), -200, 200)  # which no two correlations differ by more than
        np.testing.assert_allclose(difference.interval, ends, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        ((2.0, 2.1, 1.9), "confirmed"),
        ((0.10, 0.11, 0.12), "confirmed"),
        ((-2.0, -2.1, -1.9), "refuted"),
        ((3.0, 0.0, 1.0), "undecided"),
        ((0.0, 0.0, 0.0), "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(effects: Sequence[float], verdict: str) -> None:
    last = (80.0, 79.0, 81.5)
    difference = compared([score + effect for score, effect in zip(last, effects, strict=True)], last)
    assert difference is not None
    assert difference.verdict == verdict


def test_a_single_seed_without_items_has_no_error() -> None:
    assert compared([90.0], [10.0]) is None


def test_the_difference_carries_the_error_of_the_test_items() -> None:
    items = items_of(70, 20.0)
    difference, alone = compared(EARLIER, LAST, items), compared(EARLIER, LAST)
    psi = items.influences["test"]
    expected = crossed(
        np.subtract(EARLIER, LAST).tolist(),
        np.stack([psi[(4, ()), seed] - psi[(6, ()), seed] for seed in range(3)]),
        unit="pair",
        metric="spearman",
    )
    assert difference == expected
    assert alone is not None
    assert difference is not None
    assert (alone.verdict, difference.verdict) == ("confirmed", "undecided")


@pytest.mark.parametrize("n", [70, 7000])
def test_equal_outputs_are_known_to_one_item(n: int) -> None:
    equal: dict[RunKey, Any] = {((layer, ()), seed): np.zeros(n) for layer in range(7) for seed in range(3)}
    difference = compared(
        (80.0,) * 3, (80.0,) * 3, RunItems(unit="pair", influences={"test": equal, "validation": equal})
    )
    assert difference is not None
    assert difference.standard_error == pytest.approx(100 / n)
    assert difference.interval[0] < 0 < difference.interval[1]


def test_where_one_run_has_no_outputs_the_interval_is_over_seeds_alone() -> None:
    one_text = Links(sides=(np.zeros(9, dtype=int),))
    alone = compared(EARLIER, LAST)
    assert alone is not None
    for items in (items_of(70, 20.0, runs=2), items_of(1, 1.0), items_of(9, 1.0, links=one_text)):
        difference = compared(EARLIER, LAST, items)
        assert difference is not None
        assert (difference.interval, difference.items_error) == (alone.interval, None)


# ---- means of layers ----------------------------------------------------------------------------------


def test_outcomes_are_sorted_by_layer_and_seed() -> None:
    scores = {(6, 1): 61.0, (4, 0): 40.0, (6, 0): 60.0, (4, 1): 41.5, (5, 7): 50.0}
    difference = outcomes([run_of(layer, seed, score, score + 1) for (layer, seed), score in scores.items()])
    assert [result.layer for result in difference] == [4, 5, 6]
    assert [result.seeds for result in difference] == [(0, 1), (7,), (0, 1)]
    assert difference[0].scores == difference[0].test["spearman"] == (40.0, 41.5)
    assert difference[0].validation["spearman"] == (41.0, 42.5)
    assert difference[0].parameters == 5000
    assert difference[0].mean == pytest.approx(40.75)
    assert difference[0].std == pytest.approx(np.std([40.0, 41.5], ddof=1))
    assert difference[0].interval == pytest.approx(stats.t.interval(0.95, 1, 40.75, 0.75))
    assert (difference[1].interval, difference[1].std) == (None, None)


def test_the_best_seed_is_the_first_of_the_best_on_validation() -> None:
    (of,) = outcomes([run_of(2, 3, 77.0, 80.0), run_of(2, 5, 71.0, 84.0), run_of(2, 8, 79.0, 84.0)])
    assert (of.best_seed, of.best_seed_score) == (5, 71.0)


def test_intervals_stay_inside_what_the_metric_can_be() -> None:
    perfect, low = (100.0, 100.0, 99.0), (-100.0, 90.0, 80.0)
    for mean in outcomes([*runs_at(4, perfect), *runs_at(6, low)], items_of(70, 60.0)):
        assert mean.error is not None
        assert -100 <= mean.error.interval[0] <= mean.error.interval[1] <= 100
        assert mean.interval == mean.error.interval
    difference = compared(perfect, low, items_of(70, 60.0))
    assert difference is not None
    assert difference.interval[1] <= 200
    assert seed_scores([100.0, 70.0], metric="accuracy").interval == (0, 100)
    assert bounded("r2", (-400.0, 130.0)) == (-400.0, 100)


def test_means_of_layers_carry_both_errors_on_both_splits() -> None:
    items = items_of(70, 20.0)
    one = outcomes(runs_at(4, EARLIER), items)[0]
    psi = np.stack([items.influences["test"][(4, ()), seed] for seed in range(3)])
    assert one.error == crossed(list(EARLIER), psi, unit="pair", metric="spearman", difference=False)
    assert one.validation_error == crossed([80.0] * 3, psi, unit="pair", metric="spearman", difference=False)
