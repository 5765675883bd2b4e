"""Numbers of one layer without labels: diagnostics, effective rank, InfoNCE. Knows one array.

A layer is read in blocks of rows, twice, so that a memory map larger than memory can be diagnosed.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity import checks
from layerprobe.similarity.checks import Array, as_array, finite_matrix, unit_rows
from layerprobe.similarity.values import LayerDiagnostics

BLOCK = 2**21
"""Numbers in memory in float64 at a time: 16 MB."""
NEIGHBOUR_SAMPLES = 2048
"""Rows searched for nearest neighbours: all distances between them are 32 MB."""


def diagnose(
    layer: ArrayLike, *, name: str = "the layer", norm: Literal["none", "final", "raw", "last"] = "none"
) -> LayerDiagnostics:
    """Return diagnostics of a layer for what can distort its similarities.

    With rows x_i, centred rows c_i, eigenvalues l_k of the covariance and p_k = l_k / sum l:

    - duplicates: rows equal to an earlier row, bit by bit.
    - constant features: features that vary by no more than the rounding of the layer's dtype.
    - mean cosine: the mean of cos(x_i, x_j) over i != j, from the sum s of the m unit rows as
      (s^T s - m) / (m (m - 1)); rows of zeros have no direction and are left out.
    - effective rank: exp(- sum p_k log p_k).
    - intrinsic dimension: N / sum log(r2_i / r1_i), r1 and r2 the distances of row i to its two nearest neighbours,
      among at most 2048 rows, the same ones for all layers of n rows; copies up to rounding are left out. Texts that
      come in pairs of paraphrases lower it: r1 is then the distance to the other text of the pair.
    - chance CKA: tr(K)^2 / ((n - 1) |K|^2) = 1 / ((n - 1) sum p_k^2) with K_ij = c_i^T c_j. The mean over all
      permutations of one layer's rows of the biased linear CKA of layers a and b is
      sqrt(chance CKA of a x chance CKA of b).

    Args:
        layer: (n, d) embeddings, n >= 4, of any real dtype; a memory map, or anything with a shape and a dtype whose
            rows can be sliced, is read block by block.
        name: Name in messages, such as "layer 3 of bert-tiny".
        norm: Treatment of the model's final norm: none, final or raw.

    Returns:
        Shares are in (0, 1]; effective rank in [1, min(n - 1, d)]; mean cosine in [-1 / (n - 1), 1], 0 if fewer
        than two rows have a direction; chance CKA in [1 / (n - 1), 1]; all up to rounding. The intrinsic dimension
        is positive, or None if fewer than three rows differ or all have two equally close neighbours.

    Raises:
        DataError: If it is not a matrix of real numbers.
        DegenerateLayerError: If it has fewer than 4 rows, values that are not finite, or rows that differ by no
            more than the rounding of its dtype.

    Source: Ethayarajh 2019 (arXiv 1909.00512) for the mean cosine; Roy and Vetterli 2007 (EUSIPCO)
    for the effective rank, there of singular values, here of their squares, which are shares of the variance;
    Facco et al. 2017 (Scientific Reports 7, 12140) for the intrinsic dimension, here by maximum likelihood instead
    of a fit; Josse and Holmes 2016 (arXiv 1307.7383) for the permutation mean of the RV coefficient, which is
    biased linear CKA.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(500, 8)) @ np.eye(8, 64)
        >>> layer = diagnose(X, name="layer 3 of bert-tiny", norm="none")
        >>> round(layer.effective_rank, 1), layer.constant_features, round(layer.chance_cka, 3)
        (7.9, 56, 0.016)
    """
    array = checks.row_readable(layer, name=name)
    checks.check_shape(array.shape, array.dtype, name=name)
    n, d = array.shape
    checks.check_samples(n, name=name)
    total, unit_total = np.zeros(d), np.zeros(d)
    lowest, highest = np.full(d, np.inf), np.full(d, -np.inf)
    lengths: list[Array] = []
    digests: list[bytes] = []
    for block in blocks(array):
        if not np.isfinite(block).all():
            checks.check_finite(blocks(array), name=name)
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))
        lengths.append(norms)
        total += block.sum(axis=0)
        unit_total += np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0) @ block
        np.minimum(lowest, block.min(axis=0), out=lowest)
        np.maximum(highest, block.max(axis=0), out=highest)
        # Adding 0 turns -0 into 0, which is the same number in other bits.
        digests.append(b"".join(hashlib.blake2b(row.data, digest_size=16).digest() for row in block + 0.0))
    mean, norms = total / n, np.concatenate(lengths)
    mean_square = float((norms**2).mean()) / d
    n_units = int(np.count_nonzero(norms))
    largest, spread = np.maximum(np.abs(lowest), np.abs(highest)), np.maximum(highest - mean, mean - lowest)
    constant = int((spread <= checks.rounding(largest, math.sqrt(mean_square), array.dtype)).sum())
    if constant == d:
        raise DegenerateLayerError(checks.constant_layer(n, name=name))
    eigenvalues, variances = _spectrum(array, mean)
    shares, top = eigenvalues / eigenvalues.sum(), np.sort(variances / variances.sum())[::-1]
    return LayerDiagnostics(
        n_samples=n,
        n_features=d,
        dtype=array.dtype.name,
        norm=norm,
        duplicates=n - len(np.unique(np.frombuffer(b"".join(digests), dtype="S16"))),
        constant_features=constant,
        mean_norm=float(norms.mean()),
        mean_cosine=float(unit_total @ unit_total - n_units) / (n_units * (n_units - 1)) if n_units > 1 else 0.0,
        top_dimension_share=float(top[0]),
        top_three_share=float(top[:3].sum()),
        effective_rank=float(np.exp(entr(shares).sum())),
        intrinsic_dimension=_intrinsic_dimension(array, mean, mean_square),
        chance_cka=float(1 / ((n - 1) * (shares**2).sum())),
    )


def blocks(array: NDArray[Any]) -> Iterator[Array]:
    """Yield runs of rows in float64: for a float64 layer, these are read-only views of its memory."""
    step = max(1, BLOCK // array.shape[1])
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step], dtype=np.float64)


def _spectrum(array: NDArray[Any], mean: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of the covariance, and its diagonal, both times n - 1."""
    n, d = array.shape
    if n < d:  # the Gram matrix of the rows, the smaller one, has the same eigenvalues besides zeros
        centred = np.asarray(array, dtype=np.float64) - mean
        matrix, variances = centred @ centred.T, np.einsum("ij,ij->j", centred, centred)
    else:
        centred_blocks = (block - mean for block in blocks(array))
        matrix = sum((centred.T @ centred for centred in centred_blocks), np.zeros((d, d)))
        variances = matrix.diagonal()
    return np.maximum(np.linalg.eigvalsh(matrix), 0.0), variances


