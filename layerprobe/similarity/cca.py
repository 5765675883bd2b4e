"""Canonical correlations of layers: SVCCA and PWCCA. Knows arrays; knows no models.

In n samples a layer that keeps k dimensions spans k of the n - 1 dimensions that are left without the mean. Two
layers that keep more than n - 1 together have directions in common whatever the data: those canonical correlations
are 1. Such a pair is refused here instead of called similar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import Array, centred_layer, check_same_samples

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

    @property
    def n_samples(self) -> int:
        """Rows."""
        return len(self.basis)

    @property
    def n_kept(self) -> int:
        """Dimensions kept."""
        return int(self.basis.shape[1])


def svcca(X: ArrayLike, Y: ArrayLike, *, variance: float = 0.99) -> float:
    """Return the mean canonical correlation of the principal components of two layers.

    Of each centred layer the fewest components are kept whose squared singular values reach the share of their sum;
    the value is the mean of the min(k_X, k_Y) singular values of U_X^T U_Y. It is the same for X + c, aX and XQ with
    orthogonal Q; for any invertible map only with variance = 1. Independent layers are far from 0 unless n is much
    larger than the number of components: about sqrt(k / n).

    Args:
        X: (n, d) embeddings, n >= 4.
        Y: (n, e) embeddings of the same samples in the same order.
        variance: Share of the variance to keep, above 0 and at most 1. Components below 1e-6 of the largest
            singular value are never kept.

    Returns:
        The mean, in [0, 1] up to rounding.

    Raises:
        DataError: If an argument is no matrix of real numbers, or the share is not above 0 and at most 1.
        DegenerateLayerError: If a layer is constant, not finite, or has fewer than 4 rows, or if both keep more
            than n - 1 components together, so that some correlations are 1 whatever the data.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Raghu et al. 2017 (arXiv 1706.05806).

    Example:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(svcca(X, 3 * X[:, ::-1] + 1), 12), svcca(X, X**2) < 0.5
        (1.0, True)
    """
    return mean_correlation(
        principal_subspace(X, name="X", variance=variance), principal_subspace(Y, name="Y", variance=variance)
    )


def pwcca(X: ArrayLike, Y: ArrayLike) -> float:
    """Return the canonical correlations of two layers, averaged by how much of the first layer each stands for.

    sum_i a_i rho_i / sum_i a_i with a_i = sum_j |<h_i, x_j>|, where h_i is the i-th canonical variate of X (a vector
    over samples, of length 1) and x_j its j-th feature, centred. The weights are those of X, the layer under study,
    so it is not symmetric; Y may be mapped by any invertible map. It is the same for X + c, aX and another order of
    features; not for XQ with orthogonal Q, as the sum of absolute values depends on the features. Where canonical
    correlations are equal the weights are not unique.

    No two public implementations agree, and the two most used are not this formula: see the tests.

    Args:
        X: (n, d) embeddings, n >= 4.
        Y: (n, e) embeddings of the same samples in the same order.

    Returns:
        The weighted mean, in [0, 1] up to rounding. Independent layers are far from 0 unless n is much larger than
        the number of features.

    Raises:
        DataError: If an argument is no matrix of real numbers.
        DegenerateLayerError: If a layer is constant, not finite, or has fewer than 4 rows, or if both have rank more
            than n - 1 together, so that some correlations are 1 whatever the data. The rank leaves out singular
            values below 1e-6 of the largest.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Morcos et al. 2018 (arXiv 1806.05759); Kornblith et al. 2019 (arXiv 1905.00414) write it the same way.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(pwcca(X, 3 * X[:, ::-1] + 1), 12), pwcca(X, X**2) < 0.5
        (1.0, True)
    """
    return weighted_correlation(principal_subspace(X, name="X"), principal_subspace(Y, name="Y"))


def principal_subspace(X: ArrayLike, *, name: str, variance: float = 1.0) -> Subspace:
    """Return the fewest principal components that reach a share of the variance, and none that are rounding.

    Raises:
        DataError: If it is no matrix of real numbers, or the share is not above 0 and at most 1.
        DegenerateLayerError: If it is constant, not finite, or has fewer than 4 rows.
    """
    if not 0 < variance <= 1:
        raise DataError(f"variance is {variance}, expected a share above 0 and at most 1 such as 0.99")
    left, scales, right = np.linalg.svd(centred_layer(X, name=name), full_matrices=False)
    rank = int((scales > RANK * scales[0]).sum())
    shares = np.cumsum((scales / scales[0]) ** 2)
    kept = min(rank, int(np.searchsorted(shares, variance * shares[-1])) + 1)
    return Subspace(name=name, basis=left[:, :kept], loadings=scales[:kept, None] * right[:kept])


def mean_correlation(first: Subspace, second: Subspace) -> float:
    """Return the mean of the canonical correlations.

    Raises:
        DegenerateLayerError: If some are 1 whatever the data.
        MisalignedSamplesError: If the numbers of samples differ.
    """
    return float(np.linalg.svd(_product(first, second), compute_uv=False).mean())


def weighted_correlation(first: Subspace, second: Subspace) -> float:
    """Return the canonical correlations, averaged with the weights of the first layer.

    Raises:
        DegenerateLayerError: If some are 1 whatever the data.
        MisalignedSamplesError: If the numbers of samples differ.
    """
    directions, correlations, _ = np.linalg.svd(_product(first, second), full_matrices=False)
    # <h_i, x_j> of h = basis directions and x = basis loadings.
    weights = np.abs(first.loadings.T @ directions).sum(axis=0)
    return float(weights @ correlations / weights.sum())


def _product(first: Subspace, second: Subspace) -> Array:
    """Return U_X^T U_Y, whose singular values are the canonical correlations."""
    check_same_samples(first.n_samples, second.n_samples, name=first.name, other=second.name)
    forced = first.n_kept + second.n_kept - (first.n_samples - 1)
    if forced > 0:
        raise DegenerateLayerError(
            f"{first.name} and {second.name} keep {first.n_kept} and {second.n_kept} dimensions of "
            f"{first.n_samples} samples, expected at most {first.n_samples - 1} together: {forced} canonical "
            f"correlations are 1 whatever the data; compare on at least {first.n_samples + forced} "
            "texts, or by CKA or Procrustes similarity"
        )
    product: Array = first.basis.T @ second.basis
    return product
