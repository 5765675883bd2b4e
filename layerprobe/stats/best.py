"""The scores that may be the best, and how far below the best each one is, from the covariance of their errors.

If several are equally the best, one of them stays: one that is left out may be as good, and is never called worse.

The statement holds jointly at its level. Let b be the truly best and d_b the quantile of the largest of
(e_j - e_b) / s_jb over all j, with the errors e and the standard errors s of differences. If the largest is below d_b,

    b is among the j that no other exceeds by more than d_j standard errors, and
    the best - j is at most the largest of y_i - y_j + d_i s_ij over all such i.

Source: multiple comparisons with the best: Hsu 1984 (Annals of Statistics 12); Edwards and Hsu 1983 (JASA 78); the
error of a chosen score: Berk et al. 2013 (Annals of Statistics 41).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerprobe.checks import LEVEL
from layerprobe.stats.crossed import (
    Links,
    crossed_errors,
    errors_known,
    item_covariance,
    item_units,
    least_variance,
    score_ends,
)
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor

Array = NDArray[np.float64]

DRAWS = 20_000
"""Number of draws of the errors; a level of 95 % is then accurate to 0.2 points."""


def state(
    scores: Array, covariance: Array, *, level: float, freedom: float, least: float = 0.0
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Compare scores with the best of them.

    Args:
        scores: (k,) scores.
        covariance: (k, k) covariance of their errors.
        level: Confidence level of the whole statement.
        freedom: Degrees of freedom of the covariance.
        least: Smallest variance of a difference.

    Returns:
        Ascending numbers of the scores that include the best; and upper bounds on how far each score is below the
        best, at least 0. Everything holds jointly at the level.

    Examples:
        >>> state(np.array([70.0, 75.0, 74.9]), np.eye(3), level=0.95, freedom=1000)[0]
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
            # at least that of one comparison, also if differences have no error but `least`
            critical[best] = max(float(np.quantile(largest, level)), float(stats.t.ppf(level, freedom)))
    ahead = scores[:, None] - scores  # of row over column
    candidates = np.flatnonzero((ahead <= critical * spread).all(axis=0))
    bounds = (ahead + critical[:, None] * spread)[candidates]
    bounds[np.arange(len(candidates)), candidates] = 0  # the best is not ahead of itself
    behind = np.maximum(bounds.max(axis=0), 0)
    return tuple(candidates.tolist()), tuple(behind.tolist())


def against_best(
    values: Sequence[float],
    influences: ArrayLike,
    *,
    metric: str,
    links: Links | None = None,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
    floor: Floor | None = None,
) -> AgainstBest | None:
    """Return scores on the same items with their intervals, compared with the best of them; see `state`.

    The highest score was selected for being high, so that its lower end uses the quantile of max over j of e_j / s_j.
    Its upper end, and both ends of the others, use the quantile of a single score.

    Args:
        values: (k,) scores, x 100.
        influences: (k, n) influences of the items on each score.
        metric: Name of the metric; intervals stay inside its range.
        links: Items that share texts; none by default.
        level: Confidence level of each interval, and of the joint statement about the best.
        tolerance: Points that a score may be behind the best.
        floor: Score of a trivial baseline.

    Returns:
        None if errors are unknown: with one item, or items that all share a text.
    """
    scores = np.asarray(values, dtype=np.float64)
    psi = np.atleast_2d(np.asarray(influences, dtype=np.float64))
    n = psi.shape[1]
    if not errors_known(n, links):
        return None
    covariance = item_covariance(psi, links)
    least = least_variance(n, links)
    freedom = item_units(n, links) - 1
    errors = np.sqrt(np.maximum(np.diagonal(covariance), least))
    plain = float(stats.t.ppf((1 + level) / 2, freedom))
    below = np.full(len(scores), plain)
    below[np.argmax(scores)] = highest_quantile(covariance, level=level, freedom=freedom, least=least)
    ends = zip(values, errors.tolist(), below.tolist(), strict=True)
    candidates, behind = state(scores, covariance, level=level, freedom=freedom, least=least)
    return AgainstBest(
        scores=tuple(scores.tolist()),
        intervals=tuple(score_ends(metric, value, error, down, plain) for value, error, down in ends),
        behind=behind,
        candidates=candidates,
        level=level,
        tolerance=tolerance,
        floor=floor,
    )


def best_over_seeds(
    values: ArrayLike,
    influences: ArrayLike | None,
    intervals: Sequence[tuple[float, float]],
    *,
    chosen: int | None = None,
    links: Links | None = None,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
    floor: Floor | None = None,
) -> AgainstBest | None:
    """Return mean scores over the same seeds and items, compared with the best of them; see `state`.

    Errors are over items and seeds, see `crossed_errors`; without influences, over seeds alone.

    Args:
        values: (k, S) scores of k candidates with the same S seeds, x 100.
        influences: (k, S, n) influences of the items on each score; None if outputs are unknown.
        intervals: Intervals of the k means, one by one.
        chosen: Number of the candidate chosen on other data, such as the validation split; by default the highest.
        links: Items that share texts; none by default.
        level: Confidence level of each interval, and of the joint statement about the best.
        tolerance: Points that a score may be behind the best.
        floor: Score of a trivial baseline.

    Returns:
        None if errors are unknown: with one seed without influences.
    """
    by_seed = np.atleast_2d(np.asarray(values, dtype=np.float64))
    means, errors = by_seed.mean(axis=1), crossed_errors(by_seed, influences, links)
    if errors is None:
        return None
    covariance, least, freedom = errors
    candidates, behind = state(means, covariance, level=level, freedom=freedom, least=least)
    return AgainstBest(
        scores=tuple(means.tolist()),
        intervals=tuple(intervals),
        behind=behind,
        candidates=candidates,
        level=level,
        tolerance=tolerance,
        floor=floor,
        chosen=chosen,
    )


def highest_quantile(covariance: Array, *, level: float, freedom: float, least: float = 0.0) -> float:
    """Return the quantile, in standard errors, for the lower end of the highest score, at (1 + level) / 2.

    The score was selected for being high: this is the quantile of the largest e_j / s_j over all j, at least that of a
    single score, which its upper end keeps. The arguments are those of `state`.

    Examples:
        >>> round(highest_quantile(np.eye(25), level=0.95, freedom=1000), 1)
        3.1
    """
    errors = np.sqrt(np.maximum(np.diagonal(covariance), max(least, np.finfo(float).tiny)))
    largest = (_drawn_errors(covariance, freedom) / errors).max(axis=1)
    return max(float(np.quantile(largest, (1 + level) / 2)), float(stats.t.ppf((1 + level) / 2, freedom)))


def _drawn_errors(covariance: Array, freedom: float) -> Array:
    """Return (DRAWS, k) draws of Student's t with a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((DRAWS, len(values))) * np.sqrt(np.maximum(values, 0)) @ vectors.T
    return errors / np.sqrt(rng.chisquare(freedom, (DRAWS, 1)) / freedom)
