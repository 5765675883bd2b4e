"""Scores compared with the best of them: what is said holds at its level, and of what was chosen, too."""

import numpy as np
import pytest

from benchmarks.near_the_edge import drawn as edge_drawn
from benchmarks.near_the_edge import truth
from layerprobe.metrics.scores import mean_influences
from layerprobe.stats.best import against_best, best_over_seeds
from layerprobe.stats.crossed import Links, crossed, crossed_errors
from layerprobe.stats.values import AgainstBest, Floor

FLOOR = Floor(value=50.0, by="always predicting the largest class")


def drawn(rng: np.random.Generator, chances: np.ndarray, n: int) -> AgainstBest:
    """Layers that are right as often as given, alike in what they get right."""
    common, own = rng.standard_normal(n), rng.standard_normal((len(chances), n))
    from scipy.stats import norm

    right = 100.0 * ((common + own) / 2**0.5 < norm.ppf(chances)[:, None])
    compared = against_best(
        right.mean(axis=1).tolist(), [mean_influences(each) for each in right], metric="accuracy", floor=FLOOR
    )
    assert compared is not None
    return compared


def rates(m: int, n: int, gap: float, worlds: int, seed: int) -> dict[str, float]:
    chances = np.full(m, 0.7)
    chances[m // 2] += gap
    truth, held = 100 * chances, {"set": 0, "behind": 0, "chosen": 0, "out": 0}
    rng = np.random.default_rng(seed)
    for _ in range(worlds):
        each = drawn(rng, chances, n)
        low, high = each.intervals[each.best]
        held["set"] += int(m // 2 in each.candidates)
        held["behind"] += int((np.array(each.behind) >= truth.max() - truth - 1e-9).all())
        held["chosen"] += int(low <= truth[each.best] <= high)
        held["out"] += int(0 not in each.candidates)
    return {name: count / worlds for name, count in held.items()}


def test_what_is_said_of_the_best_holds() -> None:
    equal = rates(8, 300, 0.0, 40, seed=3)
    assert equal["out"] <= 0.15, "P(more of 40 at 5 %) is 0.003"
    assert equal["behind"] == 1.0
    assert equal["chosen"] >= 0.85
    apart = rates(8, 300, 0.1, 40, seed=4)
    assert apart["set"] >= 0.85
    assert apart["behind"] >= 0.85
    assert apart["out"] >= 0.5, "ten points are seen"


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(2, 100), (13, 100), (13, 1000), (26, 300)])
@pytest.mark.parametrize("gap", [0.0, 0.02])
def test_the_comparison_with_the_best_keeps_its_level(m: int, n: int, gap: float) -> None:
    held = rates(m, n, gap, 400, seed=m * n)
    print(m, n, gap, held)
    error = 2.6 * (0.05 * 0.95 / 400) ** 0.5
    assert held["set"] >= 0.95 - error
    assert held["behind"] >= 0.95 - error
    assert held["chosen"] >= 0.94 - error


@pytest.mark.parametrize(("metric", "right"), [("accuracy", 0.97), ("f1", 4.0), ("average precision", 4.0)])
def test_near_the_edge_the_highest_holds_its_true_score(metric: str, right: float) -> None:
    """13 equal layers, 200 items, 3 % of them positive: 70, 21 and 11 % by the error of the score alone."""
    rng, held = np.random.default_rng(0), 0
    by_layer = np.full(13, right)
    (true,) = set(truth(metric, by_layer, 2.7).tolist())
    for _ in range(60):
        scores, influences = edge_drawn(rng, 200, metric, by_layer, 2.7)
        compared = against_best(scores.tolist(), influences, metric=metric)
        assert compared is not None
        low, high = compared.intervals[compared.best]
        held += low <= true <= high
    assert held >= 54, "P(fewer of 60 at 95 %) is 0.03; 98 % and more in 400 draws"


def made(*scores: float, behind: tuple[float, ...], candidates: tuple[int, ...], tolerance: float = 1.0) -> AgainstBest:
    ends = tuple((score - 2, score + 1) for score in scores)
    return AgainstBest(
        scores=scores,
        intervals=ends,
        behind=behind,
        candidates=candidates,
        level=0.95,
        tolerance=tolerance,
        floor=FLOOR,
    )


