"""Influences of items on a score, as training and as test items, by refitting probes without them.

Influence functions are first-order and cover only the outputs: with few items, heavy-tailed features or more features
than items they are too small, and for logistic regression they ignore the training rows. Penalties stay
fixed. Knows problems and their probes.

Source: Tukey 1958 (Annals of Mathematical Statistics 29); leaving out groups: Kott 2001 (Journal of Official Statistics
17).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from layerprobe.comparison.arrays import Layer
from layerprobe.errors import DataError
from layerprobe.metrics.scores import mean_influences
from layerprobe.probing.probes import Fitted, Problem
from layerprobe.probing.ridge import Array

SETS = 60
"""Most items, or groups, that are left out one by one; more are left out in this many random sets."""
NUMBERS = 2**19
"""Most numbers in a layer whose probes are refitted: 700 items of 768 features."""


def jackknife(problem: Problem, layer: Layer, fitted: Fitted, metric: str) -> Array | None:
    """Return the influences of the items, (n,) with mean 0, on a metric x 100 of the first folding.

    Leaving out k of G units, items or groups of them, changes the score by about -1 / (G - k) times the sum of their
    influences, which the k units share so that the sum of squares is preserved. Accuracy jumps with every refit,
    which would count as error: for classes, the influence as training items is that on a smoothed score.

    Returns:
        None if targets are not scores or classes, the metric of classes is not accuracy or macro F1, the layer has
        more than `NUMBERS` numbers, items belong to several groups, or the score of a subset is not defined.
    """
    n, sides = len(problem.targets), () if problem.links is None else problem.links.sides
    smoothed = problem.kind == "classes" and metric in ("accuracy", "macro f1")
    if not (smoothed or problem.kind == "scores") or n * layer.shape[1] > NUMBERS or len(sides) > 1:
        return None
    rows = layer.rows(slice(0, n))
    units = np.arange(n) if not sides else np.unique(sides[0], return_inverse=True)[1]
    sizes = np.bincount(units)
    order = np.arange(len(sizes)) if len(sizes) <= SETS else np.random.default_rng(0).permutation(len(sizes))
    influences, sets = np.zeros(n), np.array_split(order, min(len(sizes), SETS))
    included = np.stack([~np.isin(units, chosen) for chosen in sets])
    try:
        smooth = _bandwidth(fitted.outputs[0], problem.targets) if problem.kind == "classes" else None
        score = problem.score(fitted.outputs[0], metric)
        for chosen, items, outputs in zip(sets, included, problem.refitted(rows, included, fitted), strict=True):
            left = replace(problem, targets=problem.targets[items])
            if smooth is None:
                change = score - left.score(outputs[items], metric)
            else:
                before, after = (
                    _smoothed(values[items], left.targets, metric, smooth) for values in (fitted.outputs[0], outputs)
                )
                change = before - after
            influences[~items] = (len(sizes) - len(chosen)) * change / np.sqrt(len(chosen))
    except DataError:
        return None
    scored = 0.0 if smooth is None else problem.influences(fitted.outputs[0], metric)
    return mean_influences(scored + influences * n / len(sizes) / sizes[units])


def _bandwidth(probabilities: Array, classes: NDArray[np.intp]) -> float:
    """Return the temperature of `_smoothed` from the spread of the margins; it falls with the number of items."""
    logits, rows = np.log(np.maximum(probabilities, 1e-12)), np.arange(len(classes))
    others = logits.copy()
    others[rows, classes] = -np.inf
    spread = float((logits[rows, classes] - others.max(axis=1)).std())
    return max(0.6 * spread / math.pow(len(classes), 0.2), 1e-6)


def _smoothed(probabilities: Array, classes: NDArray[np.intp], metric: str, temperature: float) -> float:
    """Return accuracy or macro F1 x 100 with an item's share in every class instead of its most likely class."""
    shares = softmax(np.log(np.maximum(probabilities, 1e-12)) / temperature, axis=1)
    true = np.eye(shares.shape[1])[classes]
    hits = (shares * true).sum(axis=0)
    by_class = 2 * hits / (shares.sum(axis=0) + true.sum(axis=0))
    return 100 * float(hits.sum() / len(classes) if metric == "accuracy" else by_class.mean())
