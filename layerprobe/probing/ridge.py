"""Ridge regression across folds from sums and products of the rows: memory does not grow with the samples.

For each fold, n, sum x, sum x x', sum y, sum x y' and sum y^2 are added up in one pass over the rows. Those of a
training set are sums of them, from which the regression on standardised features follows,

    beta = (S^-1 C S^-1 + penalty I)^-1 S^-1 c,

with C and c the centred products of the features with themselves and with the targets, and S the standard deviations;
and so does the squared error on any fold, so that the penalty is chosen by leaving out one more fold at a time. A
second pass predicts each row by the regression that was fitted without its fold. With penalty p it is what
scikit-learn's `Ridge(alpha=p)` gives on features that were standardised on the training set.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from layerprobe.probing.arrays import Layer
from layerprobe.scoring.probes import PENALTIES

Array = NDArray[np.float64]
Folds = NDArray[np.intp]
"""(n,) the fold of each row, from 0."""
FLOAT32_FROM = 100_000
"""Rows from which products within a block are made in float32; their sums are in float64 always."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums over rows of features x and targets y, both less a shift that is the same for all."""

    n: float
    x: Array
    xx: Array
    y: Array
    xy: Array
    yy: Array

    @classmethod
    def of(cls, parts: Iterable[Sums]) -> Sums:
        """Return the sums over several sets of rows."""
        names = ("n", "x", "xx", "y", "xy", "yy")
        parts = list(parts)
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in names})

    def squared_error(self, weights: Array, bias: Array) -> float:
        """Return the sum of (y - x weights - bias)^2 over rows and targets."""
        quadratic = np.einsum("dm,dm->m", weights, self.xx @ weights)
        linear = np.einsum("dm,dm->m", weights, self.xy) + bias * self.y - bias * (self.x @ weights)
        return float((self.yy + quadratic - 2 * linear + self.n * bias**2).sum())


def fold_sums(layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int) -> tuple[list[list[Sums]], Array]:
    """Return the sums of every fold of every folding, from one pass over the rows, and the shift of the features.

    Args:
        layer: (n, d).
        targets: (n, m), of mean 0.
        foldings: (foldings, n) folds.
        n_folds: Of each.

    Raises:
        DegenerateLayerError: If a value is not finite.
    """
    n, width = layer.shape
    shape, m = (len(foldings), n_folds), targets.shape[1]
    dtype: type[np.floating[Any]] = np.float64 if n < FLOAT32_FROM else np.float32
    shift, xx = np.zeros(width), np.zeros((*shape, width, width))
    x, xy = np.zeros((*shape, width)), np.zeros((*shape, width, m))
    for where, block in layer.blocks():
        if where.start == 0:
            shift = block.mean(axis=0, dtype=np.float64)
        rows, own = (block - shift).astype(dtype), targets[where]
        for place in np.ndindex(shape):
            chosen = foldings[place[0], where] == place[1]
            part = rows[chosen]
            x[place] += part.sum(axis=0, dtype=np.float64)
            xx[place] += part.T @ part
            xy[place] += part.T.astype(np.float64) @ own[chosen]
    sums = []
    for folding, folds in enumerate(foldings):
        inside = [folds == fold for fold in range(n_folds)]
        sums.append(
            [
                Sums(
                    n=float(chosen.sum()),
                    x=x[folding, fold],
                    xx=xx[folding, fold],
                    y=targets[chosen].sum(axis=0),
                    xy=xy[folding, fold],
                    yy=np.square(targets[chosen]).sum(axis=0),
                )
                for fold, chosen in enumerate(inside)
            ]
        )
    return sums, shift


def solved(sums: Sums, penalties: Iterable[float] = PENALTIES) -> list[tuple[Array, Array]]:
    """Return weights of the shifted features, (d, m), and bias, (m,), by penalty."""
    mean_x, mean_y = sums.x / sums.n, sums.y / sums.n
    products = sums.xx - sums.n * np.outer(mean_x, mean_x)
    pull = sums.xy - sums.n * np.outer(mean_x, mean_y)
    deviation = np.sqrt(np.maximum(np.diagonal(products), 0) / sums.n)
    nothing = deviation <= 1e-6 * np.sqrt(
        np.diagonal(sums.xx) / sums.n + 1e-300
    )  # the same everywhere but for rounding
    scale = np.where(nothing, np.inf, deviation)
    products, pull = products / scale / scale[:, None], pull / scale[:, None]
    fits = []
    for penalty in penalties:
        curvature = products.copy()
        curvature[np.diag_indices_from(curvature)] += penalty
        factor = cho_factor(curvature, overwrite_a=True, check_finite=False)
        weights = cho_solve(factor, pull, check_finite=False) / scale[:, None]
        fits.append((weights, mean_y - mean_x @ weights))
    return fits


def chosen_fits(sums: list[Sums], wanted: Iterable[int]) -> dict[int, tuple[Array, Array, float]]:
    """Return, by fold, the fit on all others with its mean squared error across them, by which its penalty is chosen.

    The error of a penalty is that on each of the other folds of the regression on the rest; both are left out together,
    so that a pair of folds is one fit.
    """
    folds, fits = range(len(sums)), {}

    @functools.cache
    def without(*pair: int) -> list[tuple[Array, Array]]:
        return solved(Sums.of(sums[fold] for fold in folds if fold not in pair))

    for left_out in wanted:
        others = [fold for fold in folds if fold != left_out]
        errors = np.zeros(len(PENALTIES))
        for fold in others:
            path = without(min(fold, left_out), max(fold, left_out))
            errors += [sums[fold].squared_error(*fit) for fit in path]
        best = int(errors.argmin())
        train = Sums.of(sums[fold] for fold in others)
        ((weights, bias),) = solved(train, PENALTIES[best : best + 1])
        fits[left_out] = weights, bias, float(errors[best]) / train.n
    return fits


def ridge_outputs(
    layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int, wanted: Collection[int]
) -> tuple[Array, Array]:
    """Return what ridge regression gives for each row, fitted without the fold of the row.

    Args:
        layer: (n, d).
        targets: (n, m).
        foldings: (foldings, n) folds.
        n_folds: Of each.
        wanted: Folds whose rows are predicted.

    Returns:
        (foldings, n, m) outputs, NaN in other folds; and (foldings, folds) mean squared errors by which penalties were
        chosen, which know nothing of the fold that is left out.

    Raises:
        DegenerateLayerError: If a value is not finite.
    """
    centre = targets.mean(axis=0)
    sums, shift = fold_sums(layer, targets - centre, foldings, n_folds)
    losses, m = np.full((len(foldings), n_folds), np.nan), targets.shape[1]
    weights, bias = np.zeros((len(foldings), n_folds, layer.shape[1], m)), np.full((len(foldings), n_folds, m), np.nan)
    for folding, of_folding in enumerate(sums):
        for fold, (of_x, constant, loss) in chosen_fits(of_folding, wanted).items():
            weights[folding, fold], bias[folding, fold], losses[folding, fold] = of_x, constant, loss
    flat = weights.transpose(2, 0, 1, 3).reshape(layer.shape[1], -1)
    outputs = np.empty((len(foldings), *targets.shape))
    for where, block in layer.blocks():
        values = ((block - shift) @ flat).reshape(len(block), *bias.shape) + bias
        for folding, folds in enumerate(foldings):
            outputs[folding, where] = values[np.arange(len(block)), folding, folds[where]]
    outputs += centre
    return outputs, losses
