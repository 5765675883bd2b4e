"""Scores of several seeds on the same items: what would other items and other seeds have given? Knows numbers only.

A score has two sources of error: the items that it is computed on and the seeds that the models were trained with. The
two are crossed, since all seeds are scored on the same items: seeds average out, the items' error stays.

Source: Obuchowski and Rockette 1995 (Communications in Statistics, Simulation 24) and Hillis 2007 (Statistics in
Medicine 26), of readers and cases; Owen 2007 (Annals of Applied Statistics 1), of crossed random effects.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_level
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.interval import Interval
from layerprobe.metrics.names import bounded, metric_of
from layerprobe.stats.links import Links

Array = NDArray[np.float64]


def item_covariance(influences: ArrayLike, links: Links | None = None) -> Array:
    """Return the covariance, over other items, of the scores of several runs on the same items.

    C_rs = sum_i psi_ri psi_si / (n (n - 1)), and with links between items also over linked pairs,

        C_rs = sum over linked i, j of psi_ri psi_sj / n^2 * G / (G - 1),

    of G texts, see `Links.units`; for no combination of runs is its variance then less than without them.

    Args:
        influences: (runs, n) influences of the items on each score.
        links: Which items share texts; none by default.

    Returns:
        (runs, runs), in squared units of the score.

    Source: dyads: Fafchamps and Gubert 2007 (Journal of Development Economics 83); Aronow, Samii and Assenova 2015
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
    raised: Array = plain + (vectors * np.maximum(values, 0)) @ vectors.T
    return raised


def square_root(covariance: Array) -> Array:
    """Return the symmetric square root of a covariance, or of a stack of them; negative eigenvalues count as 0.

    There is one, where copies leave no Cholesky factor, and rounding does not turn it around as it does eigenvectors.
    """
    values, vectors = np.linalg.eigh(covariance)
    root: Array = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :] @ np.swapaxes(vectors, -1, -2)
    return root


POOLED_ITEMS = 200
"""Items of a score with which its own error counts as much as that of all scores."""


