"""Nearest neighbours that two layers share: mutual kNN and CKNNA. Knows arrays; knows no models.

Neighbours are those of largest cosine. By the inner product, rows with a large norm are everyone's neighbours, and
the share of common ones falls to a fraction.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import Array, centred_layer, finite_matrix, unit_rows
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, LayerMeasure, Prepared

BLOCK = 512
"""Rows whose cosines with all others are held at once."""

ROUNDING = 1e-12
"""What is left of an HSIC that should be zero, relative to the sum of squares."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NearestNeighbours:
    """The k nearest neighbours of every sample of a layer."""

    n_samples: int
    pairs: NDArray[np.int64]
    """(n k,) i n + j for every neighbour j of every sample i, ascending."""
    cosines: Array
    """(n k,) of those pairs."""


LocalKernel: TypeAlias = tuple[NearestNeighbours, float]
"""Where the linear kernel of unit rows is kept, and its values there; its debiased HSIC with itself, x n (n - 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByNeighbours(LayerMeasure[Prepared]):
    by_cosine = True

    neighbours: int = 10
    """How many nearest neighbours of each sample count."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if self.neighbours < 1:
            raise DataError(f"expected at least one neighbour, got {self.neighbours}")

    @property
    def long_name(self) -> str:
        """What people call it, of whatever features."""
        return f"{self.short_name} (k = {self.neighbours})"

    @property
    def least_samples(self) -> int:
        """With as many neighbours as other samples every value is 1, and its error 0."""
        return self.neighbours + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualKNN(_ByNeighbours[NearestNeighbours]):
    """The mean share of nearest neighbours that two layers have in common.

    m = 1 / n sum_i |N_X(i) & N_Y(i)| / k, where N(i) are the k other samples with the largest cosine to sample i.
    Rows are not centred. Independent layers share k / (n - 1) on average. Which of several equal cosines count is not
    specified: leave out duplicate samples.

    Source: Huh et al. 2024 (arXiv 2405.07987), with the L2-normalised features of its code.

    Examples:
        >>> MutualKNN(neighbours=10, normalize="zscore").title
        'mutual kNN (k = 10) of z-scored features'
    """

    name = "mutual-knn"
    short_name = "mutual kNN"
    source = "Huh et al. 2024 (arXiv 2405.07987)"
    range = (0.0, 1.0)
    symmetric = True
    invariances = ROTATIONS | {"row-scaling"}

    def prepare(self, layer: ArrayLike, *, name: str) -> NearestNeighbours:
        """Return the nearest neighbours of its samples."""
        return nearest_neighbours(layer, name=name, neighbours=self.neighbours)

    def compare(self, first: NearestNeighbours, second: NearestNeighbours) -> float:
        """Return the mean share of neighbours that two layers have in common."""
        return float(np.isin(first.pairs, second.pairs, assume_unique=True).mean())

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn of the mean share that independent layers have, k / (n - 1)."""
        level = min(self.neighbours / (n - 1), 1.0)
        if level <= CHANCE:
            return None
        return (
            f"{self.neighbours} neighbours among {n} texts are many: independent layers would share {level:.0%} of "
            "them: compare with fewer neighbours, or on more texts"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CKNNA(_ByNeighbours[LocalKernel]):
    """The kernel alignment of two layers between their common nearest neighbours alone.

    CKNNA = HSIC(A K, A L) / sqrt(HSIC(A_X K, A_X K) HSIC(A_Y L, A_Y L)) with cosines K and L, the 0-1 matrices A_X
    and A_Y of the k nearest neighbours of each row (not symmetric), A = A_X A_Y entry by entry, and the debiased
    HSIC of Song et al. 2012. With k = n - 1 it is the debiased linear CKA of unit rows. The paper writes the
    covariance of kernels centred before they are masked; this is what its code measures, without the 1e-6 that the
    code adds to the denominator. As A is not symmetric, nor is the value, in the third digit: the HSIC counts paths
    i -> j in K, j -> q in L.

    1 for the same layer, near 0 for independent ones; can be negative. Not bounded: the three HSICs are taken over
    different pairs, and with under a dozen samples values beyond 10 occur.

    Source: Huh et al. 2024 (arXiv 2405.07987), appendix; HSIC: Song et al. 2012 (JMLR 13), equation 5.
    """

    name = "cknna"
    short_name = "CKNNA"
    source = "Huh et al. 2024 (arXiv 2405.07987), appendix"
    range = (-math.inf, math.inf)
    symmetric = False
    invariances = ROTATIONS | {"row-scaling"}

    def prepare(self, layer: ArrayLike, *, name: str) -> LocalKernel:
        """Return the kernel between its nearest neighbours.

        Raises:
            DegenerateLayerError: Also if the HSIC of the kernel with itself is not positive.
        """
        nearest = nearest_neighbours(layer, name=name, neighbours=self.neighbours)
        self_hsic = _local_hsic(nearest, nearest)
        if not self_hsic > ROUNDING * np.vdot(nearest.cosines, nearest.cosines):
            raise DegenerateLayerError(
                f"{name} has an HSIC with itself between {self.neighbours} nearest neighbours that is not positive, "
                "expected cosines that differ: use more neighbours or more texts, or mutual-knn"
            )
        return nearest, self_hsic

    def compare(self, first: LocalKernel, second: LocalKernel) -> float:
        """Return the alignment of two kernels between their common neighbours."""
        return _local_hsic(first[0], second[0]) / float(np.sqrt(first[1]) * np.sqrt(second[1]))


def nearest_neighbours(X: ArrayLike, *, name: str, neighbours: int) -> NearestNeighbours:
    """Return the nearest neighbours of every sample; memory besides the layer is a block of rows of n cosines.

    Raises:
        DataError: Also if there are not so many neighbours.
        DegenerateLayerError: Also if a row is zero.
    """
    centred_layer(X, name=name)  # for what it refuses
    units = unit_rows(finite_matrix(X, name=name), name=name)
    n = len(units)
    if not 1 <= neighbours < n:
        raise DataError(
            f"neighbours is {neighbours}, expected 1 to {n - 1}, the other samples of {name}: "
            "use fewer neighbours or more texts"
        )
    blocks = [_nearest(units, start, neighbours) for start in range(0, n, BLOCK)]
    pairs, cosines = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return NearestNeighbours(n_samples=n, pairs=pairs, cosines=cosines)


def _nearest(units: Array, start: int, neighbours: int) -> tuple[NDArray[np.int64], Array]:
    """Return `pairs` and `cosines` of a block of rows."""
    cosines = units[start : start + BLOCK] @ units.T
    rows = np.arange(start, start + len(cosines))
    cosines[rows - start, rows] = -np.inf
    nearest = np.sort(np.argpartition(cosines, -neighbours, axis=1)[:, -neighbours:], axis=1)
    pairs = rows[:, None] * len(units) + nearest
    return pairs.ravel(), np.take_along_axis(cosines, nearest, axis=1).ravel()


def _local_hsic(first: NearestNeighbours, second: NearestNeighbours) -> float:
    """Return n (n - 3) times the debiased HSIC of the two kernels between common neighbours.

    As in the reference code, the matrices need not be symmetric: the first term is the trace of K L.
    """
    n = first.n_samples
    pairs, i, j = np.intersect1d(first.pairs, second.pairs, assume_unique=True, return_indices=True)
    K, L = _matrix(first.cosines[i], pairs, n), _matrix(second.cosines[j], pairs, n)
    sums = K.sum() * L.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (K.sum(axis=0) @ L.sum(axis=1))
    return float(K.multiply(L.T).sum() + sums)


def _matrix(values: Array, pairs: NDArray[np.int64], n: int) -> sparse.csr_array:
    return sparse.csr_array((values, (pairs // n, pairs % n)), shape=(n, n))
