"""Probes fitted on all rows, as estimators of scikit-learn. Knows arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from layerprobe.probing.scaling import standard
from layerprobe.process import without_warnings
from layerprobe.scoring.probes import LOGIT_VARIANCE, NEVER, STEPS, logistic_features, ridge_features

Array = NDArray[np.float64]
FEATURES: dict[str, Callable[..., NDArray[Any]]] = {"logistic": logistic_features, "ridge": ridge_features}
"""Features from the embeddings of two texts."""
VARIANCES = (0.1, 1.0, LOGIT_VARIANCE, 100.0)
"""Prior variances of a logit in logistic regression, the strongest penalty first."""


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
        probabilities: Array = softmax(logits, axis=1)
        return probabilities

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
