"""Linear models of the rows of a layer: scaling, ridge regression across folds, logistic regression. Knows arrays.

Rows are first divided by powers of two and centred, so that results do not depend on shift and unit.

Ridge regression needs only products of the rows, so that memory does not grow with the samples. For each fold, z z'
with z = (x, 1, y) is summed in one pass over the rows. Products of a training set are sums of these, from which the
regression on standardised features follows,

    beta = (S^-1 C S^-1 + penalty I)^-1 S^-1 c,

with C and c the centred products of the features with themselves and with the targets, and S the standard deviations.
The squared error on any fold follows as well, so that the penalty is chosen by leaving out one more fold. A
second pass predicts each row by the regression fitted without its fold. With penalty p the result equals
scikit-learn's `Ridge(alpha=p)` on features standardised on the training set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv
from scipy.special import softmax

from layerprobe.comparison.arrays import NUMBERS, Layer
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.process import without_warnings
from layerprobe.scoring.probes import LOGIT_VARIANCE, NEVER, PENALTIES, STEPS, logistic_features, ridge_features

Array = NDArray[np.float64]
CONSTANT = 1e-6
"""Deviation over the root mean square up to which a feature counts as constant."""
FLOAT32_FROM = 100_000
"""Number of rows from which block products use float32; their sums always use float64."""
REFITTED = 2**19
"""Numbers in the rows of fits that are computed together."""
FEATURES: dict[str, Callable[..., NDArray[Any]]] = {"logistic": logistic_features, "ridge": ridge_features}
"""Features from the embeddings of two texts."""
VARIANCES = (0.1, 1.0, LOGIT_VARIANCE, 100.0)
"""Prior variances of a logit in logistic regression, the strongest penalty first."""


# ---- rows on one scale -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scale:
    """Shift and divisors of (n, d) rows: scaled values neither overflow nor underflow.

    Multiplications by powers of two are exact, so that rows and rows times a power of two are scaled to equal values.
    """

    exponents: NDArray[np.intc]
    """Values over 2 to these exponents, (d,), are between -1 and 1."""
    mean: Array
    """Means of these values, (d,)."""
    spreads: NDArray[np.intc]
    """Deviations from the means over 2 to these exponents, (d,), are between -1 and 1."""

    @classmethod
    def of(cls, parts: Callable[[], Iterable[NDArray[Any]]]) -> Scale:
        """Return the scale of rows in parts, which are read twice; DegenerateLayerError if all rows are equal."""
        ends = np.array([(part.min(axis=0), part.max(axis=0)) for part in parts()], dtype=np.float64)
        low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
        exponents = np.frexp(np.maximum(np.abs(low), np.abs(high)))[1]
        low, high = np.ldexp(low, -exponents), np.ldexp(high, -exponents)
        counts, sums = 0, np.zeros(len(low))
        for part in parts():
            sums += np.ldexp(part.astype(np.float64), -exponents).sum(axis=0)
            counts += len(part)
        if (low == high).all():
            raise DegenerateLayerError(f"it is the same for all {counts:,} samples")
        mean = np.where(low == high, low, sums / counts)
        return cls(exponents=exponents, mean=mean, spreads=np.frexp(np.maximum(high - mean, mean - low))[1])

    def __call__(self, rows: NDArray[Any]) -> Array:
        """Return (n, d) rows in float64, each deviation between -1 and 1."""
        values = rows.astype(np.float64)
        np.ldexp(values, -self.exponents, out=values)
        values -= self.mean
        return np.ldexp(values, -self.spreads, out=values)

    def undone(self, mean: Array, spread: Array) -> tuple[Array, Array]:
        """Return the means and standard deviations, (d,), of scaled rows in the original unit."""
        raw = np.ldexp(self.mean + np.ldexp(mean, self.spreads), self.exponents)
        return raw, np.ldexp(spread, self.spreads + self.exponents)


def scaled(layer: Layer, *, shifted: bool) -> tuple[Layer, Scale]:
    """Return an (n, d) layer whose rows are scaled when read, and cached if they are few.

    Without shift, all features have the same exponent and keep their means, so that cosines do not change.

    Raises:
        DegenerateLayerError: If all rows are equal, or a value is not finite.
    """
    scale = Scale.of(lambda: (block for _, block in layer.blocks()))
    if not shifted:
        largest = np.full_like(scale.exponents, scale.exponents.max())
        scale = Scale(exponents=largest, mean=np.zeros_like(scale.mean), spreads=np.zeros_like(scale.spreads))
    n, width = layer.shape
    if n * width <= NUMBERS:
        return replace(layer, read=scale(layer.rows(slice(0, n))).__getitem__), scale
    return replace(layer, read=lambda rows: scale(layer.rows(rows))), scale


def standard(rows: Array) -> tuple[Array, Array]:
    """Return the means and standard deviations, (d,), of scaled rows; infinite for a constant feature."""
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    return mean, np.where(spread <= CONSTANT * np.abs(mean), np.inf, spread)


# ---- ridge regression ------------------------------------------------------------------------------------------------


def fold_products(layer: Layer, targets: Array, foldings: NDArray[np.intp], n_folds: int) -> Array:
    """Return (foldings, folds, d + 1 + m, d + 1 + m) sums of z z' over each fold, from one pass over the rows.

    The (n, d) features and (n, m) targets are near 1; foldings are (foldings, n).
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
        return sum(products[fold] for fold in folds if fold not in left_out)

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
    return weights @ others.T + (centre - np.einsum("sd,sd->s", mean, weights))[:, None]


