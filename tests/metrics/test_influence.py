"""Influences against leaving one item out, by brute force, and against how scores vary over items that are drawn."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.metrics.scores import (
    GROUPS,
    Influences,
    class_influences,
    class_scores,
    correlation_influences,
    correlations,
    decision_influences,
    decision_scores,
    jackknife_influences,
    mean_influences,
)
from layerprobe.stats.crossed import Links, crossed

Array = NDArray[np.float64]
Items = tuple[Array, Array]
THRESHOLD = 0.5


def scores_of(n: int, seed: int, *, ties: bool) -> Items:
    """Outputs that go with gold scores, both on a few steps where they tie."""
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=n)
    outputs = gold + rng.standard_t(5, size=n)
    return (outputs.round(0), gold.round(0)) if ties else (outputs, gold)


def decisions_of(n: int, seed: int, *, ties: bool) -> Items:
    rng = np.random.default_rng(seed)
    true = (rng.random(n) < 0.3).astype(float)
    outputs = true + rng.normal(size=n)
    return (outputs.round(1) if ties else outputs), true


def classes_of(n: int, seed: int, *, ties: bool) -> Items:
    rng = np.random.default_rng(seed)
    true = rng.choice(3, size=n, p=(0.6, 0.3, 0.1))
    logits = np.eye(3)[true] + rng.normal(size=(n, 3))
    return (logits.round(0) if ties else logits), true.astype(float)


def decided(outputs: Array, targets: Array) -> dict[str, float]:
    return decision_scores(outputs, targets, THRESHOLD)


def decision(outputs: Array, targets: Array) -> Influences:
    return decision_influences(outputs, targets, THRESHOLD)


Draw = Callable[..., Items]
Score = Callable[[Array, Array], dict[str, float]]
CASES: dict[str, tuple[Draw, Score, Callable[[Array, Array], Influences]]] = {
    "spearman": (scores_of, correlations, correlation_influences),
    "pearson": (scores_of, correlations, correlation_influences),
    "f1": (decisions_of, decided, decision),
    "average precision": (decisions_of, decided, decision),
    "accuracy": (decisions_of, decided, decision),
    "macro f1": (classes_of, class_scores, class_influences),
}


@pytest.mark.parametrize("ties", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("metric", CASES)
def test_leaving_one_item_out_says_the_same(metric: str, ties: bool) -> None:
    """Pseudo-values by brute force; the difference falls as 1 / n."""
    draw, score, influences = CASES[metric]
    differences = []
    for n in (60, 600):
        outputs, targets = draw(n, 3, ties=ties)
        left = [np.arange(n) != i for i in range(n)]
        without = np.array([score(outputs[kept], targets[kept])[metric] for kept in left])
        pseudo = (n - 1) * (without.mean() - without)
        own = influences(outputs, targets)[metric]
        assert own.sum() == pytest.approx(0, abs=1e-9)
        assert np.corrcoef(own, pseudo)[0, 1] > 0.98
        differences.append(np.abs(own - pseudo).mean() / np.abs(pseudo).mean())
    assert differences[1] < 0.04
    assert differences[1] < 0.5 * differences[0] + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("metric", CASES)
def test_the_variance_over_items_is_that_of_the_scores_of_other_items(metric: str, ties: bool) -> None:
    draw, score, influences = CASES[metric]
    n, scores, variances = 300, [], []
    for seed in range(400):
        outputs, targets = draw(n, seed, ties=ties)
        scores.append(score(outputs, targets)[metric])
        if seed < 100:
            variances.append((influences(outputs, targets)[metric] ** 2).sum() / (n * (n - 1)))
    # the variance of 400 scores is itself known to 7 %
    assert np.mean(variances) / np.var(scores, ddof=1) == pytest.approx(1, abs=0.2)


def test_continuous_ranks_have_the_textbook_influence() -> None:
    """rho = 12 E(F G) - 3 of uniform F and G, which rank themselves (Croux and Dehon 2010)."""
    x, y = scores_of(5000, 1, ties=False)
    u, v = ((np.argsort(np.argsort(each)) + 0.5) / len(each) for each in (x, y))
    by_x, by_y = np.argsort(-u), np.argsort(-v)
    above_x, above_y = np.empty(len(u)), np.empty(len(u))
    above_x[by_x], above_y[by_y] = np.cumsum(v[by_x]) / len(u), np.cumsum(u[by_y]) / len(u)
    rho = correlations(x, y)["spearman"]
    expected = 12 * (u * v + above_x + above_y) - 9 - 3 * rho
    np.testing.assert_allclose(correlation_influences(x, y)["spearman"], expected, atol=0.01)


def test_influences_do_not_depend_on_the_order_and_scale() -> None:
    outputs, targets = scores_of(60, 2, ties=True)
    order = np.random.default_rng(0).permutation(60)
    for metric, own in correlation_influences(outputs, targets).items():
        np.testing.assert_allclose(correlation_influences(outputs[order], targets[order])[metric], own[order])
        np.testing.assert_allclose(correlation_influences(3 * outputs - 1, targets)[metric], own, atol=1e-12)
    monotone = correlation_influences(np.exp(outputs), targets)["spearman"]
    np.testing.assert_allclose(monotone, correlation_influences(outputs, targets)["spearman"], atol=1e-12)


def test_perfect_correlations_and_accuracies_have_no_influence() -> None:
    gold = np.array([0.0, 1, 1, 2, 5])
    for own in correlation_influences(2 * gold, gold).values():
        np.testing.assert_allclose(own, 0, atol=1e-12)
    true = np.array([0.0, 1, 1, 0])
    np.testing.assert_array_equal(decision_influences(true, true, THRESHOLD)["accuracy"], 0)
    np.testing.assert_array_equal(class_influences(np.eye(3), np.arange(3.0))["accuracy"], 0)


def test_a_rare_class_that_is_all_right_has_the_variance_of_one_of_its_items() -> None:
    """Six of 1,000: of F1, whose sum below is of true and predicted ones, of one of twelve."""
    true = (np.arange(1000) < 6).astype(float)
    own = decision_influences(true, true, THRESHOLD)
    assert (own["f1"] @ own["f1"]) / 1000**2 == pytest.approx(1 / 12**2, rel=0.01)
    assert (own["average precision"] @ own["average precision"]) / 1000**2 == pytest.approx(1 / 6**2, rel=0.01)
    assert own["f1"].mean() == pytest.approx(0, abs=1e-12)


def test_without_a_positive_there_is_nothing_to_move() -> None:
    own = decision_influences(np.zeros(4), np.zeros(4), THRESHOLD)
    assert not any(values.any() for values in own.values())


def test_groups_that_are_left_out_have_the_same_sum_of_squares() -> None:
    """5,000 items in 1,000 groups: the sum of squares as of single items, to what 1,000 numbers tell."""
    values = np.random.default_rng(0).normal(size=5 * GROUPS)
    own = jackknife_influences(lambda items: float(values[items].mean()), len(values), seed=1)
    assert own.sum() == pytest.approx(0, abs=1e-9)
    assert len(np.unique(own.round(9))) == GROUPS
    assert (own**2).sum() / (mean_influences(values) ** 2).sum() == pytest.approx(1, abs=0.25)


def test_groups_of_two_scores_are_the_same_so_that_differences_have_errors() -> None:
    values = np.random.default_rng(0).normal(size=(2, 1999))
    first, second, both = (
        jackknife_influences(lambda items, row=row: float(row[items].mean()), 1999)  # type: ignore[misc]
        for row in (*values, values[0] - values[1])
    )
    np.testing.assert_allclose(first - second, both, atol=1e-9)


def test_leaving_out_single_items_keeps_what_items_of_a_document_have_in_common() -> None:
    """1,000 items of 100 documents: in 200 groups the interval held the mean in 75 %."""
    rng, documents, held, n = np.random.default_rng(0), np.repeat(np.arange(100), 10), 0, 60
    for _ in range(n):
        values = rng.normal(size=100)[documents] + rng.normal(size=1000)
        own = jackknife_influences(lambda items, values=values: float(values[items].mean()), 1000)  # type: ignore[misc]
        error = crossed([values.mean()], own[None], links=Links(sides=(documents,)))
        assert error is not None
        held += error.interval[0] <= 0 <= error.interval[1]
    assert held / n >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / n)
