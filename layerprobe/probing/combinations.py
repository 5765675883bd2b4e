"""Several layers as one embedding: their mean, a learned weighted sum, two of them side by side. Knows arrays.

The rows of each layer are brought to mean 0 and variance 1 first. Whatever is learned or chosen is learned on the rows
of the folds that are not left out, of which some thousand are drawn; probes then see the features as those of a layer.

Source: the weighted sum, with weights that are a softmax over normalised layers: Yang et al. 2021 (SUPERB, Interspeech;
s3prl). A second layer that explains what the first leaves: Batra et al. 2026 (LOES, arXiv 2605.23033).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from layerprobe.comparison.arrays import Layer, Rows
from layerprobe.lazy import cached_property
from layerprobe.metrics.correlation import spearman
from layerprobe.probing.probes import Fitted, Problem, normalised
from layerprobe.probing.ridge import Array, Sums, solved
from layerprobe.scoring.probes import PENALTIES

ROWS, NUMBERS = 2000, 2**26
"""Rows that weights and pairs are learned on at most, and numbers of all their layers."""
ROUNDS = 5
"""Of fitting a probe on the weighted sum and weights on its outputs in turn."""
HELD_OUT = 3
"""One row in so many is held out when weights are learned."""


def weighted(layers: Sequence[Layer], weights: Array, name: str) -> Layer:
    """Return the weighted sum of normalised layers of one width."""

    def read(rows: Rows) -> NDArray[Any]:
        parts = (weight * normalised(layer.rows(rows)) for layer, weight in zip(layers, weights, strict=True))
        return functools.reduce(np.add, parts)

    return Layer(name=name, shape=layers[0].shape, read=read)


def side_by_side(first: Layer, second: Layer) -> Layer:
    """Return the features of two normalised layers."""
    shape = (first.shape[0], first.shape[1] + second.shape[1])
    return Layer(
        name=f"{first.name} and {second.name}",
        shape=shape,
        read=lambda rows: np.concatenate([normalised(layer.rows(rows)) for layer in (first, second)], axis=1),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Combinations:
    """Combinations of layers for a problem, one for every fold that is left out."""

    problem: Problem
    layers: tuple[Layer, ...]
    outputs: tuple[NDArray[Any], ...]
    """Of each layer, (foldings, n, ...)."""
    losses: Array
    """(layers, foldings, folds) by which penalties were chosen."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """The pairs that were chosen, one a folding and fold."""
    weights: list[Array] = field(default_factory=list)
    """The weights that were learned, likewise."""

    @cached_property
    def _targets(self) -> Array:
        """(n, m) numbers: scores, 0 and 1 of labels and classes."""
        targets = self.problem.targets
        if self.problem.kind == "classes":
            one_hot: Array = np.eye(int(targets.max()) + 1)[targets]
            return one_hot
        return targets.reshape(len(targets), -1).astype(np.float64)

    def weighted(self) -> Fitted:
        """Return the outputs of the learned weighted sum."""

        def layer_of(folding: int, fold: int) -> Layer:
            items = self._drawn(folding, fold)
            weights = self._pair_weights(items) if self.problem.kind == "pairs" else self._probe_weights(items)
            self.weights.append(weights)
            return weighted(self.layers, weights, "weighted sum")

        return self.problem.combined(layer_of)

    def mean(self) -> Fitted:
        """Return the outputs of the mean of all layers."""
        weights = np.full(len(self.layers), 1 / len(self.layers))
        return self.problem.outputs(weighted(self.layers, weights, "mean of all layers"))

    def two(self) -> Fitted:
        """Return the outputs of two layers side by side, the second chosen for what the first leaves."""
        choose = {"pairs": self._two_by_cosines, "queries": self._two_by_ranking}.get(
            self.problem.kind, self._two_by_probes
        )

        @functools.cache
        def concatenated(first: int, second: int) -> Layer:
            return side_by_side(self.layers[first], self.layers[second])

        def layer_of(folding: int, fold: int) -> Layer:
            first, second = sorted(choose(folding, fold))
            self.pairs.append((first, second))
            return concatenated(first, second)

        return self.problem.combined(layer_of)

    def _drawn(self, folding: int, fold: int) -> NDArray[np.intp]:
        """Return training items to learn on, drawn at random, in a random order."""
        train = np.flatnonzero(self.problem.foldings[folding] != fold)
        most = min(ROWS, max(NUMBERS // sum(layer.shape[1] for layer in self.layers), 10))
        return np.random.default_rng([folding, fold]).permutation(train)[:most]

    # ---- weights ----------------------------------------------------------------------------------------

    def _probe_weights(self, items: NDArray[np.intp]) -> Array:
        """Fit ridge regression on the weighted sum of most rows, then weights on its outputs for the rest, in turn."""
        stack = np.stack([normalised(layer.rows(items)) for layer in self.layers])
        targets = self._targets[items] - self._targets[items].mean(axis=0)
        held_out = np.arange(len(items)) % HELD_OUT == 0
        logits = np.zeros(len(self.layers))
        for _ in range(ROUNDS):
            summed = np.tensordot(softmax(logits), stack, 1)
            coefficients, bias = _best_fit(summed, targets, held_out)
            by_layer = stack[:, held_out] @ coefficients
            logits = _fitted_weights(by_layer.reshape(len(stack), -1).T, (targets[held_out] - bias).ravel(), logits)
        weights: Array = softmax(logits)
        return weights

    def _pair_weights(self, items: NDArray[np.intp]) -> Array:
        """Maximise Pearson's correlation of the cosines of weighted sums with the scores."""
        assert self.problem.rows is not None
        sides = self.problem.rows[items].T
        u, v = (np.stack([normalised(layer.rows(side)) for layer in self.layers], axis=1) for side in sides)
        across = u @ v.swapaxes(1, 2)
        products = (across + across.swapaxes(1, 2)) / 2, u @ u.swapaxes(1, 2), v @ v.swapaxes(1, 2)
        y = self.problem.targets[items]
        y = (y - y.mean()) / np.linalg.norm(y - y.mean())

        def loss(logits: Array) -> tuple[float, Array]:
            weights = softmax(logits)
            slopes = [2 * product @ weights for product in products]
            dot, first, second = (slope @ weights / 2 for slope in slopes)
            scale = np.sqrt(first * second)
            cosines = dot / scale
            by_weight = slopes[0] / scale[:, None] - cosines[:, None] / 2 * (
                slopes[1] / first[:, None] + slopes[2] / second[:, None]
            )
            centred = cosines - cosines.mean()
            norm = np.linalg.norm(centred) + 1e-12
            correlation = float(centred @ y / norm)
            slope = (y - correlation * centred / norm) @ (by_weight - by_weight.mean(axis=0)) / norm
            return -correlation, -_through_softmax(weights, slope)

        fitted: Array = softmax(minimize(loss, np.zeros(len(self.layers)), jac=True, method="L-BFGS-B").x)
        return fitted

    # ---- pairs ------------------------------------------------------------------------------------------

    def _two_by_probes(self, folding: int, fold: int) -> tuple[int, int]:
        """Take the layer with the lowest loss, and the one that best predicts its residuals by ridge regression."""
        first, items = int(self.losses[:, folding, fold].argmin()), self._drawn(folding, fold)
        targets = self._targets[items] - self._targets[items].mean(axis=0)
        held_out = np.arange(len(items)) % HELD_OUT == 0
        rows = normalised(self.layers[first].rows(items))
        coefficients, bias = _best_fit(rows, targets, held_out)
        left = targets - rows @ coefficients - bias
        losses = []
        for number, layer in enumerate(self.layers):
            rows = normalised(layer.rows(items))
            coefficients, bias = _best_fit(rows, left, held_out)
            error = left[held_out] - rows[held_out] @ coefficients - bias
            losses.append(np.inf if number == first else float(np.square(error).sum()))
        return first, int(np.argmin(losses))

    def _two_by_cosines(self, folding: int, fold: int) -> tuple[int, int]:
        """Take the layer of the highest Spearman correlation, and the one whose cosines add most."""
        train = self.problem.foldings[folding] != fold
        cosines, scores = np.stack([output[folding] for output in self.outputs])[:, train], self.problem.targets[train]
        first = int(np.argmax([spearman(of_layer, scores) for of_layer in cosines]))
        return first, _best_other(first, [spearman(cosines[first] + of_layer, scores) for of_layer in cosines])

    def _two_by_ranking(self, folding: int, fold: int) -> tuple[int, int]:
        """Take the layer of the highest nDCG@10 over queries, and the one that adds most."""
        train = self.problem.foldings[folding] != fold
        gains = self._by_query
        first = int(np.argmax([gains(number, number)[train].mean() for number in range(len(self.layers))]))
        others = range(len(self.layers))
        return first, _best_other(first, [gains(first, other)[train].mean() for other in others])

    @cached_property
    def _by_query(self) -> Callable[[int, int], Array]:
        """nDCG@10 of each query by a layer (its number twice) or by two layers."""

        @functools.cache
        def by_query(first: int, second: int) -> Array:
            if first == second:
                outputs = self.outputs[first][0]
            else:
                outputs = self.problem.outputs(side_by_side(self.layers[first], self.layers[second])).outputs[0]
            influences = self.problem.influences(outputs, "ndcg@10")
            return influences + self.problem.scores(outputs)["ndcg@10"]

        return by_query


def _best_other(first: int, scores: Sequence[float]) -> int:
    return int(np.argmax([-np.inf if number == first else score for number, score in enumerate(scores)]))


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


def _fitted_weights(by_layer: Array, targets: Array, logits: Array) -> Array:
    """Return the logits of weights whose sum of the layers' outputs, (n, layers), comes nearest to targets, (n,)."""
    products, pull, size = by_layer.T @ by_layer, by_layer.T @ targets, float(targets @ targets) + 1e-300

    def loss(logits: Array) -> tuple[float, Array]:
        weights = softmax(logits)
        value = (weights @ products @ weights - 2 * weights @ pull) / size
        return float(value), _through_softmax(weights, 2 * (products @ weights - pull) / size)

    fitted: Array = minimize(loss, logits, jac=True, method="L-BFGS-B").x
    return fitted


def _through_softmax(weights: Array, slope: Array) -> Array:
    """Return the derivative by logits from that by weights."""
    through: Array = weights * (slope - weights @ slope)
    return through
