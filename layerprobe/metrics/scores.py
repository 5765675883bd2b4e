"""How well outputs predict the targets of a task: correlations, F1, average precision, accuracy.

Knows arrays of outputs and targets; knows no models.
"""

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.correlation import pearson, spearman

Array = NDArray[np.float64]


def correlations(outputs: Array, targets: Array) -> dict[str, float]:
    """Return the correlations of (n,) outputs with (n,) gold scores; DataError if either is constant."""
    return {"spearman": spearman(outputs, targets), "pearson": pearson(outputs, targets)}


def fit_scores(outputs: Array, targets: Array) -> dict[str, float]:
    """Return the correlations of (n,) outputs with (n,) targets, and R2, the share of variance explained.

    R2 = 1 - sum (output - target)^2 / sum (target - mean)^2, at most 1; negative where the mean would be nearer.
    """
    scores = correlations(outputs, targets)
    return {**scores, "r2": 1 - float(np.square(outputs - targets).sum() / np.square(targets - targets.mean()).sum())}


def class_scores(outputs: Array, targets: Array) -> dict[str, float]:
    """Return macro F1 and accuracy of (n, classes) outputs, of which the highest wins, on (n,) class numbers."""
    predicted = outputs.argmax(axis=1)
    return {"macro f1": macro_f1(predicted, targets), "accuracy": float(np.mean(predicted == targets))}


def decision_scores(outputs: Array, targets: Array, threshold: float) -> dict[str, float]:
    """Return F1, average precision and accuracy of (n,) outputs, positive from the threshold on."""
    predicted = outputs >= threshold
    return {
        "f1": f1(predicted, targets == 1),
        "average precision": average_precision(outputs, targets),
        "accuracy": float(np.mean(predicted == (targets == 1))),
    }


def f1(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """Return 2 TP / (predicted positives + true positives), 0 .. 1; 0 where there are neither.

    Examples:
        >>> f1(np.array([True, True, False]), np.array([True, False, False]))
        0.6666666666666666
    """
    whole = int(predicted.sum()) + int(true.sum())
    return 2 * int((predicted & true).sum()) / whole if whole else 0.0


def macro_f1(predicted: NDArray[np.intp], targets: Array) -> float:
    """Return the mean of F1 over the classes that are predicted or true somewhere, 0 .. 1."""
    classes = np.union1d(predicted, targets)
    return float(np.mean([f1(predicted == number, targets == number) for number in classes]))


def average_precision(outputs: Array, targets: Array) -> float:
    """Return sum over thresholds of (recall_k - recall_(k-1)) precision_k, 0 .. 1."""
    from sklearn.metrics import average_precision_score  # takes a second to load

    return float(average_precision_score(targets, outputs))


def best_threshold(outputs: Array, targets: Array) -> float:
    """Return the threshold that maximises F1 of `outputs >= threshold`.

    It lies midway between two neighbouring outputs, or at the lowest one; of equals the highest is taken.

    Examples:
        >>> best_threshold(np.array([0.9, 0.2, 0.6, 0.4]), np.array([1.0, 0.0, 1.0, 0.0]))
        0.5
    """
    order = np.argsort(-outputs, kind="stable")
    falling, hits = outputs[order], np.cumsum(targets[order] == 1)
    scores = 2 * hits / (np.arange(1, len(falling) + 1) + hits[-1])
    last_of_equals = np.append(falling[1:] < falling[:-1], True)
    best = int(np.argmax(np.where(last_of_equals, scores, -1.0)))
    if best + 1 == len(falling):
        return float(falling[best])
    middle = float(falling[best] + falling[best + 1]) / 2
    return middle if middle > falling[best + 1] else float(falling[best])  # neighbouring floats have no middle
