"""How well outputs predict the targets of a task, and how each score would change with other items.

The influence of item i is the derivative of the metric by the item's share of the sample, so that influences are
(n,) of mean 0, in the unit of the metric, and

    metric(n other items) - metric(all there are) ~ sum_i influence_i / n,
    variance of the metric over items ~ sum_i influence_i^2 / (n (n - 1)),

where n - 1 replaces n because the influences are taken from their own mean, as for a sample's variance.

Knows arrays of outputs and targets; knows no tasks and no models.

Source: Hampel 1974 (Journal of the American Statistical Association 69); Efron and Stein 1981 (Annals of Statistics 9).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import DataError, option
from layerprobe.similarity.checks import Array, check_same_samples, finite_matrix, unit_rows

DIGITS = 12
"""Decimals of cosines: values that differ only by rounding of float64, as for pairs of one text, become equal."""

SPREAD = 1e-12
"""Values with smaller differences, relative to the largest, are equal up to the rounding of cosines."""


def cosine_scores(first: ArrayLike, second: ArrayLike) -> Array:
    """Return the cosine of each row of `first` with the same row of `second`.

    cos_i = x_i y_i / (|x_i| |y_i|) of two (n, d), in float64 for any dtype and rounded to 12 decimals, so that
    ranks ignore rounding errors; in [-1, 1].

    Raises:
        DataError: If an argument is not a matrix of real numbers, or the numbers of features differ.
        DegenerateLayerError: If a value is not finite or a row is zero.
        MisalignedSamplesError: If the numbers of rows differ.

    Examples:
        >>> cosine_scores([[1.0, 0.0], [3.0, 4.0]], [[0.0, 2.0], [6.0, 8.0]]).tolist()
        [0.0, 1.0]
    """
    x, y = finite_matrix(first, name="first"), finite_matrix(second, name="second")
    check_same_samples(len(y), len(x), name="second", other="first")
    if x.shape[1] != y.shape[1]:
        raise DataError(f"second has {y.shape[1]} features, expected the {x.shape[1]} of first: use one layer for both")
    return np.einsum("ij,ij->i", unit_rows(x, name="first"), unit_rows(y, name="second")).round(DIGITS)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return the rank correlation of two series, in [-1, 1]; equal values share their mean rank.

    Raises:
        DataError: If a series is not a vector of finite numbers, is constant, or has fewer than two values.
        MisalignedSamplesError: If the lengths differ.

    Examples:
        >>> round(spearman([0.1, 0.2, 0.9], [1.0, 2.0, 3.0]), 12)
        1.0
    """
    from scipy import stats  # slow to load

    return float(stats.spearmanr(*_checked_pair(x, y)).statistic)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation of two series, in [-1, 1]; it raises the same errors as `spearman`.

    Examples:
        >>> round(pearson([0.0, 1.0, 2.0], [5.0, 3.0, 1.0]), 12)
        -1.0
    """
    from scipy import stats  # slow to load

    return float(stats.pearsonr(*_checked_pair(x, y)).statistic)


def fisher_ends(value: float, error: float, below: float, above: float) -> tuple[float, float]:
    """Return the ends of an interval around a correlation, `below` and `above` standard errors away on Fisher's scale.

    On that scale, z = artanh(r), the error is that of r over 1 - r^2: it does not shrink where r is high by chance, and
    the ends stay between -1 and 1.

    Source: Fisher 1921 (Metron 1).

    Examples:
        >>> [round(end, 2) for end in fisher_ends(0.8, 0.1, 2.0, 2.0)]
        [0.5, 0.93]
    """
    z, scaled = np.arctanh(value), error / (1 - value**2)
    return float(np.tanh(z - below * scaled)), float(np.tanh(z + above * scaled))


def _checked_pair(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    first, second = _checked_series(x, name="x"), _checked_series(y, name="y")
    check_same_samples(len(second), len(first), name="y", other="x")
    return first, second


def _checked_series(x: ArrayLike, *, name: str) -> Array:
    series = np.asarray(x, dtype=np.float64)
    if series.ndim != 1 or len(series) < 2:
        raise DataError(f"{name} has shape {series.shape}, expected a vector of at least two scores: use more pairs")
    if not np.isfinite(series).all():
        raise DataError(f"{name} has NaN or infinite values, expected finite scores: remove those pairs")
    if np.ptp(series) <= SPREAD * np.abs(series).max():
        raise DataError(
            f"{name} is {series[0]:g} for all {len(series)} pairs, expected scores that differ: a constant has no "
            "correlation; check the score column, or leave out a layer with the same cosine for every pair "
            f"(for a model, keep only the blocks before it: {option('keep_blocks', '1,2,3')})"
        )
    return series


def correlations(outputs: Array, targets: Array) -> dict[str, float]:
    """Return the correlations of (n,) outputs with (n,) gold scores; DataError if either is constant."""
    return {"spearman": spearman(outputs, targets), "pearson": pearson(outputs, targets)}


def fit_scores(outputs: Array, targets: Array) -> dict[str, float]:
    """Return the correlations of (n,) outputs with (n,) targets, and R2, the share of variance explained.

    R2 = 1 - sum (output - target)^2 / sum (target - mean)^2, at most 1; negative if the mean would fit better.
    """
    scores = correlations(outputs, targets)
    return {**scores, "r2": 1 - float(np.square(outputs - targets).sum() / np.square(targets - targets.mean()).sum())}


def class_scores(outputs: Array, targets: Array) -> dict[str, float]:
    """Return macro F1 and accuracy of (n, classes) outputs, the highest of which wins, on (n,) class numbers."""
    predicted = outputs.argmax(axis=1)
    return {"macro f1": macro_f1(predicted, targets), "accuracy": float(np.mean(predicted == targets))}


def decision_scores(outputs: Array, targets: Array, threshold: float) -> dict[str, float]:
    """Return F1, average precision and accuracy of (n,) outputs, positive from the threshold upwards."""
    predicted = outputs >= threshold
    return {
        "f1": f1(predicted, targets == 1),
        "average precision": average_precision(outputs, targets),
        "accuracy": float(np.mean(predicted == (targets == 1))),
    }


def f1(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """Return 2 TP / (predicted positives + true positives), 0 .. 1; 0 if there are none of either.

    Examples:
        >>> f1(np.array([True, True, False]), np.array([True, False, False]))
        0.6666666666666666
    """
    whole = int(predicted.sum()) + int(true.sum())
    return 2 * int((predicted & true).sum()) / whole if whole else 0.0


def macro_f1(predicted: NDArray[np.intp], targets: Array) -> float:
    """Return the mean of F1 over all classes that are predicted or true at least once, 0 .. 1."""
    classes = np.union1d(predicted, targets)
    return float(np.mean([f1(predicted == number, targets == number) for number in classes]))


def average_precision(outputs: Array, targets: Array) -> float:
    """Return sum over thresholds of (recall_k - recall_(k-1)) precision_k, 0 .. 1."""
    from sklearn.metrics import average_precision_score  # takes a second to load

    return float(average_precision_score(targets, outputs))


def best_threshold(outputs: Array, targets: Array) -> float:
    """Return the threshold that maximises F1 of `outputs >= threshold`.

    It lies midway between two neighbouring outputs, or at the lowest one; ties go to the highest.

    Examples:
        >>> best_threshold(np.array([0.9, 0.2, 0.6, 0.4]), np.array([1.0, 0.0, 1.0, 0.0]))
        0.5
    """
    order = np.argsort(-outputs, kind="stable")
    falling, hits = outputs[order], np.cumsum(targets[order] == 1)
    scores = 2 * hits / (np.arange(1, len(falling) + 1) + hits[-1])
    last_of_equals = np.append(falling[1:] < falling[:-1], True)
    best = int(np.argmax(np.where(last_of_equals, scores, -1.0)))
    if best + 1 == len(falling):
        return float(falling[best])
    middle = float(falling[best] + falling[best + 1]) / 2
    return middle if middle > falling[best + 1] else float(falling[best])  # no float lies between neighbouring floats


Influences = dict[str, Array]
"""Influences, (n,) of mean 0, by name of the metric."""

GROUPS = 1000
"""The jackknife leaves out single items up to this number, and this many groups above it, which ignores what items with
a common text share."""


def mean_influences(values: ArrayLike) -> Array:
    """Return the influences of items on the mean of their (n,) values, such as accuracy, or nDCG over queries.

    influence_i = x_i - mean(x)

    Examples:
        >>> mean_influences([1.0, 0.0, 1.0, 0.0]).tolist()
        [0.5, -0.5, 0.5, -0.5]
    """
    array = np.asarray(values, dtype=np.float64)
    return array - array.mean()


def correlation_influences(outputs: ArrayLike, targets: ArrayLike) -> Influences:
    """Return the influences of items on Spearman's and Pearson's correlation of two (n,) series, see `correlations`."""
    spearman(outputs, targets)  # validates the input
    x, y = np.asarray(outputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    a, b = ((series - series.mean()) / series.std() for series in (x, y))
    pearson: Array = a * b - (a @ b) / len(a) * (a**2 + b**2) / 2  # of r = mean(a b)
    return {"spearman": _spearman_influences(x, y), "pearson": pearson}


def fit_influences(outputs: Array, targets: Array) -> Influences:
    """Return the influences of items on the correlations and R2 of two (n,) series, see `fit_scores`.

    R2 = 1 - E / V of the mean squared error E and the variance V of targets -> (E / V (y - mean)^2 - e^2) / V.
    """
    errors, spread = np.square(outputs - targets), np.square(targets - targets.mean())
    of_fit = (errors.mean() / spread.mean() * spread - errors) / spread.mean()
    return {**correlation_influences(outputs, targets), "r2": of_fit}


def class_influences(outputs: Array, targets: Array) -> Influences:
    """Return the influences of items on macro F1 and accuracy of (n, classes) outputs, see `class_scores`.

    The set of classes that macro F1 averages over is treated as fixed.
    """
    predicted = outputs.argmax(axis=1)
    classes = np.union1d(predicted, targets)
    by_class = [_f1_influences(predicted == number, targets == number) for number in classes]
    return {"macro f1": np.mean(by_class, axis=0), "accuracy": mean_influences(predicted == targets)}


def decision_influences(outputs: Array, targets: Array, threshold: float) -> Influences:
    """Return the influences of items on F1, average precision and accuracy of (n,) outputs, see `decision_scores`.

    The threshold is treated as fixed: it is chosen on other items.
    """
    predicted, true = outputs >= threshold, targets == 1
    return {
        "f1": _f1_influences(predicted, true),
        "average precision": _average_precision_influences(outputs, true),
        "accuracy": mean_influences(predicted == true),
    }


def ratio_influences(above: ArrayLike, below: ArrayLike) -> Array:
    """Return the influences of items on a ratio of sums, of (n,) parts of the items: n (a_i - r b_i) / sum b.

    0 if the denominator is 0. If all items are right, or all wrong, the ratio shows no error, but other items may: the
    influences then have the variance of one item of the denominator: n b_i^(1/2) / (sum b)^(3/2).

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
    """Return the influences of n items on any score, from scores that leave out some items.

    Leaving out group g of m_g items moves the score by about -1 / (n - m_g) times the sum of their influences. With one
    item per group this is the jackknife; more than `GROUPS` items are grouped at random, and the sum of a group is
    distributed over its items so that the sum of squares is preserved:

        influence_i = (n - m_g) (score - score without g) / sqrt(m_g), for i in g.

    Args:
        score: Function from the numbers of the remaining items, ascending, to the score.
        n: Number of items, at least two.
        seed: Seed of the groups; scores with the same n and seed have the same groups, so that differences have errors.

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


def _spearman_influences(x: Array, y: Array) -> Array:
    """Spearman's rho = E(u v) / sqrt(E(u^2) E(v^2)) of the shares u, v of items below each, ties half, minus 1/2.

    An item contributes its own term, and moves the ranks of all others:
    of E(u v), u v + E(v; x above) + E(u; y above) - 3 E(u v), and of E(u^2) likewise.
    """
    (u, above_x), (v, above_y) = _places(x), _places(y)
    uv, uu, vv = (float(np.mean(product)) for product in (u * v, u * u, v * v))
    of_uv = u * v + above_x(v) + above_y(u) - 3 * uv
    of_uu = u * u + 2 * above_x(u) - 3 * uu
    of_vv = v * v + 2 * above_y(v) - 3 * vv
    rho = uv / np.sqrt(uu * vv)
    return of_uv / np.sqrt(uu * vv) - rho / 2 * (of_uu / uu + of_vv / vv)


def _places(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the share of items below each, ties half, minus 1/2; and a function that sums weights of items above each.

    That function returns the sum over j of w_j / n where x_j > x_i, with half weight for ties.
    """
    distinct, numbers = np.unique(x, return_inverse=True)

    def above(weights: Array) -> Array:
        sums = np.bincount(numbers, weights=weights, minlength=len(distinct))
        return (sums.sum() - np.cumsum(sums) + sums / 2)[numbers] / len(x)

    return 0.5 - above(np.ones(len(x))), above


def _f1_influences(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> Array:
    """F1 = 2 TP / (P + T), 0 if both are 0."""
    return ratio_influences(2.0 * (predicted & true), predicted.astype(float) + true)


def _average_precision_influences(outputs: Array, true: NDArray[np.bool_]) -> Array:
    """AP = mean over positives of the precision at their output.

    A positive contributes its own precision, and every item changes that of the positives with outputs no higher:
    n / T (t_i (precision_i - AP) + sum over positives j, s_j <= s_i, of (t_i - precision_j) / P_j), where P_j items
    have outputs s >= s_j; 0 if no item is positive, and as in `ratio_influences` if all positives come first.
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
