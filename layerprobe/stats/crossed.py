"""Errors over items and seeds of scores of several seeds on the same items, which may share texts. Knows numbers only.

A score has two sources of error: the items it is computed on and the seeds the models were trained with. They are
crossed, since all seeds are scored on the same items: the error of seeds averages out, that of items stays.

Source: Obuchowski and Rockette 1995 (Communications in Statistics, Simulation 24) and Hillis 2007 (Statistics in
Medicine 26), on readers and cases; Owen 2007 (Annals of Applied Statistics 1), on crossed random effects.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError
from layerprobe.interval import Interval
from layerprobe.metrics.names import bounded, find_metric

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Items of one or more texts; two items are linked if they share a text, and every item with itself.

    Texts that count as one, such as those of a group, have the same number.
    """

    sides: tuple[Numbers, ...]
    """(n,) numbers from 0 of each item's texts: the first texts, the second texts and so on."""

    def __len__(self) -> int:
        return len(self.sides[0])

    @property
    def units(self) -> float:
        """Effective number of texts: (sum_t n_t)^2 / sum_t n_t^2, at most n.

        With several sides it is the smallest value for all sides together and for each side: if many questions are
        about few contexts, the contexts count, however many different questions there are.

        Source: Carter, Schnepel and Steigerwald 2017 (Review of Economics and Statistics 99), on clusters.
        """
        together = next(self._shared())[1].sum(axis=0)
        sizes = [together, *(np.bincount(side).astype(np.float64) for side in self.sides)]
        return float(min(*(size.sum() ** 2 / np.square(size).sum() for size in sizes), len(self)))

    def products(self, influences: Array) -> Array:
        """Return sum over linked i, j of psi_ri psi_sj for (runs, n) influences psi, as (runs, runs).

        With A_rt the sum of psi_ri over the items of text t, it is sum_t A_rt A_st, minus the pairs of items that share
        two texts and count twice, and so on. Linear in the number of items.
        """
        products: Array = np.zeros((len(influences), len(influences)))
        for sign, memberships in self._shared():
            sums = influences @ memberships
            products += sign * (sums @ sums.T)
        return products

    def _shared(self) -> Iterator[tuple[int, sparse.csr_array]]:
        """Yield (n, sets) matrices: whether an item has all texts of a set, for single texts, pairs of texts and so on.

        By their signs, the common sets of two items that share any text add up to 1.
        """
        texts = np.sort(np.stack(self.sides, axis=1), axis=1)
        again = np.zeros(texts.shape, dtype=bool)
        again[:, 1:] = texts[:, 1:] == texts[:, :-1]
        for size in range(1, len(self.sides) + 1):
            items, sets = [], []
            for columns in map(list, itertools.combinations(range(len(self.sides)), size)):
                here = np.flatnonzero(~again[:, columns].any(axis=1))
                items.append(here)
                sets.append(texts[:, columns][here])
            row, members = np.concatenate(items), np.concatenate(sets)
            numbers = members.ravel() if size == 1 else np.unique(members, axis=0, return_inverse=True)[1].ravel()
            shape = (len(self), int(numbers.max(initial=-1)) + 1)
            yield 1 if size % 2 else -1, sparse.csr_array((np.ones(len(row)), (row, numbers)), shape=shape)


def joined(*sides: Numbers) -> Numbers:
    """Return (n,) numbers of the connected components of items; items that share a text are connected.

    Examples:
        >>> joined(np.array([0, 1, 3]), np.array([1, 2, 4])).tolist()
        [0, 0, 1]
    """
    size = max(int(side.max()) for side in sides) + 1
    first, second = np.tile(sides[0], len(sides)), np.concatenate(sides)
    graph = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(size, size))
    return np.unique(connected_components(graph, directed=False)[1][sides[0]], return_inverse=True)[1]


