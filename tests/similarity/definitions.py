"""The definitions of HSIC, one whole Gram matrix in float64 at a time: Song et al. 2012, Kornblith et al. 2019."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.measures import CKA

Array = NDArray[np.float64]


def hsic(K: Array, L: Array, *, estimator: str = "debiased") -> float:
    """tr(K H L H) / (n - 1)^2, or HSIC_1 as the inner product of U-centred matrices."""
    n = len(K)
    inner = np.vdot(centre(K, estimator=estimator), centre(L, estimator=estimator))
    return float(inner / ((n - 1) ** 2 if estimator == "biased" else n * (n - 3)))


def centre(K: Array, *, estimator: str) -> Array:
    """H K H; or U_ij = K_ij - K_i. / (n - 2) - K_.j / (n - 2) + K_.. / ((n - 1)(n - 2)), without the diagonal."""
    n, K = len(K), np.array(K, dtype=np.float64)
    if estimator == "biased":
        return K - K.mean(axis=0) - K.mean(axis=1, keepdims=True) + K.mean()
    np.fill_diagonal(K, 0.0)
    sums = K.sum(axis=0)
    K += sums.sum() / ((n - 1) * (n - 2)) - sums / (n - 2) - sums[:, None] / (n - 2)
    np.fill_diagonal(K, 0.0)
    return K


def linear_gram(X: ArrayLike) -> Array:
    centred = np.array(X, dtype=np.float64)
    centred -= centred.mean(axis=0)
    return centred @ centred.T


def squared_distances(X: ArrayLike) -> Array:
    rows = np.asarray(X, dtype=np.float64)
    return np.stack([np.square(rows - row).sum(axis=1) for row in rows])


def rbf_sigma_squared(X: ArrayLike, *, bandwidth_multiplier: float = 1.0) -> float:
    distances = squared_distances(X)
    return bandwidth_multiplier**2 * float(np.median(distances[np.triu_indices(len(distances), 1)]))


def rbf_gram(X: ArrayLike, *, bandwidth_multiplier: float = 1.0) -> Array:
    return np.exp(-squared_distances(X) / (2 * rbf_sigma_squared(X, bandwidth_multiplier=bandwidth_multiplier)))


def rbf_cka(X: Any, Y: Any, **settings: Any) -> float:
    """CKA of the engine under Gaussian kernels."""
    (estimate,) = estimate_cka([("X", [X]), ("Y", [Y])], measures=[CKA(kernel="rbf", **settings)])
    return estimate.map.values[0][0]
