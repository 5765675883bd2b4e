"""Looks after every seed: the error of all together by simulation, against Student's t and published constants."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.finetuning.looks import critical_values, interval_at_look, looks

Array = NDArray[np.float64]


def t_values(samples: Array) -> Array:
    """(studies, seeds) -> (studies, seeds): Student's t of the first samples; NaN for the first one."""
    n = np.arange(1, samples.shape[1] + 1)
    means = np.cumsum(samples, axis=1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt((np.cumsum(samples**2, axis=1) - n * means**2) / (n - 1))
        result: Array = means * np.sqrt(n) / spread
    return result


def first_beyond(samples: Array, level: float) -> Array:
    """At which look each study stops; 0 where it never does."""
    limits, t = critical_values(samples.shape[1], level), np.abs(t_values(samples))
    stops = np.zeros(len(samples))
    for k in reversed(list(limits)):
        stops[t[:, k - 1] > limits[k]] = k
    return stops


def test_there_is_a_look_after_each_seed_from_the_third_on() -> None:
    assert looks(5) == (3, 4, 5)
    assert [looks(n) for n in (1, 2, 3)] == [(1,), (2,), (3,)]


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.9999])
@pytest.mark.parametrize("planned", [2, 3])
def test_a_single_look_is_students(planned: int, level: float) -> None:
    expected = stats.t.ppf((1 + level) / 2, planned - 1)
    assert critical_values(planned, level) == {planned: pytest.approx(expected, rel=1e-9)}


@pytest.mark.parametrize("planned", [4, 5, 10, 40])
def test_early_looks_ask_for_more(planned: int) -> None:
    limits = list(critical_values(planned, 0.95).values())
    finite = [limit for limit in limits if np.isfinite(limit)]
    assert finite == sorted(finite, reverse=True)
    assert limits[-1] / stats.t.ppf(0.975, planned - 1) == pytest.approx(1.067, abs=0.008)


def test_the_first_look_spends_its_share() -> None:
    limit = critical_values(5, 0.95)[3]
    assert 2 * stats.t.sf(limit, 2) == pytest.approx(0.05 * (3 / 5) ** 5, rel=1e-3)


@pytest.mark.parametrize(("planned", "level"), [(4, 0.95), (5, 0.95), (5, 0.8), (10, 0.95), (5, 0.99)])
def test_all_looks_together_err_as_often_as_the_level_says(planned: int, level: float) -> None:
    """200,000 studies without an effect: the error of all looks, and what each look adds to it."""
    n = 200_000
    stops = first_beyond(np.random.default_rng(planned).standard_normal((n, planned)), level)
    spent = np.array([(1 - level) * (k / planned) ** 5 for k in looks(planned)])
    shares = np.diff(spent, prepend=0.0)
    found = np.array([np.mean(stops == k) for k in looks(planned)])
    np.testing.assert_allclose(found, shares, atol=5 * np.sqrt(shares.max() / n))
    assert np.mean(stops > 0) == pytest.approx(1 - level, abs=4 * np.sqrt((1 - level) * level / n))


def test_ordinary_intervals_would_err_twice_as_often() -> None:
    t = np.abs(t_values(np.random.default_rng(0).standard_normal((100_000, 5))))
    beyond = np.any([t[:, k - 1] > stats.t.ppf(0.975, k - 1) for k in looks(5)], axis=0)
    assert np.mean(beyond) == pytest.approx(0.10, abs=0.005)


def test_a_large_effect_needs_fewer_seeds_and_a_small_one_is_found_as_often() -> None:
    """Effects in standard deviations of a seed's difference: seeds on average, and how often one of 5 looks sees it."""
    rng = np.random.default_rng(1)
    for effect, seeds, power in ((1, 4.88, 0.371), (2, 4.56, 0.886), (3, 4.18, 0.996), (5, 3.77, 1.0), (20, 3.01, 1.0)):
        samples = rng.standard_normal((50_000, 5)) + effect
        stops = first_beyond(samples, 0.95)
        assert np.mean(np.where(stops == 0, 5, stops)) == pytest.approx(seeds, abs=0.02)
        assert np.mean(stops > 0) == pytest.approx(power, abs=0.01)
        once = np.abs(t_values(samples))[:, -1] > stats.t.ppf(0.975, 4)
        assert np.mean(once) - np.mean(stops > 0) < 0.035


def test_seeds_that_agree_by_chance_settle_nothing() -> None:
    """Three differences of a count over items are often the same; an interval without width would decide."""
    for same in ([0.0] * 3, [0.4] * 4, [(80.0 + n + 0.4) - (80.0 + n) for n in range(3)]):
        assert interval_at_look(same, 0.95, planned=5) is None
    assert interval_at_look([0.4, 0.4, 0.5], 0.95, planned=5) is not None
    assert interval_at_look([0.4] * 5, 0.95, planned=5) == pytest.approx((0.4, 0.4))


def test_the_looks_at_counts_err_no_more_often_than_the_level_says() -> None:
    """Paired accuracies over 20 items without an effect: each differs in either direction with 5 %."""
    rng = np.random.default_rng(0)
    wrong = 0
    for differences in (rng.binomial(20, 0.05, (4000, 5)) - rng.binomial(20, 0.05, (4000, 5))) / 20 * 100:
        found = [interval_at_look(differences[:k].tolist(), 0.95, planned=5) for k in (3, 4, 5)]
        wrong += any(interval is not None and not interval[0] - 1e-9 <= 0 <= interval[1] for interval in found)
    assert wrong / 4000 < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("planned", [5, 12, 30])
def test_a_million_studies_err_at_the_level(planned: int) -> None:
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(10):
        wrong += int(np.sum(first_beyond(rng.standard_normal((100_000, planned)), 0.95) > 0))
    assert wrong / 1e6 == pytest.approx(0.05, abs=0.0008)
