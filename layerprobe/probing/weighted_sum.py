"""The learned weighted sum of layers as one embedding. Knows arrays.

The rows of each layer are brought to mean 0 and variance 1 first. Weights are learned on the rows of the folds that are
not left out, of which some thousand are drawn; probes then see the sum as they see a layer.

Source: weights that are a softmax over normalised layers: Yang et al. 2021 (SUPERB, Interspeech; s3prl).
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from layerprobe.comparison.arrays import Layer, Rows
from layerprobe.probing.probes import Fitted, Problem, normalised
from layerprobe.probing.ridge import Array, Sums, solved
from layerprobe.scoring.probes import PENALTIES

ROWS, NUMBERS = 2000, 2**26
"""Rows that weights are learned on at most, and numbers of all their layers."""
ROUNDS = 5
"""Of fitting a probe on the weighted sum and weights on its outputs in turn."""
HELD_OUT = 3
"""One row in so many is held out when weights are learned."""


def weighted_sum(problem: Problem, layers: Sequence[Layer]) -> tuple[Fitted, Array]:
    """Return the outputs of probes of the weighted sum of layers of one width, and the mean weights over folds."""
    learned: list[Array] = []

    def layer_of(folding: int, fold: int) -> Layer:
        train = np.flatnonzero(problem.foldings[folding] != fold)
        most = min(ROWS, max(NUMBERS // sum(layer.shape[1] for layer in layers), 10))
        items = np.random.default_rng([folding, fold]).permutation(train)[:most]
        learned.append(_weights(problem, layers, items))
        return _summed(layers, learned[-1])

    return problem.combined(layer_of), np.mean(learned, axis=0)


def _summed(layers: Sequence[Layer], weights: Array) -> Layer:
    def read(rows: Rows) -> NDArray[Any]:
        parts = (weight * normalised(layer.rows(rows)) for layer, weight in zip(layers, weights, strict=True))
        return functools.reduce(np.add, parts)

    return Layer(name="weighted sum", shape=layers[0].shape, read=read)


def _weights(problem: Problem, layers: Sequence[Layer], items: NDArray[np.intp]) -> Array:
    """Fit ridge regression on the weighted sum of most rows, then weights on its outputs for the rest, in turn."""
    stack = np.stack([normalised(layer.rows(items)) for layer in layers])
    targets = problem.targets[items]
    numbers = np.eye(int(problem.targets.max()) + 1)[targets] if problem.kind == "classes" else targets
    numbers = numbers.reshape(len(items), -1).astype(np.float64)
    numbers = numbers - numbers.mean(axis=0)
    held_out = np.arange(len(items)) % HELD_OUT == 0
    logits = np.zeros(len(layers))
    for _ in range(ROUNDS):
        summed = np.tensordot(softmax(logits), stack, 1)
        coefficients, bias = _best_fit(summed, numbers, held_out)
        by_layer = stack[:, held_out] @ coefficients
        logits = _fitted_logits(by_layer.reshape(len(stack), -1).T, (numbers[held_out] - bias).ravel(), logits)
    weights: Array = softmax(logits)
    return weights


def _best_fit(rows: NDArray[Any], targets: Array, held_out: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return ridge regression of the rows that are not held out, with the penalty that is best for the others."""
    sums = [
        Sums(
            n=float(len(x)),
            x=x.sum(axis=0, dtype=np.float64),
            xx=(x.T @ x).astype(np.float64),
            y=y.sum(axis=0),
            xy=x.T @ y,
            yy=np.square(y).sum(axis=0),
        )
        for x, y in ((rows[part], targets[part]) for part in (~held_out, held_out))
    ]
    return min(solved(sums[0], PENALTIES[1::2]), key=lambda fit: sums[1].squared_error(*fit))


def _fitted_logits(by_layer: Array, targets: Array, logits: Array) -> Array:
    """Return the logits of weights whose sum of the layers' outputs, (n, layers), comes nearest to targets, (n,)."""
    products, pull, size = by_layer.T @ by_layer, by_layer.T @ targets, float(targets @ targets) + 1e-300

    def loss(logits: Array) -> tuple[float, Array]:
        weights = softmax(logits)
        value = (weights @ products @ weights - 2 * weights @ pull) / size
        slope = 2 * (products @ weights - pull) / size
        return float(value), weights * (slope - weights @ slope)

    fitted: Array = minimize(loss, logits, jac=True, method="L-BFGS-B").x
    return fitted