# ---- fitted on all rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A linear probe: ((x - mean) / scale) @ weights + bias is the target, or the logits."""

    mean: Array
    """Means of the features, (d,)."""
    scale: Array
    """Standard deviations, (d,); 1 for constant features, whose weights are 0."""
    weights: Array
    """(d, m)."""
    bias: Array
    """(m,)."""
    penalties: Array
    """`alpha` of ridge regression, or `C` of logistic regression for each label."""
    classes: NDArray[Any]
    """Names of the classes in the order of the logits; empty for scores."""
    pairs: str = ""
    """Name in `FEATURES`, if rows represent two texts."""

    arrays: ClassVar = ("mean", "scale", "weights", "bias", "penalties")
    """Arrays that a file contains, besides the names."""

    def probabilities(self, rows: NDArray[Any]) -> Array:
        """Return (n, classes) probabilities of logistic regression; for two, `weights` are those of the second."""
        logits = (rows - self.mean) / self.scale @ self.weights + self.bias
        if len(self.classes) == 2:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        return softmax(logits, axis=1)

    def before(self, scale: Scale) -> Fit:
        """Return the probe for rows before a scale."""
        mean, deviation = scale.undone(self.mean, self.scale)
        return replace(self, mean=mean, scale=deviation)

    def pipeline(self, kind: str) -> Any:
        """Return a fitted `Pipeline` for scores, classes or labels."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multioutput import MultiOutputClassifier
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler

        width = {"n_features_in_": len(self.mean)}
        pairs, scaler = FunctionTransformer(pair_features, kw_args={"features": self.pairs}), StandardScaler()
        vars(scaler).update(width, mean_=self.mean, scale_=self.scale)
        if kind == "scores":
            model: Any = Ridge(alpha=float(self.penalties[0]))
            vars(model).update(width, coef_=self.weights[:, 0], intercept_=self.bias[0])
        else:
            models = [LogisticRegression(C=float(penalty)) for penalty in self.penalties]
            for label, model in enumerate(models):
                part = slice(None) if kind == "classes" else [label]
                vars(model).update(width, coef_=self.weights.T[part], intercept_=self.bias[part], classes_=self.classes)
            if kind == "labels":
                model = MultiOutputClassifier(LogisticRegression())
                vars(model).update(width, estimators_=models, classes_=[self.classes] * len(models))
        return Pipeline([*([("pairs", pairs)] if self.pairs else []), ("scale", scaler), (kind, model)])


def logistic(
    rows: NDArray[Any],
    classes: NDArray[np.intp],
    penalty: float | None = None,
    *,
    inner: NDArray[np.bool_] | None = None,
) -> Fit:
    """Fit logistic regression on (n, d) rows, features divided by their standard deviations; a single class is certain.

    Without a penalty, `C`, the (n,) inner rows are fitted to choose it by the log loss of the others: penalties are
    weakened until the loss increases.
    """
    from sklearn.linear_model import LogisticRegression  # takes a second to load

    mean, spread = standard(rows)
    rows, present, loss, width = (rows - mean) / spread, np.unique(classes), np.inf, rows.shape[1]
    weights, bias = np.zeros((width, 1)), np.array([-NEVER * (2 * present[0] - 1)])
    # by then predictions no longer change, even if the gradient is not yet small enough
    with without_warnings():
        if inner is not None and len(np.unique(classes[inner])) > 1 and not inner.all():
            path = LogisticRegression(max_iter=STEPS, warm_start=True)
            for variance in VARIANCES:
                path.set_params(C=variance / width).fit(rows[inner], classes[inner])
                if (tried := _log_loss(path, rows[~inner], classes[~inner])) >= loss:
                    break
                loss, penalty = tried, variance / width
        penalty = VARIANCES[0] / width if penalty is None else penalty
        if len(present) > 1:  # warm start only with all classes
            model = LogisticRegression(C=penalty, max_iter=STEPS).fit(rows, classes)
            weights, bias = model.coef_.T, model.intercept_
    scale = np.where(np.isinf(spread), 1, spread)
    return Fit(mean=mean, scale=scale, weights=weights, bias=bias, penalties=np.array([penalty]), classes=present)


def _log_loss(model: Any, rows: NDArray[Any], classes: NDArray[np.intp]) -> float:
    """Return the mean of -log p of the true class, with p at least 1e-6 for classes unknown to the model."""
    probabilities = model.predict_proba(rows)
    place = np.searchsorted(model.classes_, classes).clip(max=len(model.classes_) - 1)
    of_true = np.where(model.classes_[place] == classes, probabilities[np.arange(len(rows)), place], 0)
    return float(-np.log(np.maximum(of_true, 1e-6)).mean())


def pair_features(rows: NDArray[Any], *, features: str) -> NDArray[Any]:
    """Return a probe's features from (n, 2 d) embeddings of first and second texts, side by side."""
    return FEATURES[features](*np.split(np.asarray(rows), 2, axis=1))
