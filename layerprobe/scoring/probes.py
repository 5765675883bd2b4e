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
"""Prior variance of a probe's logits: the L2 penalty corresponds to weights with this variance over the features."""
NEVER = -1e9
"""Logit of a class without training examples."""
PENALTIES = tuple(10.0**power for power in range(0, 7))
"""Penalties for the cross-validation; features have a standard deviation of 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """The features of embeddings, and the model fitted on them."""

    kept: str
    """Name of its scores in the store."""
    version: int
    """Version, raised when its numbers change."""
    features: Callable[[NDArray[np.float32], NDArray[np.float32] | None], NDArray[Any]]
    """Function from (n, width) embeddings of first and second texts (None for single ones) to (n, features)."""
    fit: Callable[[NDArray[Any], Array, NDArray[Any]], Array]
    """Function from (n, features) of the train split, (n,) targets and (m, features) to outputs for the latter."""


def logistic_features(u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return u, or (u, v, |u - v|)."""
    return u if v is None else np.concatenate([u, v, np.abs(u - v)], axis=1)


def logistic_probe(train: NDArray[np.float32], targets: Array, features: NDArray[np.float32]) -> Array:
    """Fit logistic regression and return its probabilities for other features, (m, highest class + 1, at least 2).

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
    """Fit `logistic_probe` and return its weights for unscaled features, for use by other code.

    A class that is not among the targets never has the highest logit.

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
        two = len(present) == 2  # scikit-learn then has one row, the difference
        rows = np.concatenate([0 * model.coef_, model.coef_]) if two else model.coef_
        weights[:, present] = (rows / spread).T
        bias[present] = np.append(0, model.intercept_) if two else model.intercept_
        bias[present] -= mean @ weights[:, present]
    return weights.astype(np.float32), bias.astype(np.float32)


def _logistic(train: NDArray[np.float32], targets: NDArray[Any]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    """Return logistic regression fitted on standardised features, with their means and standard deviations."""
    from sklearn.linear_model import LogisticRegression  # takes a second to load

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread == 0] = 1.0  # a constant feature
    # after so many steps predictions no longer change, even if the gradient is not small enough yet
    with without_warnings():
        model = LogisticRegression(C=LOGIT_VARIANCE / train.shape[1], max_iter=STEPS)
        model.fit((train - mean) / spread, targets.astype(int))
    return model, mean, spread


def ridge_features(u: NDArray[np.float32], v: NDArray[np.float32] | None) -> Array:
    """Return u, or (|u - v|, u * v), which does not depend on the order of the texts."""
    first, second = u.astype(np.float64), None if v is None else v.astype(np.float64)
    return first if second is None else np.concatenate([np.abs(first - second), first * second], axis=1)


def ridge_probe(train: Array, targets: Array, features: Array) -> Array:
    """Fit ridge regression and return its output for other features.

    Each feature is divided by its standard deviation in `train`; the penalty is chosen by leave-one-out.
    """
    from sklearn.linear_model import RidgeCV  # takes a second to load

    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread <= np.finfo(np.float32).eps * np.abs(mean)] = 1.0  # a constant feature
    model = RidgeCV(alphas=PENALTIES).fit((train - mean) / spread, targets)
    return model.predict((features - mean) / spread)


LOGISTIC = Probe(kept="probes", version=PROBE_VERSION, features=logistic_features, fit=logistic_probe)
RIDGE = Probe(kept="sts-probes", version=STS_PROBE_VERSION, features=ridge_features, fit=ridge_probe)