def item_covariance(influences: ArrayLike, links: Links | None = None) -> Array:
    """Return the covariance over new items of the scores of several runs on the same items.

    C_rs = sum_i psi_ri psi_si / (n (n - 1)), and with links between items also over linked pairs,

        C_rs = sum over linked i, j of psi_ri psi_sj / n^2 * G / (G - 1),

    with G texts, see `Links.units`; links never reduce the variance of a combination of runs.

    Args:
        influences: (runs, n) influences of the items on each score.
        links: Items that share texts; none by default.

    Returns:
        (runs, runs), in squared units of the score.

    Source, on dyads: Fafchamps and Gubert 2007 (Journal of Development Economics 83); Aronow, Samii and Assenova 2015
    (Political Analysis 23).
    """
    psi = np.atleast_2d(np.asarray(influences, dtype=np.float64))
    n = psi.shape[1]
    units = item_units(n, links)
    plain: Array = psi @ psi.T / (n * (n - 1))
    if links is None:
        return plain
    more = links.products(psi) / n**2 * units / (units - 1) - plain
    values, vectors = np.linalg.eigh((more + more.T) / 2)
    return plain + (vectors * np.maximum(values, 0)) @ vectors.T


def square_root(covariance: Array) -> Array:
    """Return the symmetric square root of a covariance, or of a stack of them; negative eigenvalues count as 0.

    It exists where duplicates leave no Cholesky factor, and rounding does not flip it as it flips eigenvectors.
    """
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :] @ np.swapaxes(vectors, -1, -2)


POOLED_ITEMS = 200
"""Number of items at which a score's own error and the pooled error have equal weight."""


def pooled_covariance(covariance: ArrayLike, n_items: ArrayLike, units: float) -> Array:
    """Shrink a covariance of scores over items towards its mean; the fewer items, the more.

    With the weight w = n / (n + 200) for n items, variances become w v_i + (1 - w) mean(v), and correlations of scores
    on common items w r_ij + (1 - w) mean(r). The variance of a correlation or an accuracy shrinks as the score rises,
    so that with few items a score that is high by luck would seem the most certain, and some contrast of many scores
    would seem to have no error. Everything is then scaled by the ratio of Student's interval to the normal one.

    Args:
        covariance: (scores, scores), in squared units of the score; scores with a variance of 0 stay unchanged.
        n_items: (scores,) number of items of each score; scores with common items have the same number.
        units: Number of independent items of all scores together.
    """
    from scipy import stats  # takes a second to load

    errors = np.array(covariance, dtype=np.float64)
    variances = np.diagonal(errors)
    measured = variances > 0
    if not measured.any():
        return errors
    weight = np.asarray(n_items, dtype=np.float64) / (np.asarray(n_items) + POOLED_ITEMS)
    deviations = np.sqrt(np.where(measured, variances, 1.0))
    alike = errors / np.outer(deviations, deviations)
    common = (alike != 0) & ~np.eye(len(variances), dtype=bool)
    if common.any():
        alike = np.where(common, weight * alike + (1 - weight) * max(alike[common].mean(), 0.0), alike)
    pooled = np.where(measured, weight * variances + (1 - weight) * variances[measured].mean(), 0.0)
    wider = float(stats.t.ppf(0.975, max(units - 1, 1)) / stats.norm.ppf(0.975))
    return alike * np.outer(wider * np.sqrt(pooled), wider * np.sqrt(pooled))


def item_units(n: int, links: Links | None) -> float:
    """Return the number of independent items that n items are worth; same errors as `item_covariance`."""
    units = n if links is None else links.units
    if units <= 1:
        raise DataError(f"expected at least two items without a common text, to estimate an error, got {n}")
    return units


def errors_known(n: int, links: Links | None) -> bool:
    """Return whether errors can be estimated from n items: at least two, not all with a common text."""
    return n > 1 and (links is None or links.units > 1)


