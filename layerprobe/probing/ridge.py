"""Ridge regression across folds from products of the rows: memory does not grow with the samples.

For each fold, z z' with z = (x, 1, y) is summed in one pass over the rows. Products of a training set are sums of
these, from which the regression on standardised features follows,

    beta = (S^-1 C S^-1 + penalty I)^-1 S^-1 c,

with C and c the centred products of the features with themselves and with the targets, and S the standard deviations.
The squared error on any fold follows as well, so that the penalty is chosen by leaving out one more fold. A
second pass predicts each row by the regression fitted without its fold. With penalty p the result equals
scikit-learn's `Ridge(alpha=p)` on features standardised on the training set.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from layerprobe.comparison.arrays import Layer
from layerprobe.errors import DataError
from layerprobe.probing.scaling import CONSTANT
from layerprobe.scoring.probes import PENALTIES

Array = NDArray[np.float64]
FLOAT32_FROM = 100_000
"""Number of rows from which block products use float32; their sums always use float64."""
REFITTED = 2**19
"""Numbers in the rows of fits that are computed together."""


def fold_products(layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int) -> Array:
    """Return (foldings, folds, d + 1 + m, d + 1 + m) sums of z z' over each fold, from one pass over the rows.

    The (n, d) features and (n, m) targets are near 1, see `layerprobe.probing.scaling`; foldings are (foldings, n).
    """
    n, width = layer.shape
    dtype: type[np.floating[Any]] = np.float64 if n < FLOAT32_FROM else np.float32
    rest = np.column_stack([np.ones(n), targets])
    size = width + rest.shape[1]
    products = np.zeros((len(foldings), n_folds, size, size))
    for where, block in layer.blocks():
        rows = block.astype(dtype, copy=False)
        for folding, fold in np.ndindex(products.shape[:2]):
            chosen, of_fold = foldings[folding, where] == fold, products[folding, fold]
            x, others = rows[chosen], rest[where][chosen]
            of_fold[:width, :width] += x.T @ x
            of_fold[:width, width:] += x.T.astype(np.float64) @ others
            of_fold[width:, width:] += others.T @ others
    products[..., width:, :width] = products[..., :width, width:].swapaxes(2, 3)
    return products


def solved(
    products: Array, width: int, penalties: Iterable[float] = PENALTIES, pull: Array | None = None
) -> list[Array]:
    """Return the regressions on rows with these products, by penalty; their squared error is <B, products B>.

    With `pull`, (d, m), it replaces the products with the targets.

    Returns:
        B, (d + 1 + m, m): weights of the features, bias, and -1 for the target itself, so that z B is the residual.
    """
    n, m = products[width, width], len(products) - width - 1
    mean, mean_y = products[width, :width] / n, products[width, width + 1 :] / n
    curvature = products[:width, :width] - n * np.outer(mean, mean)
    pull = products[:width, width + 1 :] - n * np.outer(mean, mean_y) if pull is None else pull
    scale = deviations(products, width)
    scale[scale == 0] = np.inf
    curvature, pull = curvature / scale / scale[:, None], pull / scale[:, None]
    fits = []
    for penalty in penalties:
        matrix = curvature.copy()
        matrix.ravel()[:: width + 1] += penalty
        _, solution, failed = dposv(matrix.T, pull, overwrite_a=True)  # symmetric, so its transpose is in Fortran order
        if failed:
            raise DataError(f"ridge regression with penalty {penalty:g} has no solution")
        weights = solution / scale[:, None]
        fits.append(np.concatenate([weights, (mean_y - mean @ weights)[None], -np.eye(m)]))
    return fits


def deviations(products: Array, width: int) -> Array:
    """Return the standard deviations of the features, (d,); 0 for those that are constant up to rounding."""
    n, squares = products[width, width], np.diagonal(products)[:width]
    deviation: Array = np.sqrt(np.maximum(squares - products[width, :width] ** 2 / n, 0) / n)
    return np.where(deviation <= CONSTANT * np.sqrt(squares / n), 0, deviation)


def chosen_fits(products: Array, width: int, predicted: Iterable[int]) -> dict[int, tuple[float, Array, Array]]:
    """Return, by fold, the penalty, the fit and the products of all other folds.

    The error of a penalty is that of regressions on the remaining folds for each of the other folds; both are left out
    together, so that a pair of folds needs one fit.
    """
    folds, fits = range(len(products)), {}

    def without(*left_out: int) -> Array:
        total: Array = sum(products[fold] for fold in folds if fold not in left_out)
        return total

    @functools.cache
    def path(*pair: int) -> list[Array]:
        return solved(without(*pair), width)

    for left_out in predicted:
        errors = np.zeros(len(PENALTIES))
        for fold in folds:
            if fold != left_out:
                errors += [np.vdot(fit, products[fold] @ fit) for fit in path(*sorted((fold, left_out)))]
        penalty, train = PENALTIES[int(errors.argmin())], without(left_out)
        fits[left_out] = penalty, solved(train, width, [penalty])[0], train
    return fits


def pulls(products: Array, width: int, fits: dict[int, tuple[float, Array, Array]]) -> Array:
    """Return the factors of a training row's influence on the correlation, except its residual.

    A fit changes by A^-1 (x - mean) e with the weight of a training row with residual e, and the correlation of all
    outputs by the sum, over the rows the fit predicts, of its derivative g times that: e ((x - mean) u + G / n), with
    u = A^-1 sum g (x - mean) and G = sum g. The derivative, g_i = (y_i - r p_i) / (n s_p) of standardised y and p, is
    linear in z, so that products of rows contain all of it.

    Returns:
        (folds, d + 1) u and G / n - mean u, 0 for folds without a fit.
    """
    factors, moments, n = np.zeros((len(products), width + 1)), np.zeros(3), 0.0
    outputs = {fold: np.append(fit[:-1, 0], 0) for fold, (_, fit, _) in fits.items()}
    for fold, output in outputs.items():
        with_z = products[fold] @ output
        moments += with_z[-2], output @ with_z, with_z[-1]
        n += products[fold, -2, -2]
    whole = products[:, -2:, -2:].sum(axis=0)
    y, mean = whole[0, 1] / whole[0, 0], moments[0] / n
    deviation, of_y = np.sqrt(max(moments[1] / n - mean**2, 0)), np.sqrt(whole[1, 1] / whole[0, 0] - y**2)
    if deviation == 0:
        return factors
    r = (moments[2] / n - mean * y) / (deviation * of_y)
    by_y, by_output = 1 / (deviation * of_y) / whole[0, 0], -r / deviation**2 / whole[0, 0]
    for fold, (penalty, _, train) in fits.items():
        derivative = by_output * outputs[fold]
        derivative[-2:] += -by_y * y - by_output * mean, by_y
        g, centre = products[fold] @ derivative, train[-2, :width] / train[-2, -2]
        (moved,) = solved(train, width, [penalty], (g[:width] - g[-2] * centre)[:, None])
        factors[fold, :-1] = moved[:width, 0]
        factors[fold, -1] = g[-2] / train[-2, -2] - centre @ moved[:width, 0]
    return factors


def ridge_outputs(
    layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int, predicted: Collection[int]
) -> tuple[Array, Array, Array]:
    """Return cross-validated outputs of ridge regression: each row of some folds predicted without its fold.

    Returns:
        (foldings, n, m) outputs, NaN in folds that are not predicted; (foldings, n) influences of each row, as a
        training row, on Pearson's correlation of one target with its outputs, 0 if there are several; and (foldings,
        folds) penalties.
    """
    centre, width, (n, m) = targets.mean(axis=0), layer.shape[1], targets.shape
    products = fold_products(layer, targets - centre, foldings, n_folds)
    penalties = np.full((len(foldings), n_folds), np.nan)
    coefficients, factors = np.zeros((*penalties.shape, width + 1, m)), np.zeros((*penalties.shape, width + 1))
    coefficients[..., -1, :] = np.nan
    for folding, of_folding in enumerate(products):
        fits = chosen_fits(of_folding, width, predicted)
        for fold, (penalty, fit, _) in fits.items():
            penalties[folding, fold] = penalty
            coefficients[folding, fold] = fit[: width + 1]
        if m == 1:
            factors[folding] = pulls(of_folding, width, fits)
    outputs, swayed = np.empty((len(foldings), n, m)), np.zeros((len(foldings), n))
    for where, block in layer.blocks():
        folds = foldings[:, where].T[..., None]
        values = np.tensordot(block, coefficients[..., :-1, :], (1, 2)) + coefficients[..., -1, :]
        if m == 1:
            residuals = (targets[where] - centre)[:, None] - np.nan_to_num(values[..., 0])
            through = residuals * (np.tensordot(block, factors[..., :-1], (1, 2)) + factors[..., -1])
            swayed[:, where] = n * (through * (folds != np.arange(n_folds))).sum(axis=2).T
        outputs[:, where] = np.take_along_axis(values, folds[..., None], axis=2)[:, :, 0].swapaxes(0, 1)
    return outputs + centre, swayed, penalties


def refitted(rows: Array, included: NDArray[np.bool_], targets: Array, others: Array, penalty: float) -> Array:
    """Fit ridge regression like `ridge_outputs` on subsets of the (n, d) rows, (fits, n) `included`.

    Returns:
        (fits, m) outputs for the (m, d) other rows.
    """
    step = max(1, REFITTED // rows.size)
    if len(included) > step:
        parts = (included[start : start + step] for start in range(0, len(included), step))
        return np.concatenate([refitted(rows, part, targets, others, penalty) for part in parts])
    shares = included / included.sum(axis=1, keepdims=True)
    mean, centre = shares @ rows, shares @ targets
    spread = np.sqrt(np.maximum(shares @ rows**2 - mean**2, 0))
    spread[spread <= CONSTANT * np.abs(mean)] = np.inf
    z = (rows - mean[:, None]) / spread[:, None] * included[..., None]
    y, flipped = ((targets - centre[:, None]) * included)[..., None], z.swapaxes(1, 2)
    wide = rows.shape[1] > len(rows)
    products = z @ flipped if wide else flipped @ z
    products.reshape(len(included), -1)[:, :: products.shape[1] + 1] += penalty
    weights = flipped @ np.linalg.solve(products, y) if wide else np.linalg.solve(products, flipped @ y)
    weights = weights[..., 0] / spread
    outputs: Array = weights @ others.T + (centre - np.einsum("sd,sd->s", mean, weights))[:, None]
    return outputs
