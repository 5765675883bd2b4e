"""Simultaneous pairwise tests of scores on the same items, with compact letters. Knows numbers only."""

import itertools
import string
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_level
from layerprobe.stats.crossed import item_covariance, item_units, least_variance, square_root
from layerprobe.stats.links import Links

DRAWS = 20_000
"""Of all scores, for the quantile of their largest difference: its level is then right to 0.3 points."""


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
    from scipy import stats  # takes a second to load

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
