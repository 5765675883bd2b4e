"""Cosine scores of sentence pairs and how well they agree with gold. Knows arrays; knows no tasks."""

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError, option
from layerprobe.similarity.checks import Array, check_same_samples, finite_matrix, unit_rows

DIGITS = 12
"""Decimals of cosines: those that differ by the rounding of float64 alone, as of pairs of the same text, are equal."""

SPREAD = 1e-12
"""Values that differ by less, relative to the largest, are equal but for the rounding of cosines."""


def cosine_scores(first: ArrayLike, second: ArrayLike) -> Array:
    """Return the cosine of each row of `first` with the same row of `second`.

    cos_i = x_i y_i / (|x_i| |y_i|) of two (n, d), in float64 whatever their dtype and rounded to 12 decimals, so that
    ranks do not tell apart what only rounding does; in [-1, 1].

    Raises:
        DataError: If an argument is no matrix of real numbers, or the numbers of features differ.
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
    cosines: Array = np.einsum("ij,ij->i", unit_rows(x, name="first"), unit_rows(y, name="second")).round(DIGITS)
    return cosines


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return the rank correlation of two series, in [-1, 1]; equal values share their mean rank.

    Raises:
        DataError: If a series is no vector of finite numbers, is constant, or has fewer than two values.
        MisalignedSamplesError: If the lengths differ.

    Examples:
        >>> round(spearman([0.1, 0.2, 0.9], [1.0, 2.0, 3.0]), 12)
        1.0
    """
    from scipy import stats  # slow to load

    return float(stats.spearmanr(*_checked_pair(x, y)).statistic)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation of two series, in [-1, 1]; errors are those of `spearman`.

    Examples:
        >>> round(pearson([0.0, 1.0, 2.0], [5.0, 3.0, 1.0]), 12)
        -1.0
    """
    from scipy import stats  # slow to load

    return float(stats.pearsonr(*_checked_pair(x, y)).statistic)


def fisher_ends(value: float, error: float, below: float, above: float) -> tuple[float, float]:
    """Return the ends of an interval about a correlation, so many standard errors off on Fisher's scale.

    There, z = artanh(r), the error is that of r over 1 - r^2: it does not shrink where r is high by luck, and
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
            "correlation; check the score column, or leave out a layer that gives every pair the same cosine "
            f"(of a model, keep the blocks before it alone: {option('keep_blocks', '1,2,3')})"
        )
    return series
