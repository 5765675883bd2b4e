"""HSIC of Gram matrices. Knows the estimators; knows no kernels and no layers.

Both estimators are inner products of centred Gram matrices, so each matrix is centred once however many others
it is compared with.
"""

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.checks import check_choice
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import MIN_SAMPLES, Array, check_same_samples, finite_matrix
from layerprobe.similarity.values import Estimator

ASYMMETRY = 1e-5
"""What float32 products leave between K and its transpose, relative to the largest entry."""


def hsic(K: ArrayLike, L: ArrayLike, *, estimator: Estimator = "debiased") -> float:
    """Return the Hilbert-Schmidt independence criterion of two Gram matrices.

    biased: HSIC_0 = tr(K H L H) / (n - 1)^2 with H = I - 1 1^T / n.

    debiased: HSIC_1 = [tr(K~ L~) + 1^T K~ 1 1^T L~ 1 / ((n - 1)(n - 2)) - 2 / (n - 2) 1^T K~ L~ 1] / (n (n - 3)),
    where K~ and L~ are K and L with zeros on the diagonal. It is computed as the inner product of the U-centred
    matrices, which is the same number.

    Args:
        K: (n, n) symmetric Gram matrix, n >= 4.
        L: (n, n) symmetric Gram matrix of the same samples in the same order.
        estimator: debiased or biased.

    Returns:
        biased: 0 or more, for positive semi-definite matrices. debiased: can be negative; its mean over samples
        is the HSIC of the distribution, 0 for independent ones.

    Raises:
        LayerProbeError: If a matrix is not square, symmetric and finite, n < 4, or the matrices differ in size.

    Source: Gretton et al. 2005 (ALT), equation 9; Song et al. 2012 (JMLR 13), HSIC_1; U-centring: Szekely and
    Rizzo 2014 (Annals of Statistics 42), definition 2.

    Examples:
        >>> K = np.outer([0.0, 1.0, 2.0, 5.0], [0.0, 1.0, 2.0, 5.0])
        >>> round(hsic(K, K, estimator="biased"), 6), round(hsic(K, K, estimator="debiased"), 6)
        (21.777778, 8.166667)
    """
    check_choice(estimator, Estimator, name="estimator")
    first, second = _checked_gram(K, name="K"), _checked_gram(L, name="L")
    n = len(first)
    check_same_samples(len(second), n, name="L", other="K")
    inner = np.vdot(centre(first, estimator=estimator), centre(second, estimator=estimator))
    return float(inner / ((n - 1) ** 2 if estimator == "biased" else n * (n - 3)))


def centre(K: Array, *, estimator: Estimator) -> Array:
    """Centre a Gram matrix in place, so that HSIC becomes an inner product.

    biased: H K H. debiased: U_ij = K_ij - K_i. / (n - 2) - K_.j / (n - 2) + K_.. / ((n - 1)(n - 2)) for i != j
    and 0 for i = j, where the sums leave out the diagonal. `K` itself is returned, overwritten.
    """
    n = len(K)
    if estimator == "biased":
        rows, total = n, n * n
    else:
        rows, total = n - 2, (n - 1) * (n - 2)
        np.fill_diagonal(K, 0.0)
    sums = K.sum(axis=0)
    K -= sums / rows
    K -= sums[:, None] / rows
    K += sums.sum() / total
    if estimator == "debiased":
        np.fill_diagonal(K, 0.0)
    return K


def _checked_gram(K: ArrayLike, *, name: str) -> Array:
    matrix = finite_matrix(K, name=name)
    n = len(matrix)
    if matrix.shape != (n, n):
        raise DataError(f"{name} has shape {matrix.shape}, expected a square Gram matrix: pass linear_gram(X)")
    if n < MIN_SAMPLES:
        raise DegenerateLayerError(f"{name} has {n} samples, expected at least {MIN_SAMPLES}: use more samples")
    if np.abs(matrix - matrix.T).max() > ASYMMETRY * np.abs(matrix).max():
        raise DataError(f"{name} is not symmetric, expected the Gram matrix of one layer: pass linear_gram(X)")
    return matrix