def test_nothing_is_tied_that_was_only_not_told_apart() -> None:
    """57.20 and 66.98 of 400 pairs: called tied once, though the paired difference is 3.7 to 16.3."""
    each = made(57.2, 66.98, 66.5, behind=(16.3, 0.9, 3.0), candidates=(1, 2))
    assert each.smallest() == 1
    assert [each.flag(i) for i in range(3)] == [None, "best", "may be best"]
    undecided = made(57.2, 66.98, 66.5, behind=(16.3, 1.9, 3.0), candidates=(1, 2))
    assert [undecided.flag(i) for i in range(3)] == [None, "best guess", "may be best"]
    assert made(57.2, 66.98, 66.5, behind=(16.3, 0.9, 3.0), candidates=(1, 2), tolerance=17.0).flag(0) == (
        "smallest sufficient"
    )


def test_what_is_on_the_floor_is_nothing() -> None:
    low = made(51.0, 50.5, behind=(0.5, 1.0), candidates=(0, 1))
    assert low.on_floor
    assert low.smallest() is None
    assert [low.flag(i) for i in range(2)] == [None, None]
    assert not made(52.5, 50.5, behind=(0.5, 2.0), candidates=(0, 1)).on_floor


def test_without_errors_nothing_is_compared() -> None:
    assert against_best([50.0, 60.0], [[0.0], [0.0]], metric="accuracy") is None
    linked = Links(sides=(np.zeros(3, dtype=np.intp),))
    assert against_best([50.0, 60.0], np.zeros((2, 3)), metric="accuracy", links=linked) is None


def over_seeds(rng: np.random.Generator, truth: np.ndarray, seeds: int, n: int, grow: float) -> AgainstBest:
    """Layers scored on the same items with the same seeds, whose spread over seeds grows that much with depth."""
    k = len(truth)
    items = 30 * np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(np.arange(k), np.arange(k))))
    raw = (items @ rng.standard_normal((k, n)))[:, None] + 20 * rng.standard_normal((k, seeds, n))
    spread = np.linspace(1, grow, k)[:, None]
    scores = truth[:, None] + raw.mean(axis=2) + spread * rng.standard_normal((k, seeds)) + rng.standard_normal(seeds)
    influences = raw - raw.mean(axis=2, keepdims=True)
    compared = best_over_seeds(scores, influences, [(0.0, 1.0)] * k)
    assert compared is not None
    return compared


def kept_over_seeds(k: int, seeds: int, n: int, grow: float, gap: float, worlds: int) -> float:
    rng, truth, held = np.random.default_rng(k * seeds), np.full(k, 70.0), 0
    truth[k // 2] += gap
    for _ in range(worlds):
        compared = over_seeds(rng, truth, seeds, n, grow)
        behind = bool((np.array(compared.behind) >= truth.max() - truth - 1e-9).all())
        held += int(k // 2 in compared.candidates and behind)
    return held / worlds


def test_what_is_said_over_seeds_holds() -> None:
    assert kept_over_seeds(6, 3, 300, 3.0, 1.0, 40) >= 0.85
    apart = over_seeds(np.random.default_rng(0), np.array([50.0, 70.0, 70.0]), 3, 300, 1.0)
    assert apart.candidates == (1, 2), "twenty points are seen"


@pytest.mark.slow
@pytest.mark.parametrize(("k", "seeds"), [(2, 2), (5, 3), (13, 2), (13, 5), (13, 1)])
@pytest.mark.parametrize(("grow", "gap"), [(1.0, 0.0), (5.0, 1.0)])
def test_the_comparison_over_seeds_keeps_its_level(k: int, seeds: int, grow: float, gap: float) -> None:
    assert kept_over_seeds(k, seeds, 500, grow, gap, 400) >= 0.95 - 2.6 * (0.05 * 0.95 / 400) ** 0.5


def test_of_two_layers_it_is_the_paired_difference() -> None:
    """The variance of the difference is that of the paired differences by seed, see `crossed`."""
    rng = np.random.default_rng(0)
    scores, psi = rng.normal(70, 1, (2, 4)), rng.standard_normal((2, 4, 200)) * 30
    psi -= psi.mean(axis=2, keepdims=True)
    errors = crossed_errors(scores, psi)
    single = crossed((scores[0] - scores[1]).tolist(), psi[0] - psi[1])
    assert errors is not None
    assert single is not None
    assert single.seeds_error is not None
    assert single.items_error is not None
    covariance, _, _ = errors
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert variance == pytest.approx(single.seeds_error**2 + single.items_error**2, rel=1e-6)


def test_over_seeds_without_errors_nothing_is_compared() -> None:
    assert best_over_seeds([[70.0], [71.0]], None, [(0.0, 1.0)] * 2) is None
    alone = best_over_seeds([[70.0, 70.2], [75.0, 75.1]], None, [(0.0, 1.0)] * 2, chosen=0, tolerance=8.0)
    assert alone is not None
    assert (alone.best, alone.candidates, alone.smallest()) == (0, (1,), 0)
