"""The learned weighted sum of layers as one embedding. Knows arrays.

Features of each layer are first standardised to mean 0 and variance 1. Weights, a softmax, are learned on some
thousand random rows of the training folds; probes then use the sum like a layer.

Source: Peters et al. 2018 (ELMo, NAACL); Yang et al. 2021 (SUPERB, Interspeech).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from layerprobe.comparison.arrays import NUMBERS, Layer, Rows
from layerprobe.probing.estimators import FEATURES, Fit
from layerprobe.probing.probes import Fitted, Problem
from layerprobe.probing.ridge import Array, solved
from layerprobe.probing.scaling import Scale, standard
from layerprobe.scoring.probes import PENALTIES

ROWS, LEARNED = 2000, 2**26
"""Most rows for learning weights, and most numbers in all their layers."""
ROUNDS = 5
"""Number of alternations between fitting a probe on the weighted sum and weights on its outputs."""
HELD_OUT = 3
"""One of this many rows is held out for learning the weights."""


def weighted_sum(problem: Problem, layers: Sequence[Layer], report: Callable[[float], None]) -> tuple[Fitted, Array]:
    """Return the outputs of probes of the weighted sum of equally wide scaled layers, and the mean weights over folds.

    The finished share of the folds is reported.
    """
    learned: list[Array] = []
    outputs, swayed, penalties = [], [], []
    for folding, folds in enumerate(problem.foldings):
        by_fold = []
        for fold in range(problem.n_folds):
            report(len(learned) / (len(problem.foldings) * problem.n_folds))
            summed, weights, *_ = summed_layer(problem, layers, np.flatnonzero(folds != fold), seed=[folding, fold])
            learned.append(weights)
            by_fold.append(problem.outputs(summed, folds[None], [fold]))
        outputs.append(np.stack([fitted.outputs[0] for fitted in by_fold])[folds, np.arange(len(folds))])
        swayed.append(sum(fitted.swayed[0] for fitted in by_fold))
        penalties.append([fitted.penalties[0, fold] for fold, fitted in enumerate(by_fold)])
    fitted = Fitted(outputs=np.stack(outputs), swayed=np.stack(swayed), penalties=np.array(penalties))
    return fitted, np.mean(learned, axis=0)


def summed_layer(
    problem: Problem, layers: Sequence[Layer], train: NDArray[np.intp], *, seed: Sequence[int]
) -> tuple[Layer, Array, Array, Array]:
    """Learn the weights of scaled layers on some rows, which standardise the features.

    Returns:
        The (n, d) weighted sum; its (layers,) weights; and (layers, d) means and standard deviations of the features,
        infinite for a constant feature.
    """
    most = min(ROWS, max(LEARNED // sum(layer.shape[1] for layer in layers), 10))
    items = np.random.default_rng(seed).permutation(train)[:most]
    stack = np.stack([layer.rows(items) for layer in layers])
    means, spreads = map(np.stack, zip(*map(standard, stack), strict=True))
    stack -= means[:, None]
    stack /= spreads[:, None]
    weights = _weights(problem, stack, items)
    factors = weights[:, None] / spreads

    def read(rows: Rows) -> NDArray[Any]:
        total: Array = -(means * factors).sum(axis=0)
        for layer, factor in zip(layers, factors, strict=True):
            total = total + factor * layer.rows(rows)
        return total

    n, width = layers[0].shape
    rows_of = read(slice(0, n)).__getitem__ if n * width <= NUMBERS else read
    return Layer(name="weighted sum", shape=(n, width), read=rows_of), weights, means, spreads


def fit_weighted_sum(problem: Problem, layers: Sequence[Layer], scales: Sequence[Scale], penalties: Array) -> Fit:
    """Return a probe of the weighted sum, fitted on all rows, for the features of all layers side by side."""
    summed, by_layer, means, spreads = summed_layer(problem, layers, np.arange(len(problem.targets)), seed=[0, 0])
    fit = problem.fit(summed, penalties)
    slopes = fit.weights / fit.scale[:, None]
    raw = zip(scales, means, np.where(np.isinf(spreads), 0, spreads), strict=True)
    means, spreads = map(np.concatenate, zip(*(scale.undone(*of) for scale, *of in raw), strict=True))
    weights = np.concatenate([weight * slopes for weight in by_layer])
    # for pairs, first texts come before second texts, and so do their features
    parts = FEATURES[fit.pairs](*np.ones((2, 1, 1))).shape[1] if fit.pairs else 1
    order = np.arange(len(means)).reshape(len(layers), parts, -1).swapaxes(0, 1).ravel()
    scale, weights = np.where(spreads == 0, 1, spreads)[order], np.where(spreads[:, None] == 0, 0, weights)[order]
    return replace(fit, mean=means[order], scale=scale, weights=weights, bias=fit.bias - fit.mean @ slopes)


def _weights(problem: Problem, stack: Array, items: NDArray[np.intp]) -> Array:
    """Alternately fit ridge regression on the weighted sum of most rows, and weights on its outputs for the rest."""
    targets = problem.targets[items]
    numbers = np.eye(int(problem.targets.max()) + 1)[targets] if problem.kind == "classes" else targets
    numbers = numbers.reshape(len(items), -1).astype(np.float64)
    numbers = numbers - numbers.mean(axis=0)
    held_out, logits, width = slice(0, -(-len(items) // HELD_OUT)), np.zeros(len(stack)), stack.shape[2]
    rest = slice(held_out.stop, None)
    for _ in range(ROUNDS):
        z = np.column_stack([np.tensordot(softmax(logits), stack, 1), np.ones(len(items)), numbers])
        train, check = z[rest].T @ z[rest], z[held_out].T @ z[held_out]
        fit = min(solved(train, width, PENALTIES[1::2]), key=lambda tried: np.vdot(tried, check @ tried))
        by_layer = stack[:, held_out] @ fit[:width]
        logits = _fitted_logits(by_layer.reshape(len(stack), -1).T, (numbers[held_out] - fit[width]).ravel(), logits)
    weights: Array = softmax(logits)
    return weights


def _fitted_logits(by_layer: Array, targets: Array, logits: Array) -> Array:
    """Return the logits of the weights whose sum of the layers' outputs, (n, layers), is closest to targets, (n,)."""
    products, pull, size = by_layer.T @ by_layer, by_layer.T @ targets, float(targets @ targets) or 1.0

    def loss(logits: Array) -> tuple[float, Array]:
        weights = softmax(logits)
        value = (weights @ products @ weights - 2 * weights @ pull) / size
        slope = 2 * (products @ weights - pull) / size
        return float(value), weights * (slope - weights @ slope)

    fitted: Array = minimize(loss, logits, jac=True, method="L-BFGS-B").x
    return fitted
