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
from scipy.linalg.lapack import dposv

from layerprobe.comparison.arrays import Layer
from layerprobe.errors import DataError
from layerprobe.probing.scaling import CONSTANT
from layerprobe.scoring.probes import PENALTIES

Array = NDArray[np.float64]
Folds = NDArray[np.intp]
"""(n,) the fold of each row, from 0."""
FLOAT32_FROM = 100_000
"""Rows from which products within a block are made in float32; their sums are in float64 always."""
REFITTED = 2**19
"""Numbers of the rows of fits that are made at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums over rows of features x and targets y, which are near 0 and 1, see `layerprobe.probing.scaling`."""

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


def fold_sums(layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int) -> list[list[Sums]]:
    """Return the sums of every fold of every folding, from one pass over the rows.

    Args:
        layer: (n, d).
        targets: (n, m), of mean 0.
        foldings: (foldings, n) folds.
        n_folds: Of each.
    """
    n, width = layer.shape
    shape, m = (len(foldings), n_folds), targets.shape[1]
    dtype: type[np.floating[Any]] = np.float64 if n < FLOAT32_FROM else np.float32
    x, xx, xy = np.zeros((*shape, width)), np.zeros((*shape, width, width)), np.zeros((*shape, width, m))
    for where, block in layer.blocks():
        rows, block_targets = block.astype(dtype, copy=False), targets[where]
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
    return sums


def solved(sums: Sums, penalties: Iterable[float] = PENALTIES, pull: Array | None = None) -> list[tuple[Array, Array]]:
    """Return weights of the features, (d, m), and bias, (m,), by penalty.

    With another `pull`, (d, m), than the products with the targets, the weights are what the same matrix makes of it.
    """
    mean_x, mean_y = sums.x / sums.n, sums.y / sums.n
    products = sums.xx - sums.n * np.outer(mean_x, mean_x)
    pull = sums.xy - sums.n * np.outer(mean_x, mean_y) if pull is None else pull
    deviation = np.sqrt(np.maximum(np.diagonal(products), 0) / sums.n)
    scale = np.where(deviation <= CONSTANT * np.sqrt(np.diagonal(sums.xx) / sums.n), np.inf, deviation)
    products, pull = products / scale / scale[:, None], pull / scale[:, None]
    fits = []
    for penalty in penalties:
        curvature = products.copy()
        curvature.ravel()[:: len(curvature) + 1] += penalty
        _, solution, failed = dposv(curvature.T, pull, overwrite_a=True)  # it is its own transpose, in Fortran's order
        if failed:
            raise DataError(f"ridge regression with penalty {penalty:g} has no solution")
        weights = solution / scale[:, None]
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
    sums = fold_sums(layer, targets - centre, foldings, n_folds)
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
        block_targets = targets[where] - centre
        values = (block @ flat).reshape(len(block), *bias.shape) + bias
        if m == 1:
            residuals = block_targets[:, None] - np.nan_to_num(values[..., 0])
            through = residuals * (np.einsum("nd,skd->nsk", block, of_x, optimize=True) + constants)
            trained = foldings[:, where].T[..., None] != np.arange(n_folds)
            swayed[:, where] = n * (through * trained).sum(axis=2).T
        for folding, folds in enumerate(foldings):
            outputs[folding, where] = values[np.arange(len(block)), folding, folds[where]]
    outputs += centre
    return outputs, swayed, penalties


def refitted(rows: Array, kept: NDArray[np.bool_], targets: Array, others: Array, penalty: float) -> Array:
    """Fit ridge regression as `ridge_outputs` does, on some of the rows at a time.

    Args:
        rows: (n, d).
        kept: (fits, n) rows that each is fitted on.
        targets: (n,).
        others: (m, d).
        penalty: Of all of them.

    Returns:
        (fits, m) outputs for the other rows.
    """
    step = max(1, REFITTED // rows.size)
    if len(kept) > step:
        parts = (kept[start : start + step] for start in range(0, len(kept), step))
        return np.concatenate([refitted(rows, part, targets, others, penalty) for part in parts])
    shares = kept / kept.sum(axis=1, keepdims=True)
    mean, centre = shares @ rows, shares @ targets
    spread = np.sqrt(np.maximum(shares @ rows**2 - mean**2, 0))
    spread[spread <= CONSTANT * np.abs(mean)] = np.inf
    z = (rows - mean[:, None]) / spread[:, None] * kept[..., None]
    y, flipped = ((targets - centre[:, None]) * kept)[..., None], z.swapaxes(1, 2)
    wide = rows.shape[1] > len(rows)
    products = z @ flipped if wide else flipped @ z
    products.reshape(len(kept), -1)[:, :: products.shape[1] + 1] += penalty
    weights = flipped @ np.linalg.solve(products, y) if wide else np.linalg.solve(products, flipped @ y)
    weights = weights[..., 0] / spread
    outputs: Array = weights @ others.T + (centre - np.einsum("sd,sd->s", mean, weights))[:, None]
    return outputs
