"""Representational similarity analysis: do two layers rank pairs of samples alike? Knows arrays; knows no models."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.checks import NOISE, Array, centred_layer, finite_matrix, unit_rows
from layerprobe.similarity.values import LayerMeasure

BLOCK = 512
"""Rows whose correlations with all later ones are made at once."""

DIGITS = 12
"""Correlations that agree to so many digits after the point are equal but for rounding, and share a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RSA(LayerMeasure[Array]):
    """How alike two layers rank the dissimilarities of pairs of samples.

    The Spearman correlation over pairs i < j of 1 - r(x_i, x_j) and 1 - r(y_i, y_j), where r is the Pearson
    correlation of two rows, d >= 2; 0 on average for independent layers.

    Source: Kriegeskorte et al. 2008 (Frontiers in Systems Neuroscience 2:4), with the Spearman correlation it advises.

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X + 1, RSA()), 12), layer_similarity(X, X**2, RSA()) < 0.5
        (1.0, True)
    """

    name = "rsa"
    short_name = "RSA"
    source = "Kriegeskorte et al. 2008 (Frontiers in Systems Neuroscience 2:4)"
    range = (-1.0, 1.0)
    invariances = frozenset({"isotropic-scaling", "permutation", "row-scaling", "row-shift"})

    def prepare(self, layer: ArrayLike, *, name: str) -> Array:
        """Return the ranks of all pairs of samples: 4 n^2 bytes, and four times that while they are made.

        They are (n (n - 1) / 2,) of the pairs i < j, of mean 0 and norm 1.

        Raises:
            DegenerateLayerError: Also if a row has equal features, or all pairs of samples are equally dissimilar.
        """
        centred_layer(layer, name=name)  # for what it refuses
        rows = _standard_rows(finite_matrix(layer, name=name), name=name)
        # r in place of 1 - r turns the ranks of both layers round, which leaves their correlation as it is.
        correlations = np.concatenate([_later_pairs(rows, start) for start in range(0, len(rows), BLOCK)])
        ranks: Array = np.asarray(stats.rankdata(correlations.round(DIGITS)), dtype=np.float64)
        ranks -= ranks.mean()
        norm = np.linalg.norm(ranks)
        if norm == 0:
            raise DegenerateLayerError(
                f"{name} makes all pairs of samples equally dissimilar, expected pairs that differ: use another measure"
            )
        ranks /= norm
        return ranks

    def compare(self, first: Array, second: Array) -> float:
        """Return the correlation of the ranks."""
        return float(np.vdot(first, second))


def _standard_rows(matrix: Array, *, name: str) -> Array:
    """Return rows of mean 0 and norm 1."""
    largest = np.abs(matrix).max(axis=1)
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    constant = np.abs(centred).max(axis=1) <= NOISE * np.finfo(np.float64).eps * largest
    if constant.any():
        raise DegenerateLayerError(
            f"{name} has equal features in row {int(constant.argmax())}, expected rows that have a correlation: "
            "remove texts without tokens, or use another measure"
        )
    return unit_rows(centred, name=name)


def _later_pairs(rows: Array, start: int) -> Array:
    """Return r_ij of a block of rows i and all rows j > i, row by row."""
    correlations = rows[start : start + BLOCK] @ rows[start:].T
    pairs: Array = correlations[~np.tri(*correlations.shape, dtype=np.bool_)]
    return pairs
