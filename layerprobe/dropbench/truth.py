"""TMFT scores of every layer -> whether a model drops, and what a recommended layer costs. Knows numbers only.

The best layer of a sweep is chosen from noisy scores, so its own score is too good to be true. Here the layer is
chosen for each seed by the validation scores of the other seeds, and scored by the test score of that seed: what
somebody would get who swept all layers and fine-tuned once more. With a single seed there are no others, the layer is
chosen and scored by the same run, and what its noise has in common on both splits stays.
"""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.checks import LEVEL
from layerprobe.dropbench.values import TunedLayers
from layerprobe.finetuning.values import MARGIN
from layerprobe.prediction.values import Truth

Array = NDArray[np.float64]


def truth(tuned: TunedLayers) -> Truth:
    """Say whether the last layer scores lower than an earlier one, by more than noise, and from which layer on.

    effect = mean over seeds k of test[b_k][k] - test[last][k], where b_k is the layer with the best mean validation
    score of the other seeds. There is a drop where an earlier layer is best over all seeds and the effect exceeds

        t = max(0.5, q s sqrt(2 / seeds)),

    s^2 the variance that is left of the test scores when each layer and each seed has its mean, which pools the noise
    of all layers, and q Student's 95 % quantile with its degrees of freedom.

    The onset is the first of the final run of layers whose mean test score lies more than t below that of the best
    layer; with a drop the last layer always counts.
    """
    test = np.array(tuned.test)
    means, last = test.mean(axis=1), tuned.n_layers - 1
    error, threshold = _noise(test)
    effect = float(regrets(tuned)[last])
    best = best_layer(tuned)
    onset = None
    if best < last and effect > threshold:
        onset = last
        while onset - 1 > best and means[best] - means[onset - 1] > threshold:
            onset -= 1
    drop = onset is not None
    return Truth(drop=drop, effect=effect, threshold=threshold, standard_error=error, best_layer=best, onset=onset)


def best_layer(tuned: TunedLayers) -> int:
    """Return the layer with the highest mean validation score, the earlier one of equals."""
    return int(np.array(tuned.validation).mean(axis=1).argmax())


def regrets(tuned: TunedLayers) -> Array:
    """Return how many points each layer scores below the one that a full sweep would choose.

    Returns:
        (layers,) mean over seeds of the test score of the layer chosen by the other seeds' validation scores, less
        that of each layer; can be negative.
    """
    test, validation = np.array(tuned.test), np.array(tuned.validation)
    n_seeds = test.shape[1]
    seeds = range(n_seeds)
    others = [np.delete(validation, seed, axis=1) if n_seeds > 1 else validation for seed in seeds]
    chosen = np.array([test[scores.sum(axis=1).argmax(), seed] for scores, seed in zip(others, seeds, strict=True)])
    differences: Array = (chosen - test).mean(axis=1)
    return differences


def cost_share(layers: Collection[int], n_blocks: int) -> float:
    """Return what fine-tuning some layers costs of what fine-tuning all costs, with as many seeds.

    A step at layer l costs l + 1 blocks: a block costs about as much as the rest of a step.

    Example:
        >>> round(cost_share({6, 8}, 8), 3)
        0.356
    """
    return sum(layer + 1 for layer in set(layers)) / sum(range(1, n_blocks + 2))


def _noise(test: Array) -> tuple[float | None, float]:
    """Return the standard error of the difference of two layers' means, and what a drop must exceed."""
    n_layers, n_seeds = test.shape
    freedom = (n_layers - 1) * (n_seeds - 1)
    if freedom == 0:
        return None, MARGIN
    rest = test - test.mean(axis=1, keepdims=True) - test.mean(axis=0, keepdims=True) + test.mean()
    error = math.sqrt(2 / n_seeds * float((rest**2).sum()) / freedom)
    return error, max(MARGIN, float(stats.t.ppf(LEVEL, freedom)) * error)