def _intrinsic_dimension(array: NDArray[Any], mean: Array, mean_square: float) -> float | None:
    """Return N / sum log(r2 / r1), or None if undefined; the mean square is that of all numbers."""
    n = len(array)
    if n > NEIGHBOUR_SAMPLES:
        array = array[np.sort(np.random.default_rng(0).choice(n, NEIGHBOUR_SAMPLES, replace=False))]
    distances = squared_distances(np.asarray(array, dtype=np.float64) - mean)
    # Copies that differ by rounding would have a nearest neighbour much closer than the next one.
    spacing = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    errors = (checks.NOISE * spacing) ** 2 * mean_square * array.shape[1]
    copies = np.tril(distances <= errors, -1).any(axis=1)
    if copies.any():
        distances = distances[np.ix_(~copies, ~copies)]
    if len(distances) < 3:
        return None
    np.fill_diagonal(distances, np.inf)
    distances.partition(1, axis=1)
    # Half the log of a ratio of squares.
    total = 0.5 * float(np.log(distances[:, 1] / distances[:, 0]).sum())
    return len(distances) / total if total > 0 else None


def rank_influences(layer: ArrayLike) -> tuple[float, Array]:
    r"""Return the effective rank of a layer, and the influence of each sample on it.

    With centred rows c_i, the eigenvectors v_k of their covariance, its trace T and p_k the shares of its eigenvalues,
    the entropy is H = - sum p_k log p_k and the effective rank exp(H). Giving sample i more weight changes H by

        h_i = - (sum_k log p_k (c_i^T v_k)^2 + H |c_i|^2) / T

    per unit of weight, and the effective rank by exp(H) h_i; both have the mean 0. Errors computed from it are too
    wide with few samples for the rank (by a fifth with 300 samples and a rank of 45), and if the rank is close to
    the width of the layer.

    A layer is (n, d) without NaN and not constant; a memory map is read block by block.

    Returns:
        The effective rank, in [1, min(n - 1, d)], and (n,) influence values.

    Source: Hampel 1974 (Journal of the American Statistical Association 69) for influence values; `diagnose` for the
    effective rank.

    Examples:
        >>> rank, influences = rank_influences(np.random.default_rng(0).normal(size=(500, 8)))
        >>> round(rank, 1), influences.shape, bool(abs(influences.mean()) < 1e-9)
        (7.9, (500,), True)
    """
    array = checks.as_array(layer, name="the layer")
    checks.check_shape(array.shape, array.dtype, name="the layer")
    n, d = array.shape
    mean = np.sum([block.sum(axis=0) for block in blocks(array)], axis=0) / n
    if n < d:
        # the Gram matrix of the rows has the same eigenvalues, and its eigenvectors times their roots are c_i^T v_k
        rows = np.asarray(array, dtype=np.float64) - mean
        eigenvalues, vectors = np.linalg.eigh(rows @ rows.T)
        squares = iter([vectors**2 * np.maximum(eigenvalues, 0.0)])
    else:
        eigenvalues, vectors = np.linalg.eigh(sum((block - mean).T @ (block - mean) for block in blocks(array)))
        squares = (((block - mean) @ vectors) ** 2 for block in blocks(array))
    eigenvalues = np.maximum(eigenvalues, 0.0)
    total = eigenvalues.sum()
    shares = eigenvalues / total
    entropy = float(entr(shares).sum())
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    pulls = np.concatenate([part @ logs + entropy * part.sum(axis=1) for part in squares])
    return float(np.exp(entropy)), -n * np.exp(entropy) / total * pulls


