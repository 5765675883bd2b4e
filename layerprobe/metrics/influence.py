"""Influences of items on metrics: how a score would move if other items were drawn. Knows arrays, no tasks.

The influence of item i is the derivative of the metric by the share that the item has in all, so that influences are
(n,) of mean 0, in the unit of the metric, and

    metric(n other items) - metric(all there are) ~ sum_i influence_i / n,
    variance of the metric over items ~ sum_i influence_i^2 / (n (n - 1)),

where n - 1 in place of n makes up for the mean that the influences were taken from, as for a sample's variance.

Source: Hampel 1974 (Journal of the American Statistical Association 69); Efron and Stein 1981 (Annals of Statistics 9).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.metrics.correlation import spearman

Array = NDArray[np.float64]
Influences = dict[str, Array]
"""By name of the metric, (n,) of mean 0."""

GROUPS = 1000
"""Items are left out one by one up to so many, and in so many groups where there are more, in which what items that
share a text have in common is lost."""


def mean_influences(values: ArrayLike) -> Array:
    """Return the influences of items on the mean of their (n,) values: accuracy, or nDCG and its like over queries.

    influence_i = x_i - mean(x)

    Examples:
        >>> mean_influences([1.0, 0.0, 1.0, 0.0]).tolist()
        [0.5, -0.5, 0.5, -0.5]
    """
    array = np.asarray(values, dtype=np.float64)
    centred: Array = array - array.mean()
    return centred


def correlation_influences(outputs: ArrayLike, targets: ArrayLike) -> Influences:
    """Return the influences of items on Spearman's and Pearson's correlation of two (n,) series, see `correlations`."""
    spearman(outputs, targets)  # checks them
    x, y = np.asarray(outputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    return {"spearman": _spearman_influences(x, y), "pearson": _pearson_influences(x, y)}


def fit_influences(outputs: Array, targets: Array) -> Influences:
    """Return the influences of items on the correlations and R2 of two (n,) series, see `fit_scores`.

    R2 = 1 - E / V of the mean squared error E and the variance V of targets -> (E / V (y - mean)^2 - e^2) / V.
    """
    errors, spread = np.square(outputs - targets), np.square(targets - targets.mean())
    of_fit = (errors.mean() / spread.mean() * spread - errors) / spread.mean()
    return {**correlation_influences(outputs, targets), "r2": of_fit}


def class_influences(outputs: Array, targets: Array) -> Influences:
    """Return the influences of items on macro F1 and accuracy of (n, classes) outputs, see `class_scores`.

    Which classes there are, of which macro F1 is the mean, counts as given.
    """
    predicted = outputs.argmax(axis=1)
    classes = np.union1d(predicted, targets)
    by_class = [_f1_influences(predicted == number, targets == number) for number in classes]
    return {"macro f1": np.mean(by_class, axis=0), "accuracy": mean_influences(predicted == targets)}


def decision_influences(outputs: Array, targets: Array, threshold: float) -> Influences:
    """Return the influences of items on F1, average precision and accuracy of (n,) outputs, see `decision_scores`.

    The threshold counts as given: it is chosen on other items.
    """
    predicted, true = outputs >= threshold, targets == 1
    return {
        "f1": _f1_influences(predicted, true),
        "average precision": _average_precision_influences(outputs, true),
        "accuracy": mean_influences(predicted == true),
    }


def ratio_influences(above: ArrayLike, below: ArrayLike) -> Array:
    """Return the influences of items on a ratio of sums, of (n,) parts of the items: n (a_i - r b_i) / sum b.

    0 where the sum below is 0. Items that are all right or all wrong show no error, but others may be otherwise: they
    have the variance of one of sum b, as n b_i^(1/2) / (sum b)^(3/2) give it.

    Examples:
        >>> ratio_influences([1.0, 0.0], [1.0, 1.0]).tolist()
        [0.5, -0.5]
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    whole = b.sum()
    if not whole:
        return np.zeros(len(b))
    influences: Array = len(b) * (a - a.sum() / whole * b) / whole
    return influences if influences.any() else mean_influences(len(b) * np.sqrt(b) / whole**1.5)


