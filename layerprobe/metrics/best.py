"""Scores with the covariance of their errors -> which may be the best, and how far below it each is at most.

One statement, true as a whole at its level. Let b be the truly best and d_b the quantile of the largest of
(e_j - e_b) / s_jb over all j, of the errors e and the standard errors s of differences. Where the largest is below d_b,

    b is among those j that no other is ahead of by more than d_j standard errors, and
    the best - j is at most the largest of y_i - y_j + d_i s_ij over all such i.

Source: multiple comparisons with the best: Hsu 1984 (Annals of Statistics 12); Edwards and Hsu 1983 (JASA 78); the
error of what was chosen: Berk et al. 2013 (Annals of Statistics 41).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

DRAWS = 20_000
"""Of the errors; a level of 95 % is then right to 0.2 points."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statement:
    """What is true as a whole at the level."""

    candidates: tuple[int, ...]
    """Numbers of the scores of which one is the best, ascending."""
    behind: tuple[float, ...]
    """By how much the best is ahead of each at most, at least 0."""


def state(scores: Array, covariance: Array, *, level: float, freedom: float, least: float = 0.0) -> Statement:
    """Compare scores with the best of them.

    Args:
        scores: (k,).
        covariance: (k, k) of their errors.
        level: With which all of the statement is true.
        freedom: Degrees of freedom of the covariance.
        least: The variance that a difference has at least.

    Examples:
        >>> state(np.array([70.0, 75.0, 74.9]), np.eye(3), level=0.95, freedom=1000).candidates
        (1, 2)
    """
    k, errors = len(scores), _drawn_errors(covariance, freedom)
    variances = np.diagonal(covariance)
    spread = np.sqrt(np.maximum(variances[:, None] + variances - 2 * covariance, least))
    spread[spread == 0] = np.finfo(float).tiny
    critical = np.zeros(k)
    for best in range(k):
        others = np.arange(k) != best
        if others.any():
            largest = ((errors[:, others] - errors[:, [best]]) / spread[best, others]).max(axis=1)
            # of one comparison at least, also where differences have no error but the least
            critical[best] = max(float(np.quantile(largest, level)), float(stats.t.ppf(level, freedom)))
    ahead = scores[:, None] - scores  # of row over column
    candidates = np.flatnonzero((ahead <= critical * spread).all(axis=0))
    bounds = (ahead + critical[:, None] * spread)[candidates]
    bounds[np.arange(len(candidates)), candidates] = 0  # the best is not ahead of itself
    behind = np.maximum(bounds.max(axis=0), 0)
    return Statement(candidates=tuple(candidates.tolist()), behind=tuple(behind.tolist()))


def of_highest(covariance: Array, *, level: float, freedom: float, least: float = 0.0) -> float:
    """Return by how many standard errors the highest of several scores is too high at most, with (1 + level) / 2.

    It was chosen for being high: the quantile of the largest of e_j / s_j over all j, at least that of a single score,
    which its upper end keeps. The arguments are those of `state`.

    Examples:
        >>> round(of_highest(np.eye(25), level=0.95, freedom=1000), 1)
        3.1
    """
    errors = np.sqrt(np.maximum(np.diagonal(covariance), max(least, np.finfo(float).tiny)))
    largest = (_drawn_errors(covariance, freedom) / errors).max(axis=1)
    return max(float(np.quantile(largest, (1 + level) / 2)), float(stats.t.ppf((1 + level) / 2, freedom)))


def _drawn_errors(covariance: Array, freedom: float) -> Array:
    """Return draws of Student's t with a covariance, (DRAWS, k)."""
    values, vectors = np.linalg.eigh(covariance)
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((DRAWS, len(values))) * np.sqrt(np.maximum(values, 0)) @ vectors.T
    drawn: Array = errors / np.sqrt(rng.chisquare(freedom, (DRAWS, 1)) / freedom)
    return drawn
