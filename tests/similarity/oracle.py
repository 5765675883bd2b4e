"""The definitions of HSIC and CKA, one whole Gram matrix in float64 at a time: what the tiled engine is compared with.

Song et al. 2012, Kornblith et al. 2019.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL
from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import SimilarityMap

Array = NDArray[np.float64]

MEASURES = [
    CKA(kernel=kernel, estimator=estimator, normalize=normalize)
    for kernel in ("linear", "rbf")
    for estimator in ("debiased", "biased")
    for normalize in ("raw", "zscore")
]
LINEAR, RBF = CKA(), CKA(kernel="rbf")


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


def cka(X: ArrayLike, Y: ArrayLike, measure: CKA = LINEAR) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))."""
    return cka_of_grams(gram(X, measure), gram(Y, measure), measure)


def cka_of_grams(K: Array, L: Array, measure: CKA = LINEAR) -> float:
    both, first, second = (hsic(*pair, estimator=measure.estimator) for pair in ((K, L), (K, K), (L, L)))
    return both / np.sqrt(first * second)


def cka_map(model: list[Array], reference: list[Array], measure: CKA = LINEAR) -> Array:
    return np.array([[cka(X, Y, measure) for Y in reference] for X in model])


def gram(X: ArrayLike, measure: CKA) -> Array:
    X = zscored(X) if measure.normalize == "zscore" else np.asarray(X)
    if measure.kernel == "linear":
        return linear_gram(X)
    return rbf_gram(X, bandwidth_multiplier=measure.bandwidth_multiplier)


def zscored(X: ArrayLike) -> Array:
    """Features of mean 0 and standard deviation 1, without those that are constant."""
    X = np.asarray(X, dtype=np.float64)
    X = X[:, np.ptp(X, axis=0) > 0]
    return (X - X.mean(axis=0)) / X.std(axis=0)


def map_by_cka(
    model: Iterable[Any],
    reference: Iterable[Any],
    *,
    measure: CKA = LINEAR,
    level: float = LEVEL,
) -> SimilarityMap:
    """The map of the engine, not of the definitions."""
    models = [("the model", list(model)), ("the reference", list(reference))]
    (estimate,) = estimate_cka(models, measures=[measure], level=level)
    return estimate.map


def unit(K: Array) -> Array:
    """The U-centred matrix, of norm 1: debiased CKA is the inner product of two."""
    centred = centre(K.copy(), estimator="debiased")
    return centred / np.linalg.norm(centred)


def condition(K: Array) -> float:
    """By how much centring magnifies the rounding errors of a Gram matrix."""
    return float(np.linalg.norm(K) / np.linalg.norm(centre(K.copy(), estimator="debiased")))


def brute_force_hsic(K: Array, L: Array) -> float:
    """HSIC_1: the mean of K_ij L_ij + K_ij L_qr - 2 K_ij L_iq over ordered 4-tuples of distinct rows."""
    i, j, q, r = np.array(list(itertools.permutations(range(len(K)), 4))).T
    return float(np.mean(K[i, j] * L[i, j] + K[i, j] * L[q, r] - 2 * K[i, j] * L[i, q]))


def jackknife(K: Array, L: Array) -> Array:
    """Pseudo-values n theta - (n - 1) theta_(i) of debiased CKA, where (i) leaves out sample i."""
    n = len(K)
    without = [cka_of_grams(K[np.ix_(keep, keep)], L[np.ix_(keep, keep)]) for keep in ~np.eye(n, dtype=bool)]
    return n * cka_of_grams(K, L) - (n - 1) * np.array(without)