def least_variance(n: int, links: Links | None = None) -> float:
    """Return the smallest variance over items of a score x 100, or a difference of two, on n items: (100 / G)^2.

    No score is known more precisely than one of its G independent items, even if its estimated error is 0, as for an
    accuracy of 0 or a difference between equal outputs.
    """
    return (100 / item_units(n, links)) ** 2


def score_ends(
    metric: str, value: float, error: float, below: float, above: float, *, difference: bool = False
) -> tuple[float, float]:
    """Return the interval of a score x 100, or of a difference, given the standard errors below and above it.

    The error of a metric between 0 and 100 shrinks near the edges of its range, so that a score that is high by luck
    would seem certain. The interval therefore includes Wilson's for the number of items that the error corresponds to:
    p (1 - p) / v with the share p and its variance v, and at least 1 / v^(1/2), as in `least_variance`.

    Source: Wilson 1927 (Journal of the American Statistical Association 22).

    Examples:
        >>> score_ends("accuracy", 100.0, 1.0, 2.0, 2.0), score_ends("accuracy", 50.0, 5.0, 2.0, 2.0)
        ((96.15384615384615, 100.0), (40.0, 60.0))
    """
    low, high = bounded(metric, (value - below * error, value + above * error), difference=difference)
    if not difference and (find_metric(metric).low, find_metric(metric).high) == (0.0, 100.0) and error > 0:
        p, v = min(max(value / 100, 0.0), 1.0), (error / 100) ** 2
        a, b = (reach**2 / max(p * (1 - p) / v, v**-0.5) for reach in (below, above))
        low = min(low, 100 * (p + a / 2 - math.sqrt(a * p * (1 - p) + a * a / 4)) / (1 + a))
        high = max(high, 100 * (p + b / 2 + math.sqrt(b * p * (1 - p) + b * b / 4)) / (1 + b))
    return low, high


def crossed(
    values: Sequence[float],
    influences: ArrayLike | None,
    *,
    links: Links | None = None,
    level: float = LEVEL,
    unit: str = "item",
    metric: str | None = None,
    difference: bool = True,
) -> Interval | None:
    """Return the mean of one quantity over seeds, with its errors over items and over seeds.

    With s^2 the variance of the S values, and C their covariance over items,

        variance = s^2 / S + mean over pairs of seeds of C_st, neither less than 0.

    s^2 includes the effect of the items on each seed's score separately, so that only their common effect on all seeds
    is added. The degrees of freedom are those of the two parts, weighted by their shares,

        1 / f = share / (S - 1) + (1 - share) / (items - 1).

    Satterthwaite's squared shares would treat the share of the seeds as known, though few seeds only estimate it: if
    it is half or more, his intervals of two and three seeds cover 87 to 94 % at a level of 95 %, and these 91 to 95 %;
    if it is less, 94 to 97 % (simulated in tests/stats/test_crossed.py).

    Args:
        values: (S,) scores, or differences of scores, by seed, x 100.
        influences: (S, n) influences of the items on each value (for a difference, the difference of influences); None
            if outputs are unknown: the interval is then over seeds alone.
        links: Items that share texts; none by default.
        level: Confidence level of the interval.
        unit: Name of an item.
        metric: Metric of the values, x 100: the interval stays inside its range, and the items' error is at least that
            of `least_variance`. None for anything else.
        difference: Whether the values are differences of two scores.

    Returns:
        None for a single seed without influences, where the error is unknown.
    """
    from scipy import stats  # takes a second to load

    n_seeds = len(values)
    value = statistics.fmean(values)
    of_seeds = statistics.variance(values) / n_seeds if n_seeds > 1 else 0.0
    of_items = 0.0
    n_items = None
    item_freedom = math.inf
    if influences is not None:
        psi = np.asarray(influences, dtype=np.float64)
        n_items = psi.shape[1]
        item_freedom = item_units(n_items, links) - 1
        of_items = max(common_variance(item_covariance(psi, links)), least_variance(n_items, links) if metric else 0.0)
    elif n_seeds < 2:
        return None
    variance = of_seeds + of_items
    share = of_seeds / variance if variance > 0 else float(n_seeds > 1)
    freedom = 1 / (share / max(n_seeds - 1, 1) + (1 - share) / item_freedom)
    error = math.sqrt(variance)
    reach = float(stats.t.isf((1 - level) / 2, freedom))
    ends = (value - reach * error, value + reach * error)
    if metric is not None:
        ends = score_ends(metric, value, error, reach, reach, difference=difference)
    return Interval(
        value=value,
        standard_error=error,
        items_error=None if n_items is None else math.sqrt(of_items),
        seeds_error=None if n_seeds < 2 else math.sqrt(of_seeds),
        freedom=freedom,
        interval=ends,
        level=level,
        n_items=n_items,
        n_seeds=n_seeds,
        unit=unit,
    )


