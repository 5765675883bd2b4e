"""Searches the weights of an average. Knows a score as a function, neither outputs nor tasks."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Score = Callable[[Array], float]
"""(k,) weights of at least 0 that add up to 1 -> the score of the average, higher is better."""

PARTS = 20
"""Weights are whole numbers of such parts, or of fewer: validation splits tell no finer ones apart."""


def line_search(score: Score) -> Array:
    """Return the best weights of two, of all from 0 and 1 to 1 and 0 in steps of 1 / `PARTS`.

    Of equals one by itself is taken, which costs less, and the first; of averages alone the most even.

    Examples:
        >>> line_search(lambda weights: -abs(weights[0] - 0.3)).round(12).tolist()
        [0.3, 0.7]
    """
    parts = [PARTS, 0, *sorted(range(1, PARTS), key=lambda part: abs(2 * part - PARTS))]
    choices = [np.array([part, PARTS - part]) / PARTS for part in parts]
    return max(choices, key=score)


def greedy_selection(score: Score, k: int) -> Array:
    """Return weights of k by forward selection with replacement.

    It begins with nothing and adds, again and again, the one whose addition scores best, one that is in already among
    them; after `PARTS` additions, the ones up to where the score was highest count, each as often as it was added.

    Source: Caruana, Niculescu-Mizil, Crew and Ksikes 2004 (ICML), section 2.2.

    Examples:
        >>> greedy_selection(lambda weights: -np.abs(weights - [0.5, 0.0, 0.5]).sum(), 3).tolist()
        [0.5, 0.0, 0.5]
    """
    counts, best, highest = np.zeros(k), np.zeros(k), -np.inf
    for size in range(1, PARTS + 1):
        scores = [score((counts + one) / size) for one in np.eye(k)]
        counts[int(np.argmax(scores))] += 1
        if max(scores) > highest:
            highest, best = max(scores), counts / size
    return best
