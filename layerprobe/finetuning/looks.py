"""When seeds are enough: how far an effect must lie from 0 if one looks again after every seed.

Knows Student's t and how its values follow each other; knows no runs.

A t interval after every seed errs more often than its level says: 10 % instead of 5 % over three looks. Here the
share of error is spent over the looks, little of it early, so that all intervals together cover the effect at the
level (a group-sequential design with repeated confidence intervals).

Source: Lan and DeMets 1983, Biometrika 70, 659-663 (spending); Jennison and Turnbull 1989, JRSS B 51, 305-361
(repeated intervals).
"""

import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

FIRST_LOOK = 3
"""Seeds before the first look: with two, Student's t has one degree of freedom and its tails settle nothing."""
SPENDING_POWER = 5
"""Error is spent as (looks' seeds / planned seeds) ** 5; the last interval of five seeds is then 7 % wider."""
SAME = 1e-9
"""Values whose standard deviation is no larger are the same but for rounding."""
_LEAST = 1e-6
_ANGLES = 2000


def looks(planned: int) -> tuple[int, ...]:
    """Return after how many seeds there is a look: each from the third on, and the last."""
    return tuple(range(FIRST_LOOK, planned + 1)) or (planned,)


@functools.cache
def critical_values(planned: int, level: float) -> dict[int, float]:
    """Return how many standard errors the interval of each look reaches to either side.

    Of independent normal samples, with t_k about the true mean,

        P(|t_k| <= c_k at every look k) = level,

    and the first look beyond is one of the first k seeds with probability (1 - level) (k / planned)^5.

    Computed from the law of the t of k - 1 samples given that of k, t_(k-1) = sqrt((k-2)/k) (t_k - b) / sqrt(1 - b^2):
    b is the last sample's part in the deviations, of density ~ (1 - b^2)^((k-4)/2).

    Returns:
        By look, see `looks`; infinity where no error worth speaking of is spent. A single look has Student's t.

    Example:
        >>> {k: round(c, 1) for k, c in critical_values(5, 0.95).items()}
        {3: 16.0, 4: 5.2, 5: 3.0}
    """
    alpha, spent = 1 - level, 0.0
    tails = np.geomspace(_LEAST * alpha / 10, 1.0, 600)  # two-sided p-values: the grid on which t is known
    critical: dict[int, float] = {}
    reached, grid = np.ones_like(tails), np.empty(0)  # P(no look before was beyond | t)
    for k in looks(planned):
        before, grid = grid, stats.t.isf(tails / 2, k - 1)
        if critical:
            reached = _still_open(k, grid, before, reached, critical[k - 1])
        share = alpha * (k / planned) ** SPENDING_POWER - spent
        if share < _LEAST * alpha:
            critical[k] = float("inf")
            continue
        pieces = np.diff(tails) * (reached[1:] + reached[:-1]) / 2
        beyond = np.concatenate([[tails[0] * reached[0]], tails[0] * reached[0] + np.cumsum(pieces)])
        tail = np.interp(share, beyond, tails)
        critical[k] = float(stats.t.isf(tail / 2, k - 1))
        spent += share
    return critical


def interval_at_look(values: Sequence[float], level: float, *, planned: int) -> tuple[float, float] | None:
    """Return the interval of the mean of the seeds so far; those of all looks together cover it at the level.

    None where there is no look after n seeds, or none of the error is spent at it, and where the values are the same
    and more seeds are to come: counts, such as accuracy, agree by chance, which Student's t knows nothing of.
    """
    n = len(values)
    reach = critical_values(planned, level).get(n, math.inf) if n > 1 else math.inf
    if math.isinf(reach):
        return None
    spread = statistics.stdev(values)
    if spread <= SAME and n < planned:
        return None
    mean, half = statistics.fmean(values), reach * spread / math.sqrt(n)
    return mean - half, mean + half


def _still_open(k: int, grid: Array, before: Array, reached: Array, limit: float) -> Array:
    """Return, for each t of k samples in `grid`, from large to 0, the probability that no look was beyond its limit.

    `before` is the grid of k - 1 samples, `reached` the same probability there, and `limit` that of their look.
    """
    angles = (np.arange(_ANGLES) + 0.5) / _ANGLES * np.pi - np.pi / 2  # b = sin(angle)
    weights = np.cos(angles) ** (k - 3)
    weights /= weights.sum()
    earlier = np.abs(np.sqrt((k - 2) / k) * (grid[:, None] - np.sin(angles)) / np.cos(angles))
    open_ = np.interp(earlier, before[::-1], reached[::-1]) * (earlier <= limit)
    result: Array = open_ @ weights
    return result
