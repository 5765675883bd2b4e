"""Scores with the covariance of their errors -> which may be the best, how far below it each is, and which differ.

Where several are equally the best, one of them stays: one that is left out may be as good, and is never called worse.

One statement, true as a whole at its level. Let b be the truly best and d_b the quantile of the largest of
(e_j - e_b) / s_jb over all j, of the errors e and the standard errors s of differences. Where the largest is below d_b,

    b is among those j that no other is ahead of by more than d_j standard errors, and
    the best - j is at most the largest of y_i - y_j + d_i s_ij over all such i.

Source: multiple comparisons with the best: Hsu 1984 (Annals of Statistics 12); Edwards and Hsu 1983 (JASA 78); the
error of what was chosen: Berk et al. 2013 (Annals of Statistics 41).
"""

import itertools
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerprobe.checks import LEVEL, check_level
from layerprobe.metrics.names import bounded
from layerprobe.stats.crossed import (
    crossed_errors,
    errors_known,
    item_covariance,
    item_units,
    least_variance,
    square_root,
)
from layerprobe.stats.links import Links
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor

Array = NDArray[np.float64]

DRAWS = 20_000
"""Of the errors; a level of 95 % is then right to 0.2 points, and to 0.3 over all pairs."""


def state(
    scores: Array, covariance: Array, *, level: float, freedom: float, least: float = 0.0
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Compare scores with the best of them.

    Args:
        scores: (k,).
        covariance: (k, k) of their errors.
        level: With which all of the statement is true.
        freedom: Degrees of freedom of the covariance.
        least: The variance that a difference has at least.

    Returns:
        Numbers of the scores of which one is the best, ascending; and by how much the best is ahead of each score at
        most, at least 0. All of it holds jointly at the level.

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
            # of one comparison at least, also where differences have no error but the least
            critical[best] = max(float(np.quantile(largest, level)), float(stats.t.ppf(level, freedom)))
    ahead = scores[:, None] - scores  # of row over column
    candidates = np.flatnonzero((ahead <= critical * spread).all(axis=0))
    bounds = (ahead + critical[:, None] * spread)[candidates]
    bounds[np.arange(len(candidates)), candidates] = 0  # the best is not ahead of itself
    behind = np.maximum(bounds.max(axis=0), 0)
    return tuple(candidates.tolist()), tuple(behind.tolist())


def compared_with_best(
    scores: Array,
    covariance: Array,
    intervals: Sequence[tuple[float, float]],
    *,
    level: float,
    freedom: float,
    least: float,
    tolerance: float,
    floor: Floor | None = None,
    chosen: int | None = None,
) -> AgainstBest:
    """Return scores, each with its interval, compared with the best of them; the arguments are those of `state`."""
    candidates, behind = state(scores, covariance, level=level, freedom=freedom, least=least)
    return AgainstBest(
        scores=tuple(scores.tolist()),
        intervals=tuple(intervals),
        behind=behind,
        candidates=candidates,
        level=level,
        tolerance=tolerance,
        floor=floor,
        chosen=chosen,
    )


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

    The highest was chosen for being high, so that its lower end is that of all scores together, at the quantile of max
    over j of e_j / s_j. Its upper end, and both ends of the others, are those of one score.

    Args:
        values: (k,) scores, x 100.
        influences: (k, n) influences of the items on each.
        metric: What is scored by: intervals stay inside what it can be.
        links: Which items share texts; none by default.
        level: Of each interval, and of all that is said of the best together.
        tolerance: Points that a score may be behind the best.
        floor: What a trivial answer scores.

    Returns:
        None where nothing is known of the errors: of one item, or of items that all share a text.
    """
    check_level(level)
    scores, psi = np.asarray(values, dtype=np.float64), np.atleast_2d(np.asarray(influences, dtype=np.float64))
    n = psi.shape[1]
    if not errors_known(n, links):
        return None
    covariance, least, freedom = item_covariance(psi, links), least_variance(n, links), item_units(n, links) - 1
    errors = np.sqrt(np.maximum(np.diagonal(covariance), least))
    plain, chosen = float(stats.t.ppf((1 + level) / 2, freedom)), int(np.argmax(scores))
    below = np.full(len(scores), plain)
    below[chosen] = of_highest(covariance, level=level, freedom=freedom, least=least)
    ends = zip((scores - below * errors).tolist(), (scores + plain * errors).tolist(), strict=True)
    intervals = [bounded(metric, interval) for interval in ends]
    about: dict[str, Any] = {"level": level, "freedom": freedom, "least": least, "tolerance": tolerance}
    return compared_with_best(scores, covariance, intervals, floor=floor, **about)


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

    Errors are over items and seeds, see `crossed_errors`; without influences over seeds alone.

    Args:
        values: (k, S) scores of k candidates with the same S seeds, x 100.
        influences: (k, S, n) influences of the items on each; None where outputs are not known.
        intervals: Of the k means, each by itself.
        chosen: Number of the one that other data chose, such as the validation split; by default the highest counts.
        links: Which items share texts; none by default.
        level: Of each interval, and of all that is said of the best together.
        tolerance: Points that a score may be behind the best.
        floor: What a trivial answer scores.

    Returns:
        None where nothing is known of the errors: of one seed without influences.
    """
    by_seed = np.atleast_2d(np.asarray(values, dtype=np.float64))
    means, errors = by_seed.mean(axis=1), crossed_errors(by_seed, influences, links)
    if errors is None:
        return None
    covariance, least, freedom = errors
    about: dict[str, Any] = {"level": level, "freedom": freedom, "least": least, "tolerance": tolerance}
    return compared_with_best(means, covariance, intervals, floor=floor, chosen=chosen, **about)


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


# ---- all pairs ------------------------------------------------------------------------------------------


def differing(
    values: Sequence[float], influences: ArrayLike, *, links: Links | None = None, level: float = LEVEL
) -> NDArray[np.bool_]:
    """Return which scores differ, by simultaneous tests of all pairs at the level.

    Scores r and s differ where d = |v_r - v_s| > c sqrt(e_rs^2 + d^2 / G). e_rs is the error of their paired difference
    over items, at least that of `least_variance`; d^2 / G, of G independent items, makes it that about 0 in place of
    that about d, as in McNemar's test: of few items that are right or wrong, too many would differ without it. c is the
    quantile of max over pairs of |z_r - z_s| / e_rs, z being Student's t with the covariance of all scores over items.
    Where all are equal in truth, the chance that any two are said to differ is at most 1 - level; so is it for those
    that are equal where others are not. Whatever is chosen afterwards, such as the best layer of each model, is covered
    too. Layers of one model are alike, so that c is below Bonferroni's.

    Args:
        values: (m,) scores, x 100.
        influences: (m, n) influences of the same items on each.
        links: Which items share texts; none by default.
        level: Of the statement.

    Returns:
        (m, m), symmetric.

    Source: Hothorn, Bretz and Westfall 2008 (Biometrical Journal 50); many scores of few items: Chernozhukov,
    Chetverikov and Kato 2013 (Annals of Statistics 41).
    """
    check_level(level)
    scores, psi = np.asarray(values, dtype=np.float64), np.atleast_2d(np.asarray(influences, dtype=np.float64))
    order = np.lexsort((psi[:, 0], scores))  # draws are those of a score wherever it stands
    scores, psi = scores[order], psi[order]
    covariance, n = item_covariance(psi, links), psi.shape[1]
    item_variances = np.diag(covariance)
    variances = item_variances[:, None] + item_variances - 2 * covariance
    errors = np.sqrt(np.maximum(variances, least_variance(n, links)))
    root = square_root(covariance)
    rng, freedom = np.random.default_rng(0), item_units(n, links) - 1
    draws = rng.standard_normal((DRAWS, len(scores))) @ root
    draws /= np.sqrt(rng.chisquare(freedom, DRAWS) / freedom)[:, None]
    largest = np.zeros(DRAWS)
    for r in range(len(scores) - 1):
        ratios = np.abs(draws[:, r, None] - draws[:, r + 1 :]) / errors[r, r + 1 :]
        np.maximum(largest, ratios.max(axis=1), out=largest)
    width = max(
        np.quantile(largest, level), stats.t.isf((1 - level) / 2, freedom)
    )  # of one pair where errors are least
    apart = np.abs(scores[:, None] - scores)
    places = np.argsort(order)
    result: NDArray[np.bool_] = apart > width * np.sqrt(errors**2 + apart**2 / (freedom + 1))
    return result[np.ix_(places, places)]


def compact_letters(different: ArrayLike, values: Sequence[float]) -> tuple[str, ...]:
    """Return letters by which two share one if, and only if, they do not differ: a compact letter display.

    From the highest value on, each two that do not differ and are in no group together yet begin one, which takes in
    whoever differs from nobody in it; then whoever is together with all of a group elsewhere leaves it. So groups are
    at most as many as pairs, where inserting and absorbing can make 2^m of them on the way. They are named a, b, ...
    from the highest value on, behind z by capitals, and then a1, b1, ...

    Args:
        different: (m, m) which differ from which, symmetric.
        values: (m,), the higher the earlier the letter.

    Source: Piepho 2004 (Journal of Computational and Graphical Statistics 13), whose sweeping it is; groups as a cover
    by cliques: Gramm et al. 2007 (Computational Statistics and Data Analysis 52).

    Examples:
        >>> compact_letters([[0, 0, 1], [0, 0, 0], [1, 0, 0]], [3.0, 2.0, 1.0])
        ('a', 'ab', 'b')
    """
    places, m = sorted(range(len(values)), key=lambda i: -values[i]), len(values)
    alike = ~np.asarray(different, dtype=bool)[np.ix_(places, places)]  # by place, the highest value at 0
    covered, groups = np.zeros((m, m), dtype=bool), []
    for i, j in itertools.combinations_with_replacement(range(m), 2):
        if alike[i, j] and not covered[i, j]:
            group = sorted({i, j})
            for member in range(m):
                if member not in group and alike[member, group].all():
                    group.append(member)
            covered[np.ix_(group, group)] = True
            groups.append(group)
    left = sorted((group for group in _swept(groups, m) if group), key=sorted)
    names = [f"{letter}{more or ''}" for more in range(len(left)) for letter in string.ascii_letters]
    held = ["".join(name for name, group in zip(names, left, strict=False) if i in group) for i in range(m)]
    return tuple(held[place] for place in np.argsort(places))


def _swept(groups: Sequence[Sequence[int]], m: int) -> list[list[int]]:
    """Remove redundant members from groups of 0 .. m - 1, the smallest group first."""
    left = [sorted(group) for group in sorted(groups, key=lambda group: (len(group), sorted(group)))]
    together = np.zeros((m, m), dtype=np.intp)  # in how many groups two are
    for group in left:
        together[np.ix_(group, group)] += 1
    for group in left:
        for member in tuple(group):
            if (together[member, group] > 1).all():
                together[member, group] -= 1
                together[group, member] -= 1
                together[member, member] += 1  # taken off twice
                group.remove(member)
    return left
