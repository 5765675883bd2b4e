"""Probes as estimators of scikit-learn: fitted on all rows, or of outputs that a scorer reads. Knows arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.names import nearest, quoted
from layerprobe.scoring.probes import logistic_features, ridge_features

Array = NDArray[np.float64]
Scorer = Callable[[Any, Any, Any], float]
"""(estimator, rows, targets) -> the score, of which more is better."""
FEATURES: dict[str, Callable[..., NDArray[Any]]] = {"logistic": logistic_features, "ridge": ridge_features}
"""What is made of the embeddings of two texts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A linear probe: ((x - mean) / scale) @ weights + bias is the target, or the logits."""

    mean: Array
    """(d,) of the features."""
    scale: Array
    """(d,) standard deviations; 1 for features that are the same everywhere, whose weights are 0."""
    weights: Array
    """(d, m)."""
    bias: Array
    """(m,)."""
    penalties: Array
    """`alpha` of ridge regression, or `C` of logistic regression for each label."""
    classes: NDArray[Any]
    """Names of the classes in the order of the logits; empty for scores."""
    pairs: str = ""
    """Name in `FEATURES`, where rows are of two texts."""

    arrays: ClassVar = ("mean", "scale", "weights", "bias", "penalties")
    """What a file has of it, beside the names."""

    def pipeline(self, kind: str) -> Any:
        """Return a fitted `Pipeline` for scores, classes or labels."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multioutput import MultiOutputClassifier
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler

        width = {"n_features_in_": len(self.mean)}
        pairs, scaler = FunctionTransformer(features_of_pairs, kw_args={"features": self.pairs}), StandardScaler()
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


def features_of_pairs(rows: NDArray[Any], *, features: str) -> NDArray[Any]:
    """Return what a probe sees of (n, 2 d) embeddings of first and second texts, side by side."""
    return FEATURES[features](*np.split(np.asarray(rows), 2, axis=1))


def scorer_of(scoring: Any, *, usual: Sequence[str]) -> Scorer:
    """Return a scorer by its name, or a callable as it is; DataError if it is none."""
    from sklearn.metrics import check_scoring, get_scorer_names

    try:
        if not (isinstance(scoring, str) or callable(scoring)):
            raise ValueError("it is no name and cannot be called")
        scorer: Scorer = check_scoring(None, scoring)
    except ValueError as error:
        names = (*usual, *get_scorer_names())
        reason = nearest(scoring, names) if isinstance(scoring, str) else f": {quoted(str(error), 300)}"
        raise DataError(
            f"expected scoring as one of {', '.join(usual)}, a name of sklearn.metrics.get_scorer_names(), or a "
            f"callable of (estimator, rows, targets), got {quoted(scoring)}{reason}"
        ) from error
    return scorer


def predicting(outputs: NDArray[Any], *, labels: bool, classes: NDArray[Any] | None) -> Any:
    """Return an estimator that predicts outputs of items, whose numbers are its rows.

    Args:
        outputs: (n,) scores, (n, classes) or (n, labels) probabilities.
        labels: Whether they are of several labels.
        classes: Names of the classes; None for scores.
    """
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Outputs(RegressorMixin if classes is None else ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        classes_ = classes

        def predict_proba(self, rows: NDArray[np.intp]) -> NDArray[Any]:
            return outputs[rows[:, 0]]

        def predict(self, rows: NDArray[np.intp]) -> NDArray[Any]:
            values = self.predict_proba(rows)
            if labels:
                return (values >= 0.5).astype(int)
            return values if classes is None else classes[values.argmax(axis=1)]

    return Outputs()
