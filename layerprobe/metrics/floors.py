"""What a metric gives to whoever reads nothing: the floor that a score stands beside. Knows numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The score of a trivial answer on the same items."""

    value: float
    """x 100."""
    by: str
    """The answer, as in "always naming the largest class"."""


LARGEST_CLASS = "always naming the largest class"


def class_floors(gold: ArrayLike) -> dict[str, Floor]:
    """Return the floors of accuracy and macro F1, of one class for all items: the largest.

    With a share p of the largest of C classes, accuracy is p and macro F1 2p / ((1 + p) C).

    Args:
        gold: (n,) the class of each item.

    Examples:
        >>> {name: round(floor.value, 1) for name, floor in class_floors([0, 0, 0, 1]).items()}
        {'accuracy': 75.0, 'macro f1': 42.9}
    """
    counts = np.unique(np.asarray(gold), return_counts=True)[1]
    share = float(counts.max() / counts.sum())
    values: Sequence[tuple[str, float]] = (("accuracy", share), ("macro f1", 2 * share / (1 + share) / len(counts)))
    return {name: Floor(value=100 * value, by=LARGEST_CLASS) for name, value in values}
