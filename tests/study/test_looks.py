"""Looks after every seed: the levels, and the error of all together by simulation with errors over items and seeds."""

import numpy as np
import pytest
from scipy import stats

from layerprobe.stats.crossed import crossed
from layerprobe.study.confirmation import level_at_look, looks
from tests.stats.test_crossed import Array, studies


def levels(planned: int, level: float) -> dict[int, float]:
    found = {k: level_at_look(k, level, planned=planned) for k in looks(planned)}
    return {k: each for k, each in found.items() if each is not None}


def settled(values: Array, influences: Array | None, *, level: float = 0.95, truth: float = 0.0) -> int:
    """After how many seeds the interval of a look first excludes the truth; 0 where none does."""
    for k, each in levels(len(values), level).items():
        found = crossed(values[:k].tolist(), None if influences is None else influences[:k], level=each)
        assert found is not None
        if not found.interval[0] <= truth <= found.interval[1]:
            return k
    return 0


def test_there_is_a_look_after_each_seed_from_the_third_on() -> None:
    assert looks(5) == (3, 4, 5)
    assert [looks(n) for n in (1, 2, 3)] == [(1,), (2,), (3,)]
    assert level_at_look(2, 0.95, planned=5) is None


@pytest.mark.parametrize("planned", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_all_looks_together_spend_the_error(planned: int, level: float) -> None:
    each = levels(planned, level)
    assert sum(1 - one for one in each.values()) == pytest.approx(1 - level)
    assert list(each.values()) == sorted(each.values(), reverse=True)
    if planned <= 3:
        assert each == {planned: pytest.approx(level)}


@pytest.mark.parametrize("planned", [5, 8])
def test_looks_at_seeds_alone_err_at_most_at_their_level(planned: int) -> None:
    """Student's t of 4,000 studies at once; the same looks at one level would err twice as often."""
    samples = np.random.default_rng(planned).standard_normal((40_000, planned))
    beyond, often = np.zeros(len(samples), bool), np.zeros(len(samples), bool)
    for k, level in levels(planned, 0.95).items():
        t = np.abs(stats.ttest_1samp(samples[:, :k], 0, axis=1).statistic)
        beyond |= t > stats.t.isf((1 - level) / 2, k - 1)
        often |= t > stats.t.isf(0.025, k - 1)
    assert 0.03 < beyond.mean() <= 0.05
    assert often.mean() > 0.09


@pytest.mark.parametrize(("of_seeds", "own"), [(0.0, 0.1), (0.3, 0.3)])
def test_looks_at_items_and_seeds_err_at_most_at_their_level(of_seeds: float, own: float) -> None:
    """1,500 studies without an effect, 70 items and five seeds each; the error of the simulation is 0.6 %."""
    rng = np.random.default_rng(0)
    values, influences = studies(rng, 1500, n=70, seeds=5, of_seeds=of_seeds, own=own)
    wrong = np.mean([settled(value, psi) > 0 for value, psi in zip(values, influences, strict=True)])
    assert wrong < 0.05 + 0.012


def test_a_large_effect_needs_fewer_seeds() -> None:
    """Effects in standard errors of all five seeds: how many seeds it takes on average, and how often it is seen."""
    rng, found = np.random.default_rng(1), []
    for effect in (0, 3, 6, 12):
        values, influences = studies(rng, 200, n=100, seeds=5, of_seeds=0.2, own=0.2)
        stops = np.array([settled(value + effect, psi) for value, psi in zip(values, influences, strict=True)])
        found.append((float(np.mean(np.where(stops == 0, 5, stops))), float(np.mean(stops > 0))))
    seeds, seen = zip(*found, strict=True)
    assert list(seeds) == sorted(seeds, reverse=True)
    assert seeds[-1] < 3.2
    assert seen[0] < 0.08
    assert seen[1] > 0.6
    assert seen[-1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("planned", [3, 5])
@pytest.mark.parametrize("own", [0.05, 0.5])
@pytest.mark.parametrize("of_seeds", [0.0, 0.3, 0.6, 0.9])
def test_looks_err_at_most_at_their_level_whatever_the_shares(of_seeds: float, own: float, planned: int) -> None:
    """8,000 studies without an effect; the error of the simulation is 0.25 %."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(8):
        values, influences = studies(rng, 1000, n=70, seeds=planned, of_seeds=of_seeds, own=own)
        wrong += sum(settled(value, psi) > 0 for value, psi in zip(values, influences, strict=True))
    # of seeds that are nearly all of the error, few say how much it is
    assert wrong / 8000 < 0.05 + 0.006 + (0.02 if of_seeds > 0.5 else 0)