def crossed_errors(
    values: ArrayLike, influences: ArrayLike | None, links: Links | None = None
) -> tuple[Array, float, float] | None:
    """Return the errors of differences of the means of k scores over the same S seeds and items.

    With C_st the covariance over items of all scores with seed s and all with seed t, and r the scores minus the means
    of their candidate and of their seed (which sets the same order of examples for all),

        covariance = diagonal of max(sum over seeds of r_k^2 / (S - 1), mean of these) / S + mean over pairs of C_st,

    so that no combination of scores has a negative variance. A few seeds say little about one candidate's deviation,
    so that none counts as steadier than the mean of all. The degrees of freedom are (k - 1)(S - 1) and those of the
    items, weighted by their shares of the mean variance of a difference.

    Args:
        values: (k, S) scores, x 100.
        influences: (k, S, n) influences of the items on each score; None if outputs are unknown.
        links: Items that share texts; none by default.

    Returns:
        (k, k) covariance, in squared units of the score; the smallest variance of a difference; and the degrees of
        freedom. None for a single seed without influences.
    """
    scores = np.atleast_2d(np.asarray(values, dtype=np.float64))
    k, n_seeds = scores.shape
    of_seeds = of_items = np.zeros((k, k))
    least = 0.0
    item_freedom = math.inf
    if n_seeds > 1:
        left = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
        alone = np.square(left).sum(axis=1) / (n_seeds - 1)
        of_seeds = np.diag(np.maximum(alone, alone.mean() * k / max(k - 1, 1)) / n_seeds)
    elif influences is None:
        return None
    if influences is not None:
        psi = np.asarray(influences, dtype=np.float64)
        least = least_variance(psi.shape[2], links)
        item_freedom = item_units(psi.shape[2], links) - 1
        of_items = item_covariance(psi.mean(axis=1), links)
        if n_seeds > 1:
            same = np.mean([item_covariance(psi[:, seed], links) for seed in range(n_seeds)], axis=0)
            powers, vectors = np.linalg.eigh((n_seeds * of_items - same) / (n_seeds - 1))
            of_items = (vectors * np.maximum(powers, 0)) @ vectors.T
    seeds, items = (_mean_difference_variance(part) for part in (of_seeds, of_items))
    share = seeds / (seeds + items) if seeds + items > 0 else float(n_seeds > 1)
    freedom = 1 / (share / (max(k - 1, 1) * max(n_seeds - 1, 1)) + (1 - share) / item_freedom)
    return of_seeds + of_items, least, freedom


def _mean_difference_variance(covariance: Array) -> float:
    """Return the mean variance of the difference of two scores; for a single score, its own variance."""
    k = len(covariance)
    if k == 1:
        return float(covariance[0, 0])
    return 2 * float(np.trace(covariance) - covariance.sum() / k) / (k - 1)


def common_variance(covariance: Array) -> float:
    """Return the mean covariance of two different runs; for a single run, its variance."""
    runs = len(covariance)
    if runs == 1:
        return float(covariance[0, 0])
    return max(float(covariance.sum() - np.trace(covariance)) / (runs * (runs - 1)), 0.0)
