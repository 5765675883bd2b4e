"""Canonical correlations of layers: SVCCA. Knows arrays; knows no models.

With n samples a layer that keeps k dimensions spans k of the n - 1 dimensions left without the mean. Two
layers that keep more than n - 1 in total share directions whatever the data: those canonical correlations
are 1. Such a pair is refused instead of called similar.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import Array, centred_layer
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, LayerMeasure

RANK = 1e-6
"""Singular values below this share of the largest are rounding: embeddings are stored in float32."""


Subspace = tuple[str, Array]
"""Name of a layer, and the (n, k) orthonormal directions, with mean 0, in which its samples vary most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SVCCA(LayerMeasure[Subspace]):
    """The mean canonical correlation of the principal components of two layers.

    Of each centred layer the fewest components are kept whose squared singular values reach a share of their sum; the
    value is the mean of the min(k_X, k_Y) singular values of U_X^T U_Y. It is the same for any invertible map only
    with all of the variance. Independent layers are far from 0 unless n is much larger than the number of components:
    about sqrt(k / n). It is blind to the scale of features, so that every direction of noise that is kept counts as
    much as any other.

    Source: Raghu et al. 2017 (arXiv 1706.05806).

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X[:, ::-1] + 1, SVCCA()), 12), layer_similarity(X, X**2, SVCCA()) < 0.5
        (1.0, True)
    """

    name = "svcca"
    short_name = "SVCCA"
    source = "Raghu et al. 2017 (arXiv 1706.05806)"
    range = (0.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    variance: float = 0.99
    """Share of the variance to keep; components below 1e-6 of the largest singular value are never kept."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if not 0 < self.variance <= 1:
            raise DataError(f"variance is {self.variance}, expected a share above 0 and at most 1 such as 0.99")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return "SVCCA" if self.variance == 0.99 else f"SVCCA ({100 * self.variance:g} % of the variance)"

    def prepare(self, layer: ArrayLike, *, name: str) -> Subspace:
        """Return the directions of most of its variance."""
        return name, principal_subspace(layer, name=name, variance=self.variance)

    def compare(self, first: Subspace, second: Subspace) -> float:
        """Return the mean of the canonical correlations, the singular values of U_X^T U_Y."""
        (name, basis), (other_name, other_basis) = first, second
        (n, size), other_size = basis.shape, other_basis.shape[1]
        forced = size + other_size - (n - 1)
        if forced > 0:
            raise DegenerateLayerError(
                f"{name} and {other_name} keep {size} and {other_size} dimensions of {n} samples, expected at most "
                f"{n - 1} together: {forced} canonical correlations are 1 whatever the data; compare on at least "
                f"{n + forced} texts, or use CKA or Procrustes similarity"
            )
        return float(np.linalg.svd(basis.T @ other_basis, compute_uv=False).mean())

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean squared canonical correlation of independent layers, max(d, e) / (n - 1)."""
        width, name = max((layer.n_features, name) for name, layers in (model, reference) for layer in layers)
        level = width / (n - 1)
        if level <= CHANCE:
            return None
        start = f"{name} has {width} features on {n} texts: "
        advice = f"use cka, or at least {math.ceil(width / CHANCE) + 1} texts"
        if n <= width:
            return f"{start}any two layers of full rank then correlate fully, so {self.title} is meaningless: {advice}"
        return (
            f"{start}independent layers would show canonical correlations of up to about {math.sqrt(level):.2f}: "
            f"{advice}"
        )


def principal_subspace(X: ArrayLike, *, name: str, variance: float) -> Array:
    """Return the fewest principal components that reach a share of the variance, without rounding noise."""
    left, scales, _ = np.linalg.svd(centred_layer(X, name=name), full_matrices=False)
    rank = int((scales > RANK * scales[0]).sum())
    shares = np.cumsum((scales / scales[0]) ** 2)
    basis: Array = left[:, : min(rank, int(np.searchsorted(shares, variance * shares[-1])) + 1)]
    return basis
