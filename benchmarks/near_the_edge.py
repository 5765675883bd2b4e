"""How often intervals hold the true score where layers are nearly always right or a class is rare.

`python benchmarks/near_the_edge.py DRAWS`. Layers are scored on the same items, with errors correlated by 0.8 over
these, and are equal, or one is better: by 2 points of accuracy; where 3 % of the items are positive, outputs of these
lie 0.3 standard deviations further above the others. It prints in how many percent of the draws the interval of the
highest layer, and of a given one, holds the true score, and the mean widths of both.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.metrics.scores import (
    class_influences,
    class_scores,
    decision_influences,
    decision_scores,
    mean_influences,
)
from layerprobe.stats import best

Array = NDArray[np.float64]

RARE = 0.03
SHARED = 0.8
WORLDS = (
    *(("accuracy", right, 0.0) for right in (0.7, 0.97, 0.99)),
    *((metric, 4.0, 2.7) for metric in ("macro f1", "f1", "average precision")),
    *(("f1", 5.0, 3.1), ("average precision", 3.0, 2.7)),
)
"""The metric; the share that is right, or how far positive items lie above others; and the threshold."""


def strengths(metric: str, strength: float, layers: int, better: bool) -> Array:
    """Return the share that is right, or the distance of positives, by layer: one in the middle may be better."""
    by_layer = np.full(layers, strength - better * (0.02 if metric == "accuracy" else 0.3))
    by_layer[layers // 2] = strength
    return by_layer


def scored(metric: str, output: Array, positive: Array, threshold: float) -> tuple[float, Array]:
    """Return the score of an output on items, and the influences of these."""
    if metric == "macro f1":
        sides = np.stack([threshold - output, output - threshold], axis=1)
        return 100 * class_scores(sides, positive)[metric], 100 * class_influences(sides, positive)[metric]
    influences = decision_influences(output, positive, threshold)
    return 100 * decision_scores(output, positive, threshold)[metric], 100 * influences[metric]


def drawn(rng: np.random.Generator, n: int, metric: str, by_layer: Array, threshold: float) -> tuple[Array, Array]:
    """Return the scores of layers on drawn items, of which at least two are positive, and the influences of these."""
    noise = np.sqrt(SHARED) * rng.standard_normal(n) + np.sqrt(1 - SHARED) * rng.standard_normal((len(by_layer), n))
    if metric == "accuracy":
        right = 100.0 * (noise < stats.norm.ppf(by_layer)[:, None])
        return right.mean(axis=1), np.array([mean_influences(of_layer) for of_layer in right])
    positive = np.zeros(n)
    while positive.sum() < 2:
        positive = (rng.random(n) < RARE).astype(float)
    layers = [scored(metric, output, positive, threshold) for output in by_layer[:, None] * positive + noise]
    return np.array([score for score, _ in layers]), np.array([influences for _, influences in layers])


def truth(metric: str, by_layer: Array, threshold: float) -> Array:
    """Return the scores on a million items."""
    if metric == "accuracy":
        return 100 * by_layer
    rng = np.random.default_rng(7)
    positive, noise = (rng.random(1_000_000) < RARE).astype(float), rng.standard_normal(1_000_000)
    scores = {s: scored(metric, s * positive + noise, positive, threshold)[0] for s in set(by_layer.tolist())}
    return np.array([scores[s] for s in by_layer.tolist()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draws", type=int)
    draws = parser.parse_args().draws
    best.DRAWS = 4000  # of errors, as 20,000 take five times as long
    for (metric, strength, threshold), n, layers, better in itertools.product(
        WORLDS, (100, 200, 500), (2, 7, 13), (False, True)
    ):
        by_layer = strengths(metric, strength, layers, better)
        true, rng, rows = truth(metric, by_layer, threshold), np.random.default_rng(n * layers), []
        for _ in range(draws):
            scores, influences = drawn(rng, n, metric, by_layer, threshold)
            compared = best.against_best(scores.tolist(), influences, metric=metric)
            assert compared is not None
            low, high = np.array(compared.intervals).T
            inside, width, highest = (low <= true) & (true <= high), high - low, compared.best
            rows.append((100 * inside[highest], 100 * inside.mean(), width[highest], width.mean()))
        of_highest, of_one, wide, widths = np.mean(rows, axis=0)
        print(
            f"{metric} {true.max():.1f}, {n} items, {layers} layers{', one better' * better}: the highest holds "
            f"{of_highest:.1f}, a given one {of_one:.1f}; widths {wide:.1f}, {widths:.1f}",
            flush=True,
        )
