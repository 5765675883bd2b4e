"""Linear models of frozen embeddings, fitted on the train split. Knows arrays and scikit-learn, no tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.process import without_warnings
from layerprobe.versions import PROBE_VERSION, STS_PROBE_VERSION

Array = NDArray[np.float64]

STEPS = 1000
LOGIT_VARIANCE = 10.0
"""Of a probe's logits under its prior: the L2 penalty is that of weights with this variance over the features."""
NEVER = -1e9
"""The logit of a class that no training example has."""
PENALTIES = tuple(10.0**power for power in range(0, 7))
"""The cross-validation chooses among them; features have a standard deviation of 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """How embeddings become features, and what is fitted on them."""

    kept: str
    """Where the store has its scores."""
    version: int
    """Raised where its numbers change."""
    features: Callable[[NDArray[np.float32], NDArray[np.float32] | None], NDArray[Any]]
    """(n, width) embeddings of first and of second texts, None for single ones -> (n, features)."""
    fit: Callable[[NDArray[Any], Array, NDArray[Any]], Array]
    """(n, features) of the train split, (n,) targets, (m, features) -> outputs for the latter."""


def logistic_features(u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return u, or (u, v, |u - v|)."""
    return u if v is None else np.concatenate([u, v, np.abs(u - v)], axis=1)


def logistic_probe(train: NDArray[np.float32], targets: Array, features: NDArray[np.float32]) -> Array:
    """Fit logistic regression and return its probabilities for other features, (m, classes up to the highest, or 2).

    Each feature is divided by its standard deviation in `train`; the L2 penalty is scikit-learn's with
    C = 10 / features. Targets are class numbers; one that does not occur has probability 0.
    """
    present = np.unique(targets.astype(int))
    outputs = np.zeros((len(features), max(2, int(present[-1]) + 1)))
    if len(present) == 1:
        outputs[:, present] = 1
    else:
        model, mean, spread = _logistic(train, targets)
        outputs[:, present] = model.predict_proba((features - mean) / spread)
    return outputs


def logistic_weights(
    train: NDArray[np.float32], targets: NDArray[np.intp], n_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fit `logistic_probe` and return its weights for unscaled features, so that other code can apply them.

    A class that is not among the targets is never the highest.

    Returns:
        (width, classes) and (classes,): features @ weights + bias are logits.
    """
    weights = np.zeros((train.shape[1], n_classes))
    bias = np.full(n_classes, NEVER)
    present = np.unique(targets)
    if len(present) == 1:
        bias[present] = 0
    else:
        model, mean, spread = _logistic(train, targets)
        two = len(present) == 2  # of which scikit-learn has one row, the difference
        rows = np.concatenate([0 * model.coef_, model.coef_]) if two else model.coef_
        weights[:, present] = (rows / spread).T
        bias[present] = np.append(0, model.intercept_) if two else model.intercept_
        bias[present] -= mean @ weights[:, present]
    return weights.astype(np.float32), bias.astype(np.float32)


def _logistic(train: NDArray[np.float32], targets: NDArray[Any]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    """Return logistic regression, fitted on features less their mean over their standard deviation, and these."""
    from sklearn.linear_model import LogisticRegression  # takes a second to load

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread == 0] = 1.0  # a feature that is the same everywhere says nothing
    # after so many steps the predictions no longer change, even where the gradient is not yet small enough
    with without_warnings():
        model = LogisticRegression(C=LOGIT_VARIANCE / train.shape[1], max_iter=STEPS)
        model.fit((train - mean) / spread, targets.astype(int))
    return model, mean, spread


def ridge_features(u: NDArray[np.float32], v: NDArray[np.float32] | None) -> Array:
    """Return u, or (|u - v|, u * v), which does not depend on which text comes first."""
    first, second = u.astype(np.float64), None if v is None else v.astype(np.float64)
    return first if second is None else np.concatenate([np.abs(first - second), first * second], axis=1)


def ridge_probe(train: Array, targets: Array, features: Array) -> Array:
    """Fit ridge regression and return its output for other features.

    Each feature is divided by its standard deviation in `train`; the penalty is chosen by leave-one-out.
    """
    from sklearn.linear_model import RidgeCV  # takes a second to load

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread <= np.finfo(np.float32).eps * np.abs(mean)] = 1.0  # a feature that is the same everywhere
    model = RidgeCV(alphas=PENALTIES).fit((train - mean) / spread, targets)
    outputs: Array = model.predict((features - mean) / spread)
    return outputs


LOGISTIC = Probe(kept="probes", version=PROBE_VERSION, features=logistic_features, fit=logistic_probe)
RIDGE = Probe(kept="sts-probes", version=STS_PROBE_VERSION, features=ridge_features, fit=ridge_probe)
