"""Probes that are fitted on all rows: as pipelines of scikit-learn, and as arrays. Knows no targets and no layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.scoring.probes import logistic_features, ridge_features

Array = NDArray[np.float64]
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

    parts: ClassVar = ("mean", "scale", "weights", "bias", "penalties")

    @property
    def arrays(self) -> dict[str, Array]:
        """Its numbers by name."""
        return {part: np.ascontiguousarray(getattr(self, part)) for part in self.parts}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], classes: list[Any], pairs: str) -> Fit:
        """Return the probe that `arrays` and the names of the classes are of."""
        return cls(**arrays, classes=np.array(classes), pairs=pairs)

    def pipeline(self, kind: str) -> Any:
        """Return a fitted `Pipeline` for scores, classes or labels."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multioutput import MultiOutputClassifier
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler

        with np.errstate(over="ignore"):  # nothing reads the variance
            scaler = _set(StandardScaler(), mean_=self.mean, scale_=self.scale, var_=self.scale**2)
        if kind == "scores":
            model = _set(Ridge(alpha=float(self.penalties[0])), coef_=self.weights[:, 0], intercept_=self.bias[0])
        else:
            parts = [slice(None)] if kind == "classes" else [slice(i, i + 1) for i in range(len(self.penalties))]
            models = [
                _set(
                    LogisticRegression(C=float(penalty)),
                    coef_=self.weights.T[part],
                    intercept_=self.bias[part],
                    classes_=self.classes,
                    n_iter_=np.ones(1, np.int32),
                )
                for penalty, part in zip(self.penalties, parts, strict=True)
            ]
            several = MultiOutputClassifier(LogisticRegression())
            labels = {"estimators_": models, "classes_": [self.classes] * len(models)}
            model = models[0] if kind == "classes" else _set(several, **labels)
        for step in (scaler, model, *getattr(model, "estimators_", ())):
            step.n_features_in_ = len(self.mean)
        pairs = FunctionTransformer(features_of_pairs, kw_args={"features": self.pairs})
        steps = [("scale", scaler), (kind, model)]
        return Pipeline([("pairs", pairs), *steps] if self.pairs else steps)


def _set(estimator: Any, **fitted: Any) -> Any:
    for name, value in fitted.items():
        setattr(estimator, name, value)
    return estimator


def features_of_pairs(rows: NDArray[Any], *, features: str) -> NDArray[Any]:
    """Return what a probe sees of (n, 2 d) embeddings of first and second texts, side by side."""
    first, second = np.split(np.asarray(rows), 2, axis=1)
    made: NDArray[Any] = FEATURES[features](first, second)
    return made
