"""Nearest neighbours common to two layers: mutual kNN. Knows arrays; knows no models.

Neighbours have the largest cosines. By the inner product, rows with a large norm would be everyone's neighbours, and
the share of common ones would fall to a fraction.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import DataError
from layerprobe.similarity.checks import Array, centred_layer, finite_matrix, unit_rows
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, LayerMeasure

BLOCK = 512
"""Rows whose cosines with all others are in memory at once."""


Pairs = NDArray[np.int64]
"""(n k,) i n + j for every neighbour j of every sample i, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualKNN(LayerMeasure[Pairs]):
    """The mean share of nearest neighbours common to two layers.

    m = 1 / n sum_i |N_X(i) & N_Y(i)| / k, where N(i) are the k other samples with the largest cosine to sample i.
    Rows are not centred. Independent layers share k / (n - 1) on average. The choice among equal cosines is not
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
    invariances = ROTATIONS | {"row-scaling"}
    by_cosine = True

    neighbours: int = 10
    """Number of nearest neighbours per sample."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if self.neighbours < 1:
            raise DataError(f"expected at least one neighbour, got {self.neighbours}")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return f"{self.short_name} (k = {self.neighbours})"

    @property
    def least_samples(self) -> int:
        """Smallest number of texts: with as many neighbours as other samples, every value is 1 with error 0."""
        return self.neighbours + 2

    def prepare(self, layer: ArrayLike, *, name: str) -> Pairs:
        """Return the nearest neighbours of its samples."""
        return nearest_neighbours(layer, name=name, neighbours=self.neighbours)

    def compare(self, first: Pairs, second: Pairs) -> float:
        """Return the mean share of common neighbours of two layers."""
        return float(np.isin(first, second, assume_unique=True).mean())

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean share of independent layers, k / (n - 1)."""
        level = min(self.neighbours / (n - 1), 1.0)
        if level <= CHANCE:
            return None
        return (
            f"{self.neighbours} neighbours among {n} texts are many: independent layers would share "
            f"{100 * level:.0f} % of them: compare with fewer neighbours, or on more texts"
        )


def nearest_neighbours(X: ArrayLike, *, name: str, neighbours: int) -> Pairs:
    """Return the nearest neighbours of every sample; it needs memory for a block of rows of n cosines.

    Raises:
        DataError: Also if there are fewer samples than neighbours.
        DegenerateLayerError: Also if a row is zero.
    """
    centred_layer(X, name=name)  # for its checks
    units = unit_rows(finite_matrix(X, name=name), name=name)
    n = len(units)
    if not 1 <= neighbours < n:
        raise DataError(
            f"neighbours is {neighbours}, expected 1 to {n - 1}, the other samples of {name}: "
            "use fewer neighbours or more texts"
        )
    return np.concatenate([_nearest(units, start, neighbours) for start in range(0, n, BLOCK)])


def _nearest(units: Array, start: int, neighbours: int) -> Pairs:
    """Return the pairs of a block of rows."""
    cosines = units[start : start + BLOCK] @ units.T
    rows = np.arange(start, start + len(cosines))
    cosines[rows - start, rows] = -np.inf
    nearest = np.sort(np.argpartition(cosines, -neighbours, axis=1)[:, -neighbours:], axis=1)
    pairs: Pairs = (rows[:, None] * len(units) + nearest).ravel()
    return pairs
