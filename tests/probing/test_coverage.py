"""Over new samples the set holds the best layer, and intervals the score, at their level; gains are rarely imagined."""

from typing import Any

import numpy as np
import pytest

from layerprobe.probing.run import probe
from layerprobe.probing.values import Probing
from layerprobe.stats.best import highest_quantile, state
from tests.probing.data import layered, scores_of

EQUAL = (1.0, 1.0, 1.0, 1.0)


def drawn(n: int, *, times: int, kind: str, weighted_sum: bool = False, folds: int = 3) -> list[Probing]:
    """Return the answers about layers that are all as good, each from samples of its own."""
    results = []
    for seed in range(times):
        embeddings, signal = layered(n, width=10, seed=seed, strengths=EQUAL)
        scores = scores_of(signal, seed=10_000 + seed)
        targets = scores if kind == "scores" else np.where(scores > 0, "high", "low")
        how: dict[str, Any] = {"foldings": folds, "random_state": seed}
        results.append(probe(embeddings, targets, weighted_sum=weighted_sum, **how))
    return results


def held(results: list[Probing]) -> tuple[float, float]:
    """Return how often a layer is in the set, and how often its interval holds its mean score."""
    scores = np.array([[each.metrics[result.primary] for each in result.layers] for result in results])
    truth = scores.mean(axis=0)
    inside = np.mean([len(result.candidates) / len(EQUAL) for result in results])
    intervals = [
        each.error is not None and each.error.interval[0] <= score <= each.error.interval[1]
        for result in results
        for each, score in zip(result.layers, truth, strict=True)
    ]
    return float(inside), float(np.mean(intervals))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("scores", 0.93), ("classes", 0.90)])
def test_the_set_and_the_intervals_hold_at_their_level(kind: str, least: float) -> None:
    """Of classes the set holds a layer in 92.4 %: what training rows add to the error is not counted there."""
    inside, intervals = held(drawn(120, times=200, kind=kind, folds=2))
    print(f"{kind}: in the set {inside:.3f}, intervals {intervals:.3f}")
    assert least <= inside <= 0.995
    assert 0.92 <= intervals <= 0.985


@pytest.mark.slow
def test_what_several_layers_gain_is_rarely_imagined() -> None:
    """Copies of one layer: nothing is to be gained by putting them together."""
    claimed = 0
    for seed in range(60):
        embeddings, signal = layered(120, width=10, seed=seed, strengths=(1.0,))
        copies = np.repeat(embeddings, 3, axis=1) + 1e-6 * np.random.default_rng(seed).random((120, 3, 10))
        result = probe(copies, scores_of(signal, seed=seed), foldings=2, random_state=seed)
        claimed += result.summed is not None and result.summed.better
    print(f"better by copies: {claimed} of 60")
    assert claimed <= 6


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_statement_is_true_at_its_level(correlation: float) -> None:
    """Of known errors: the best is in the set and no gap is larger than said, together."""
    truth = np.array([3.0, 3.0, 2.9, 2.0, 0.0])
    covariance = (1 - correlation) * np.eye(5) + correlation
    rng = np.random.default_rng(0)
    root, true, sizes = np.linalg.cholesky(covariance), [], []
    for _ in range(200):
        candidates, behind = state(truth + root @ rng.standard_normal(5), covariance, level=0.95, freedom=1e6)
        gaps = truth.max() - truth
        true.append(0 in candidates and bool((gaps <= np.array(behind) + 1e-12).all()))
        sizes.append(len(candidates))
    assert np.mean(true) >= 0.93
    assert np.mean(sizes) < 5


@pytest.mark.parametrize(("layers", "correlation"), [(7, 0.5), (25, 0.5), (25, 0.0)])
def test_the_highest_is_no_more_too_high_than_is_said(layers: int, correlation: float) -> None:
    """Of equal scores with known errors; as for a single one, it would be too high in up to 47 %."""
    covariance = (1 - correlation) * np.eye(layers) + correlation
    below = highest_quantile(covariance, level=0.95, freedom=1e6)
    errors = np.random.default_rng(1).standard_normal((20_000, layers)) @ np.linalg.cholesky(covariance).T
    assert np.mean(errors.max(axis=1) > below) == pytest.approx(0.025, abs=0.004)
    assert np.mean(errors.max(axis=1) > 1.96) > 0.08


def test_the_best_layer_reaches_further_down_than_up_and_others_do_not() -> None:
    """On Fisher's scale, where correlations have intervals."""
    (result,) = drawn(150, times=1, kind="scores", folds=1)
    for each in result.layers:
        assert each.error is not None
        low, centre, high = np.arctanh(
            np.array([each.error.interval[0], each.error.value, each.error.interval[1]]) / 100
        )
        ratio = (centre - low) / (high - centre)
        assert ratio > 1.05 if each is result.best else ratio == pytest.approx(1)


@pytest.mark.slow
def test_intervals_and_the_set_hold_with_few_samples() -> None:
    """40 samples: before probes were fitted again 86, 59 and 91 %."""
    results = drawn(40, times=150, kind="scores", folds=3)
    inside, intervals = held(results)
    truth = np.mean([each.metrics["spearman"] for result in results for each in result.layers])
    best = [result.best.error for result in results]
    of_best = np.mean([error is not None and error.interval[0] <= truth <= error.interval[1] for error in best])
    print(f"in the set {inside:.3f}, intervals {intervals:.3f}, of the best {of_best:.3f}")
    assert inside >= 0.93
    assert intervals >= 0.93
    assert of_best >= 0.93


def test_differences_are_not_known_better_than_one_item() -> None:
    scores, nothing = np.array([50.0, 50.4]), np.zeros((2, 2))
    assert state(scores, nothing, level=0.95, freedom=99, least=1.0)[0] == (0, 1)
    assert state(scores, nothing, level=0.95, freedom=99)[0] == (1,)
