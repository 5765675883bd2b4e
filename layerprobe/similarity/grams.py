"""Gram matrices of a layer. Knows kernels and bandwidths; knows neither HSIC nor layers of models."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import squareform

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.checks import Array, centred_layer
from layerprobe.similarity.measures.cka import check_bandwidth_multiplier


def linear_gram(X: ArrayLike) -> Array:
    """Return the inner products of the centred rows.

    K = (X - mean) (X - mean)^T. HSIC is the same with and without the mean; subtracting it before the product
    keeps the digits that a large common offset would take, as in the upper layers of encoders.

    Args:
        X: (n, d) embeddings, n >= 4.

    Returns:
        (n, n), symmetric and positive semi-definite.

    Raises:
        LayerProbeError: As in `centred_layer`.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3.

    Examples:
        >>> linear_gram([[1.0], [2.0], [3.0], [6.0]])[3].tolist()
        [-6.0, -3.0, 0.0, 9.0]
    """
    centred = centred_layer(X, name="X")
    return centred @ centred.T


def rbf_gram(X: ArrayLike, *, bandwidth_multiplier: float = 1.0) -> Array:
    """Return the Gaussian kernel of the rows, its bandwidth set by the median distance.

    K_ij = exp(-d_ij^2 / (2 sigma^2)) with sigma^2 of `rbf_sigma_squared`, which takes and refuses the same.

    Returns:
        (n, n), symmetric, values in [0, 1], ones on the diagonal.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3.

    Examples:
        >>> rbf_gram([[0.0], [1.0], [2.0], [3.0]])[0].round(4).tolist()
        [1.0, 0.8187, 0.4493, 0.1653]
    """
    distances, sigma_squared = _bandwidth(X, bandwidth_multiplier)
    distances /= -2 * sigma_squared
    return np.exp(distances, out=distances)


def rbf_sigma_squared(X: ArrayLike, *, bandwidth_multiplier: float = 1.0) -> float:
    """Return the squared bandwidth of the Gaussian kernel.

    sigma^2 = multiplier^2 x median of d_ij^2 over i < j. Public implementations differ here: some count the zero
    distances i = j, some take the lower of the two middle values, some leave out the factor 2 of the kernel.

    Args:
        X: (n, d) embeddings, n >= 4.
        bandwidth_multiplier: sigma in units of the root of the median squared distance.

    Examples:
        >>> round(rbf_sigma_squared([[0.0], [1.0], [2.0], [3.0]]), 12)
        2.5
    """
    return _bandwidth(X, bandwidth_multiplier)[1]


def squared_distances(centred: Array) -> Array:
    """Return all (n, n) squared distances between rows of a centred layer, |x_i|^2 + |x_j|^2 - 2 x_i x_j.

    They are 0 where rounding cannot tell two rows apart, and on the diagonal.
    """
    distances = centred @ centred.T
    norms = distances.diagonal().copy()
    sums = norms[:, None] + norms
    distances *= -2
    distances += sums
    # The three terms nearly cancel for equal rows: what is left is the error of a sum over d features.
    sums *= (centred.shape[1] + 2) * np.finfo(np.float64).eps
    distances[distances <= sums] = 0.0
    np.fill_diagonal(distances, 0.0)
    return distances


def _bandwidth(X: ArrayLike, bandwidth_multiplier: float) -> tuple[Array, float]:
    """Return the squared distances, and sigma^2."""
    check_bandwidth_multiplier(bandwidth_multiplier)
    distances = squared_distances(centred_layer(X, name="X"))
    median = float(np.median(squareform(distances, checks=False)))
    if median == 0:
        raise DegenerateLayerError(
            "X has a median distance of 0 between samples, expected most samples to differ: "
            "remove duplicate texts, or use the linear kernel"
        )
    return distances, bandwidth_multiplier**2 * median
