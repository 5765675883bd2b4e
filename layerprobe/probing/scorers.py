"""Scorers of scikit-learn on outputs that are there already. Knows arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.names import nearest, quoted
from layerprobe.probing.scaling import Scale

Scorer = Callable[[Any, Any, Any], float]
"""(estimator, rows, targets) -> the score, of which more is better."""


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


def predicting(outputs: NDArray[Any], *, labels: bool, classes: NDArray[Any] | None, unit: Scale | None) -> Any:
    """Return an estimator of scikit-learn that predicts outputs of items, whose numbers are its rows.

    Args:
        outputs: (n,) on the scale of `unit`, (n, classes) or (n, labels) probabilities.
        labels: Whether they are of several labels.
        classes: Names of the classes; None for scores.
        unit: Of scores; None where they are as they were given.
    """
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Regressed(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def predict(self, rows: NDArray[np.intp]) -> NDArray[Any]:
            values = outputs[rows[:, 0]]
            return values if unit is None else unit.undone(values, values)[0]

    class Classified(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        classes_ = classes

        def predict(self, rows: NDArray[np.intp]) -> NDArray[Any]:
            values = self.predict_proba(rows)
            return (values >= 0.5).astype(int) if labels or classes is None else classes[values.argmax(axis=1)]

        def predict_proba(self, rows: NDArray[np.intp]) -> NDArray[Any]:
            values: NDArray[Any] = outputs[rows[:, 0]]
            return values

    return Regressed() if classes is None else Classified()
