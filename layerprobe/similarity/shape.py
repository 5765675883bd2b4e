"""How well a rotation maps one layer onto another. Knows arrays; knows no models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.similarity.checks import Array, centred_layer, check_same_samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitShape:
    """A layer without its mean, its size and its orientation."""

    name: str
    """What messages call the layer."""
    values: Array
    """(n, min(n, d)), columns of mean 0, of Frobenius norm 1; rotated into n columns where there are more features."""

    @property
    def n_samples(self) -> int:
        """Rows."""
        return len(self.values)


def procrustes(X: ArrayLike, Y: ArrayLike) -> float:
    """Return the Procrustes similarity of two layers.

    s = |X^T Y|_* for centred X and Y of Frobenius norm 1, the sum of singular values: the largest tr(Q^T X^T Y)
    over rotations Q. arccos s is the angular shape distance, a metric, and 2 - 2 s the squared Procrustes distance.
    It is the same for X + c, aX and XQ with orthogonal Q, but not for other invertible maps. With few samples and
    many features it is near 1 for independent layers.

    Args:
        X: (n, d) embeddings, n >= 4.
        Y: (n, e) embeddings of the same samples in the same order.

    Returns:
        The similarity, in [0, 1] up to rounding.

    Raises:
        DataError: If an argument is no matrix of real numbers.
        DegenerateLayerError: If a layer is constant, not finite, or has fewer than 4 rows.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Williams et al. 2021 (arXiv 2110.14739), the angular distance.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(procrustes(X, 3 * X[:, ::-1] + 1), 12), procrustes(X, X**2) < 0.5
        (1.0, True)
    """
    return rotated_overlap(unit_shape(X, name="X"), unit_shape(Y, name="Y"))


def unit_shape(X: ArrayLike, *, name: str) -> UnitShape:
    """Return the layer centred, scaled, and with no more columns than rows.

    Raises:
        DataError: If it is no matrix of real numbers.
        DegenerateLayerError: If it is constant, not finite, or has fewer than 4 rows.
    """
    centred = centred_layer(X, name=name)
    # Products with another layer have the same singular values for any rotation: X = R^T Q^T, and R^T is enough.
    columns = centred if centred.shape[1] <= len(centred) else np.linalg.qr(centred.T).R.T
    return UnitShape(name=name, values=columns / np.linalg.norm(columns))


def rotated_overlap(first: UnitShape, second: UnitShape) -> float:
    """Return the sum of singular values of X^T Y.

    Raises:
        MisalignedSamplesError: If the numbers of samples differ.
    """
    check_same_samples(first.n_samples, second.n_samples, name=first.name, other=second.name)
    return float(np.linalg.norm(first.values.T @ second.values, ord="nuc"))
