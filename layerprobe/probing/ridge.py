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

from layerprobe.comparison.arrays import Layer
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

    def slopes(self, weights: Array, bias: float, by_y: float, by_fit: float, constant: float) -> tuple[Array, float]:
        """Return the sums over rows of g x and of g = by_y y + by_fit (x weights + bias) + constant, of one target."""
        fit_x, fit = self.xx @ weights + bias * self.x, float(self.x @ weights) + self.n * bias
        g = by_y * float(self.y[0]) + by_fit * fit + constant * self.n
        return by_y * self.xy[:, 0] + by_fit * fit_x + constant * self.x, g

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
    """
    n, width = layer.shape
    shape, m = (len(foldings), n_folds), targets.shape[1]
    dtype: type[np.floating[Any]] = np.float64 if n < FLOAT32_FROM else np.float32
    shift, xx = np.zeros(width), np.zeros((*shape, width, width))
    x, xy = np.zeros((*shape, width)), np.zeros((*shape, width, m))
    for where, block in layer.blocks():
        if where.start == 0:
            shift = block.mean(axis=0, dtype=np.float64)
        rows, block_targets = (block - shift).astype(dtype), targets[where]
        for place in np.ndindex(shape):
            chosen = foldings[place[0], where] == place[1]
            part = rows[chosen]
            x[place] += part.sum(axis=0, dtype=np.float64)
            xx[place] += part.T @ part
            xy[place] += part.T.astype(np.float64) @ block_targets[chosen]
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


def solved(sums: Sums, penalties: Iterable[float] = PENALTIES, pull: Array | None = None) -> list[tuple[Array, Array]]:
    """Return weights of the shifted features, (d, m), and bias, (m,), by penalty.

    With another `pull`, (d, m), than the products with the targets, the weights are what the same matrix makes of it.
    """
    mean_x, mean_y = sums.x / sums.n, sums.y / sums.n
    products = sums.xx - sums.n * np.outer(mean_x, mean_x)
    pull = sums.xy - sums.n * np.outer(mean_x, mean_y) if pull is None else pull
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RidgeFit:
    """Ridge regression of all folds but one."""

    train: Sums
    penalty: float
    weights: Array
    bias: Array


def chosen_fits(sums: list[Sums], predicted: Iterable[int]) -> dict[int, RidgeFit]:
    """Return, by fold, the fit on all others.

    The error of a penalty is that on each of the other folds of the regression on the rest; both are left out together,
    so that a pair of folds is one fit.
    """
    folds, fits = range(len(sums)), {}

    @functools.cache
    def without(*pair: int) -> list[tuple[Array, Array]]:
        return solved(Sums.of(sums[fold] for fold in folds if fold not in pair))

    for left_out in predicted:
        others = [fold for fold in folds if fold != left_out]
        errors = np.zeros(len(PENALTIES))
        for fold in others:
            path = without(min(fold, left_out), max(fold, left_out))
            errors += [sums[fold].squared_error(*fit) for fit in path]
        best = int(errors.argmin())
        train = Sums.of(sums[fold] for fold in others)
        ((weights, bias),) = solved(train, PENALTIES[best : best + 1])
        fits[left_out] = RidgeFit(train=train, penalty=PENALTIES[best], weights=weights, bias=bias)
    return fits


def pulls(sums: list[Sums], fits: dict[int, RidgeFit]) -> tuple[Array, Array]:
    """Return the factors that give the influence of a training row on the correlation, except its residual.

    A fit moves by A^-1 (x - mean) e with the weight of a training row of residual e, and the correlation of all outputs
    by the sum over the rows that the fit predicts of its derivative g times that: e ((x - mean) u + G / n), with
    u = A^-1 sum g (x - mean) and G = sum g. The derivative, g_i = (y_i - r p_i) / (n s_p) of standardised y and p, is a
    sum of y, p and a constant, so that sums of rows have all of it.

    Returns:
        (folds, d) u and (folds,) G / n - mean u, 0 for folds without a fit.
    """
    width, whole = len(sums[0].x), Sums.of(sums)
    of_x, constants = np.zeros((len(sums), width)), np.zeros(len(sums))
    moments = np.zeros(3)
    for fold, fit in fits.items():
        of_fold, weights, bias = sums[fold], fit.weights[:, 0], float(fit.bias[0])
        linear = float(of_fold.x @ weights)
        moments += (
            linear + of_fold.n * bias,
            float(weights @ of_fold.xx @ weights) + 2 * bias * linear + of_fold.n * bias**2,
            float(of_fold.xy[:, 0] @ weights) + bias * float(of_fold.y[0]),
        )
    n = sum(sums[fold].n for fold in fits)
    y, mean = float(whole.y[0]) / whole.n, moments[0] / n
    deviation, of_y = np.sqrt(max(moments[1] / n - mean**2, 0)), np.sqrt(float(whole.yy[0]) / whole.n - y**2)
    if deviation == 0:
        return of_x, constants
    r = (moments[2] / n - mean * y) / (deviation * of_y)
    by_y, by_fit = 1 / (deviation * of_y) / whole.n, -r / deviation**2 / whole.n
    for fold, fit in fits.items():
        centre = fit.train.x / fit.train.n
        rows, g = sums[fold].slopes(fit.weights[:, 0], float(fit.bias[0]), by_y, by_fit, -by_y * y - by_fit * mean)
        ((moved, _),) = solved(fit.train, [fit.penalty], (rows - g * centre)[:, None])
        of_x[fold], constants[fold] = moved[:, 0], g / fit.train.n - centre @ moved[:, 0]
    return of_x, constants


def ridge_outputs(
    layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int, predicted: Collection[int]
) -> tuple[Array, Array, Array]:
    """Return cross-validated outputs of ridge regression: each row by a fit without its fold.

    Args:
        layer: (n, d).
        targets: (n, m).
        foldings: (foldings, n) folds.
        n_folds: Of each.
        predicted: Folds whose rows are predicted.

    Returns:
        (foldings, n, m) outputs, NaN in other folds; (foldings, n) influences of each row, as one to train on, on
        Pearson's correlation of one target with its outputs, 0 where there are several; and (foldings, folds)
        penalties.
    """
    centre = targets.mean(axis=0)
    sums, shift = fold_sums(layer, targets - centre, foldings, n_folds)
    shape, (n, m) = (len(foldings), n_folds), targets.shape
    penalties = np.full(shape, np.nan)
    weights, bias = np.zeros((*shape, layer.shape[1], m)), np.full((*shape, m), np.nan)
    of_x, constants = np.zeros((*shape, layer.shape[1])), np.zeros(shape)
    for folding, of_folding in enumerate(sums):
        fits = chosen_fits(of_folding, predicted)
        for fold, fit in fits.items():
            weights[folding, fold], bias[folding, fold] = fit.weights, fit.bias
            penalties[folding, fold] = fit.penalty
        if m == 1:
            of_x[folding], constants[folding] = pulls(of_folding, fits)
    flat = weights.transpose(2, 0, 1, 3).reshape(layer.shape[1], -1)
    outputs, swayed = np.empty((len(foldings), n, m)), np.zeros((len(foldings), n))
    for where, block in layer.blocks():
        rows, block_targets = block - shift, targets[where] - centre
        values = (rows @ flat).reshape(len(block), *bias.shape) + bias
        if m == 1:
            residuals = block_targets[:, None] - np.nan_to_num(values[..., 0])
            through = residuals * (np.einsum("nd,skd->nsk", rows, of_x, optimize=True) + constants)
            trained = foldings[:, where].T[..., None] != np.arange(n_folds)
            swayed[:, where] = n * (through * trained).sum(axis=2).T
        for folding, folds in enumerate(foldings):
            outputs[folding, where] = values[np.arange(len(block)), folding, folds[where]]
    outputs += centre
    return outputs, swayed, penalties


def refitted(rows: NDArray[Any], targets: Array, others: NDArray[Any], penalty: float) -> Array:
    """Fit ridge regression of (n,) targets on (n, d) rows as `ridge_outputs` does; return outputs for other rows."""
    rows, others = rows.astype(np.float64), others.astype(np.float64)
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    spread[spread <= 1e-6 * np.abs(mean)] = np.inf
    rows, others = (rows - mean) / spread, (others - mean) / spread
    wide = rows.shape[1] > len(rows)
    products = rows @ rows.T if wide else rows.T @ rows
    products[np.diag_indices_from(products)] += penalty
    centred = targets - targets.mean()
    solution = cho_solve(cho_factor(products, overwrite_a=True), centred if wide else rows.T @ centred)
    outputs: Array = targets.mean() + others @ (rows.T @ solution if wide else solution)
    return outputs