def squared_distances(centred: Array) -> Array:
    """Return all (n, n) squared distances between rows of a centred layer, |x_i|^2 + |x_j|^2 - 2 x_i x_j.

    They are 0 for rows that differ only by rounding, and on the diagonal.
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


TEMPERATURE = 0.1
"""Temperature of InfoNCE, as in the code of Skean et al."""
COMPETING = 512
"""Number of texts among which InfoNCE identifies the other copy; rules were fitted to values for this number."""


def infonce_influences(views: ArrayLike, *, competing: int = COMPETING, name: str = "the layer") -> tuple[float, Array]:
    """Return InfoNCE's lower bound on the information shared by two views of a text, and the influence of each text.

        log K - mean_i [ log(e_ii + (K - 1) mean_(j != i) e_ij) - log e_ii ],   e_ij = exp(cos(x_i, y_j) / 0.1),

    averaged over both directions, with the first two views x and y, among K competing texts. With n = K texts, the sum
    over all of them is the paper's. The mean over the others represents K - 1 of them, so that the number of texts does
    not change the quantity; more than K texts are divided at random into parts of at most K.

    The influence of a text is n - 1 times the effect of leaving it out, both as the target and as a competitor, minus
    the mean of all: pseudo-values, whose variance over n is the jackknife's. The few texts that are hard to distinguish
    weigh so much in pairs that a derivative would miss up to two thirds of the error.

    Views are (view, text, feature), at least two views of two texts.

    Returns:
        Nats, at most log K, 0 if a view is uninformative and negative if it misleads; and (n,) influence values with
        mean 0.

    Source: van den Oord et al. 2018 (arXiv 1807.03748), equations 4 and 5; Efron and Stein 1981 (Annals of Statistics
    9).
    """
    array = as_array(views, name=name)
    if array.ndim != 3 or array.dtype.kind not in "fiu" or min(array.shape[:2]) < 2:
        raise DataError(f"expected at least two views of two texts of {name}, got {array.dtype} of {array.shape}")
    x, y = (unit_rows(finite_matrix(view, name=name), name=name) for view in array[:2])
    n = len(x)
    order = np.random.default_rng(0).permutation(n) if n > competing else np.arange(n)
    gains, pseudo = np.empty(n), np.empty(n)
    for rows in np.array_split(order, -(-n // competing)):
        gains[rows], pseudo[rows] = _gains(x[rows] @ y[rows].T / TEMPERATURE, competing)
    return math.log(competing) + float(gains.mean()), pseudo - pseudo.mean()


def _gains(logits: Array, competing: int) -> tuple[Array, Array]:
    """Return the information about each text minus log K, averaged over both directions, and its pseudo-values."""
    n = len(logits)
    matching, others, gains, without = np.exp(np.diag(logits))[:, None], np.exp(logits), np.zeros(n), np.zeros(n)
    np.fill_diagonal(others, 0.0)
    for scores in (others, others.T):
        sums = scores.sum(axis=1, keepdims=True)
        gains -= np.log1p((competing - 1) / (n - 1) * sums / matching)[:, 0] / 2
        # the gain of text i without text k, which leaves n - 2 others
        left = -np.log1p((competing - 1) / max(n - 2, 1) * np.maximum(sums - scores, 0.0) / matching)
        np.fill_diagonal(left, 0.0)
        without += left.sum(axis=0) / (n - 1) / 2
    return gains, n * gains.mean() - (n - 1) * without