def pooled_covariance(covariance: ArrayLike, n_items: ArrayLike, units: float) -> Array:
    """Shrink a covariance of scores over items towards its mean, more with fewer items.

    With the weight w = n / (n + 200) of n items, variances become w v_i + (1 - w) mean(v), and correlations of scores
    on common items w r_ij + (1 - w) mean(r). The variance of a correlation or an accuracy shrinks as it rises, so that
    of few items a score that is high by luck would count as the most certain; and of few items some contrast of many
    scores seems to have no error at all. All is as much larger as Student's interval is than the normal one.

    Args:
        covariance: (scores, scores), in squared units of the score; scores with a variance of 0 are left alone.
        n_items: (scores,) items of each score; scores with common items have the same number.
        units: Independent items of all scores together.
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
    scaled: Array = alike * np.outer(wider * np.sqrt(pooled), wider * np.sqrt(pooled))
    return scaled


def item_units(n: int, links: Links | None) -> float:
    """Return how many independent items n items are worth; errors are those of `item_covariance`."""
    if links is not None and len(links) != n:
        raise MisalignedSamplesError(f"expected links between the {n} items that were scored, got {len(links)}")
    units = n if links is None else links.units
    if units <= 1:
        raise DataError(f"expected at least two items that share no text for an error, got {n} of one text or none")
    return units


def errors_known(n: int, links: Links | None) -> bool:
    """Return whether n items say anything of errors: they are at least two, and not all of one text."""
    return n > 1 and (links is None or links.units > 1)


def least_variance(n: int, links: Links | None = None) -> float:
    """Return the variance over items that a score x 100, or a difference of two, of n items has at least: (100 / G)^2.

    No score is known to less than one of its G independent items: one that is the same for all, such as an accuracy of
    0, and a difference between equal outputs, show no error.
    """
    return (100 / item_units(n, links)) ** 2


def score_ends(
    metric: str, value: float, error: float, below: float, above: float, *, difference: bool = False
) -> tuple[float, float]:
    """Return the ends of the interval of a score x 100, or of a difference, so many standard errors below and above it.

    Near its edge a metric between 0 and 100 has an error that shrinks as the score rises, so that one that is high by
    luck would seem certain. Its interval holds Wilson's, too, of as many items as the error is worth: p (1 - p) / v of
    the share p with the variance v, and at least 1 / v^(1/2), which is that of `least_variance`.

    Source: Wilson 1927 (Journal of the American Statistical Association 22).

    Examples:
        >>> score_ends("accuracy", 100.0, 1.0, 2.0, 2.0), score_ends("accuracy", 50.0, 5.0, 2.0, 2.0)
        ((96.15384615384615, 100.0), (40.0, 60.0))
    """
    low, high = bounded(metric, (value - below * error, value + above * error), difference=difference)
    if not difference and (metric_of(metric).low, metric_of(metric).high) == (0.0, 100.0) and error > 0:
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

        variance = s^2 / S + mean over pairs of seeds of C_st, of which neither is less than 0:

    s^2 has in it what the items do to each seed's score on its own, so that of their error only what they do to all
    seeds alike is added. The degrees of freedom are those of the two parts, by their shares,

        1 / f = share / (S - 1) + (1 - share) / (items - 1).

    Satterthwaite's squares of the shares would take the share of the seeds as known, which few seeds only estimate:
    where it is half or more, intervals of two and three seeds then cover 87 to 94 % at a level of 95 %, and these 91 to
    95 %; where it is less, 94 to 97 % (simulated in tests/stats/test_crossed.py).

    Args:
        values: (S,) scores, or differences of scores, by seed, x 100.
        influences: (S, n) influences of the items on each, of a difference the difference of influences; None where
            outputs are not known: the interval is then over seeds alone.
        links: Which items share texts; none by default.
        level: Confidence level of the interval.
        unit: What an item is called.
        metric: What the values, x 100, are of: the interval stays inside what it can be, and the items' error is not
            below that of `least_variance`. None for anything else.
        difference: Whether the values are differences of two scores.

    Returns:
        None for a single seed without influences, which says nothing of any error.
    """
    from scipy import stats  # takes a second to load

    check_level(level)
    n_seeds, value = len(values), statistics.fmean(values)
    of_seeds = statistics.variance(values) / n_seeds if n_seeds > 1 else 0.0
    of_items, n_items, item_freedom = 0.0, None, math.inf
    if influences is not None:
        psi = np.asarray(influences, dtype=np.float64)
        if psi.ndim != 2 or len(psi) != n_seeds:
            raise MisalignedSamplesError(f"expected influences for each of {n_seeds} seeds, got {psi.shape}")
        n_items, item_freedom = psi.shape[1], item_units(psi.shape[1], links) - 1
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

    With C_st the covariance over items of all scores with seed s and all with seed t, and r the scores without the
    means of their candidate and of their seed, which is the same order of examples for all,

        covariance = diagonal of max(sum over seeds of r_k^2 / (S - 1), mean of these) / S + mean over pairs of C_st,

    of which no combination of scores has a part below 0. A few seeds say little of one candidate's deviation, so that
    none counts as steadier than the mean of all. The degrees of freedom are (k - 1)(S - 1) and those of the items, by
    their shares of the mean variance of a difference.

    Args:
        values: (k, S) scores, x 100.
        influences: (k, S, n) influences of the items on each; None where outputs are not known.
        links: Which items share texts; none by default.

    Returns:
        (k, k) covariance, in squared units of the score; the variance that a difference has at least; and the degrees
        of freedom. None for a single seed without influences.
    """
    scores = np.atleast_2d(np.asarray(values, dtype=np.float64))
    k, n_seeds = scores.shape
    of_seeds, of_items, least, item_freedom = np.zeros((k, k)), np.zeros((k, k)), 0.0, math.inf
    if n_seeds > 1:
        left = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
        alone = np.square(left).sum(axis=1) / (n_seeds - 1)
        of_seeds = np.diag(np.maximum(alone, alone.mean() * k / max(k - 1, 1)) / n_seeds)
    elif influences is None:
        return None
    if influences is not None:
        psi = np.asarray(influences, dtype=np.float64)
        if psi.shape[:2] != scores.shape:
            raise MisalignedSamplesError(f"expected influences on {k} scores of {n_seeds} seeds, got {psi.shape}")
        least, item_freedom = least_variance(psi.shape[2], links), item_units(psi.shape[2], links) - 1
        of_items = item_covariance(psi.mean(axis=1), links)
        if n_seeds > 1:
            same = np.mean([item_covariance(psi[:, seed], links) for seed in range(n_seeds)], axis=0)
            powers, vectors = np.linalg.eigh((n_seeds * of_items - same) / (n_seeds - 1))
            of_items = (vectors * np.maximum(powers, 0)) @ vectors.T
    seeds, items = (_of_differences(part) for part in (of_seeds, of_items))
    share = seeds / (seeds + items) if seeds + items > 0 else float(n_seeds > 1)
    freedom = 1 / (share / (max(k - 1, 1) * max(n_seeds - 1, 1)) + (1 - share) / item_freedom)
    return of_seeds + of_items, least, freedom


def _of_differences(covariance: Array) -> float:
    """Return the mean variance of the difference of two scores; of a single one its own."""
    k = len(covariance)
    if k == 1:
        return float(covariance[0, 0])
    return 2 * float(np.trace(covariance) - covariance.sum() / k) / (k - 1)


def common_variance(covariance: Array) -> float:
    """Return the mean covariance of two runs, that of all but themselves; the variance of a single one."""
    runs = len(covariance)
    if runs == 1:
        return float(covariance[0, 0])
    return max(float(covariance.sum() - np.trace(covariance)) / (runs * (runs - 1)), 0.0)