def jackknife_influences(score: Callable[[NDArray[np.intp]], float], n: int, *, seed: int = 0) -> Array:
    """Return the influences of n items on any score, from the scores without some of them.

    Leaving out group g of m_g items moves the score by about -1 / (n - m_g) times the sum of their influences. With one
    item a group these are the jackknife's; of more than `GROUPS` items groups are drawn, and the sum of a group is
    shared out among its items so that the sum of squares is kept:

        influence_i = (n - m_g) (score - score without g) / sqrt(m_g), for i in g.

    Args:
        score: Numbers of the items that are left, ascending -> the score.
        n: Items, at least two.
        seed: Of the groups; scores of one n and seed have the same groups, so that their differences have errors.

    Source: Quenouille 1956 (Biometrika 43); Tukey 1958 (Annals of Mathematical Statistics 29); groups: Kott 2001
    (Journal of Official Statistics 17).

    Examples:
        >>> values = np.array([1.0, 0.0, 1.0, 0.0])
        >>> jackknife_influences(lambda left: values[left].mean(), 4).round(12).tolist()
        [0.5, -0.5, 0.5, -0.5]
    """
    items = np.arange(n)
    order = items if n <= GROUPS else np.random.default_rng(seed).permutation(n)
    whole, influences = score(items), np.empty(n)
    for group in np.array_split(order, min(n, GROUPS)):
        change = whole - score(np.setdiff1d(items, group, assume_unique=True))
        influences[group] = (n - len(group)) * change / np.sqrt(len(group))
    return mean_influences(influences)


def _pearson_influences(x: Array, y: Array) -> Array:
    """Pearson's r = mean(a b) of a, b of mean 0 and variance 1 -> a b - r (a^2 + b^2) / 2."""
    a, b = ((series - series.mean()) / series.std() for series in (x, y))
    influences: Array = a * b - (a @ b) / len(a) * (a**2 + b**2) / 2
    return influences


def _spearman_influences(x: Array, y: Array) -> Array:
    """Spearman's rho = E(u v) / sqrt(E(u^2) E(v^2)) of the shares u, v of items below each, ties by half, less 1/2.

    An item counts by its own place, and moves those of all others:
    of E(u v), u v + E(v; x above) + E(u; y above) - 3 E(u v), and of E(u^2) likewise.
    """
    (u, above_x), (v, above_y) = _places(x), _places(y)
    uv, uu, vv = (float(np.mean(product)) for product in (u * v, u * u, v * v))
    of_uv = u * v + above_x(v) + above_y(u) - 3 * uv
    of_uu = u * u + 2 * above_x(u) - 3 * uu
    of_vv = v * v + 2 * above_y(v) - 3 * vv
    rho = uv / np.sqrt(uu * vv)
    influences: Array = of_uv / np.sqrt(uu * vv) - rho / 2 * (of_uu / uu + of_vv / vv)
    return influences


def _places(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the share of items below each, ties by half, less 1/2; and how to sum weights of items above each.

    The latter is the sum over j of w_j / n where x_j > x_i, and half of that where they tie.
    """
    distinct, numbers = np.unique(x, return_inverse=True)

    def above(weights: Array) -> Array:
        sums = np.bincount(numbers, weights=weights, minlength=len(distinct))
        shares: Array = (sums.sum() - np.cumsum(sums) + sums / 2)[numbers] / len(x)
        return shares

    return 0.5 - above(np.ones(len(x))), above


def _f1_influences(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> Array:
    """F1 = 2 TP / (P + T), 0 where there are neither."""
    return ratio_influences(2.0 * (predicted & true), predicted.astype(float) + true)


def _average_precision_influences(outputs: Array, true: NDArray[np.bool_]) -> Array:
    """AP = mean over positives of the precision from their output on.

    A positive counts by its own precision, and every item moves that of the positives with outputs no higher:
    n / T (t_i (precision_i - AP) + sum over positives j, s_j <= s_i, of (t_i - precision_j) / P_j), of which P_j items
    have outputs s >= s_j; 0 where no item is positive, as `ratio_influences` where all of these come first.
    """
    if not true.any():
        return np.zeros(len(true))
    distinct, numbers = np.unique(outputs, return_inverse=True)
    counts, hits = np.bincount(numbers), np.bincount(numbers, weights=true, minlength=len(distinct))
    from_here = np.cumsum(counts[::-1])[::-1]
    precision = np.cumsum(hits[::-1])[::-1] / from_here
    score = hits @ precision / hits.sum()
    of_hit, of_all = np.cumsum(hits / from_here), np.cumsum(hits * precision / from_here)
    contributions = true * (precision[numbers] - score + of_hit[numbers]) - of_all[numbers]
    influences: Array = len(true) / hits.sum() * contributions
    return influences if influences.any() else ratio_influences(true, true)
