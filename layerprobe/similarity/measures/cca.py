"""Canonical correlations of layers: SVCCA and PWCCA. Knows arrays; knows no models.

In n samples a layer that keeps k dimensions spans k of the n - 1 dimensions that are left without the mean. Two
layers that keep more than n - 1 together have directions in common whatever the data: those canonical correlations
are 1. Such a pair is refused here instead of called similar.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """The directions in which the samples of a layer vary most."""

    name: str
    """What messages call the layer."""
    basis: Array
    """(n, k) orthonormal columns of mean 0."""
    loadings: Array
    """(k, d): the centred layer is basis loadings, but for the directions left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CCA(LayerMeasure[Subspace]):
    """Blind to the scale of features, so that every direction of noise counts as much as any other."""

    range = (0.0, 1.0)

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn of the mean squared canonical correlation of independent layers, max(d, e) / (n - 1)."""
        width, name = max((layer.n_features, name) for name, layers in (model, reference) for layer in layers)
        level = width / (n - 1)
        if level <= CHANCE:
            return None
        start = f"{name} has {width} features on {n} texts: "
        advice = f"compare by cka, or on {math.ceil(width / CHANCE) + 1} texts or more"
        if n <= width:
            return f"{start}any two layers of full rank then correlate fully, so {self.title} is meaningless: {advice}"
        return (
            f"{start}independent layers would show canonical correlations of up to about {math.sqrt(level):.2f}: "
            f"{advice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SVCCA(_CCA):
    """The mean canonical correlation of the principal components of two layers.

    Of each centred layer the fewest components are kept whose squared singular values reach a share of their sum; the
    value is the mean of the min(k_X, k_Y) singular values of U_X^T U_Y. It is the same for any invertible map only
    with all of the variance. Independent layers are far from 0 unless n is much larger than the number of components:
    about sqrt(k / n).

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
    symmetric = True
    invariances = ROTATIONS | {"translation"}

    variance: float = 0.99
    """Share of the variance to keep; components below 1e-6 of the largest singular value are never kept."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if not 0 < self.variance <= 1:
            raise DataError(f"variance is {self.variance}, expected a share above 0 and at most 1 such as 0.99")

    @property
    def long_name(self) -> str:
        """What people call it, of whatever features."""
        return "SVCCA" if self.variance == 0.99 else f"SVCCA ({100 * self.variance:g} % of the variance)"

    def prepare(self, layer: ArrayLike, *, name: str) -> Subspace:
        """Return the directions of most of its variance."""
        return principal_subspace(layer, name=name, variance=self.variance)

    def compare(self, first: Subspace, second: Subspace) -> float:
        """Return the mean of the canonical correlations."""
        return float(np.linalg.svd(_product(first, second), compute_uv=False).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class PWCCA(_CCA):
    """The canonical correlations of two layers, averaged by how much of the first layer each stands for.

    sum_i a_i rho_i / sum_i a_i with a_i = sum_j |<h_i, x_j>|, where h_i is the i-th canonical variate of X (a vector
    over samples, of length 1) and x_j its j-th feature, centred. The weights are those of X, the layer under study;
    Y may be mapped by any invertible map. Where canonical correlations are equal the weights are not unique.
    Independent layers are far from 0 unless n is much larger than the number of features.

    No two public implementations agree, and the two most used are not this formula: see the tests.

    Source: Morcos et al. 2018 (arXiv 1806.05759); Kornblith et al. 2019 (arXiv 1905.00414) write it the same way.

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X[:, ::-1] + 1, PWCCA()), 12), layer_similarity(X, X**2, PWCCA()) < 0.5
        (1.0, True)
    """

    name = "pwcca"
    short_name = "PWCCA"
    source = "Morcos et al. 2018 (arXiv 1806.05759)"
    symmetric = False
    invariances = frozenset({"translation", "isotropic-scaling", "permutation"})
    outliers = False

    def prepare(self, layer: ArrayLike, *, name: str) -> Subspace:
        """Return all directions in which it varies."""
        return principal_subspace(layer, name=name)

    def compare(self, first: Subspace, second: Subspace) -> float:
        """Return the canonical correlations, averaged with the weights of the first layer."""
        directions, correlations, _ = np.linalg.svd(_product(first, second), full_matrices=False)
        # <h_i, x_j> of h = basis directions and x = basis loadings.
        weights = np.abs(first.loadings.T @ directions).sum(axis=0)
        return float(weights @ correlations / weights.sum())


def principal_subspace(X: ArrayLike, *, name: str, variance: float = 1.0) -> Subspace:
    """Return the fewest principal components that reach a share of the variance, and none that are rounding."""
    left, scales, right = np.linalg.svd(centred_layer(X, name=name), full_matrices=False)
    rank = int((scales > RANK * scales[0]).sum())
    shares = np.cumsum((scales / scales[0]) ** 2)
    kept_rank = min(rank, int(np.searchsorted(shares, variance * shares[-1])) + 1)
    return Subspace(name=name, basis=left[:, :kept_rank], loadings=scales[:kept_rank, None] * right[:kept_rank])


def _product(first: Subspace, second: Subspace) -> Array:
    """Return U_X^T U_Y, whose singular values are the canonical correlations."""
    (n, size), other_size = first.basis.shape, second.basis.shape[1]
    forced = size + other_size - (n - 1)
    if forced > 0:
        raise DegenerateLayerError(
            f"{first.name} and {second.name} keep {size} and {other_size} dimensions of {n} samples, expected at most "
            f"{n - 1} together: {forced} canonical correlations are 1 whatever the data; compare on at least "
            f"{n + forced} texts, or by CKA or Procrustes similarity"
        )
    product: Array = first.basis.T @ second.basis
    return product
