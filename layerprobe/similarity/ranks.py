"""How surely the effective ranks of a model's layers are known. Knows arrays; knows no models and no files."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import entr

from layerprobe.errors import DataError
from layerprobe.results import CurveUncertainty, check_level
from layerprobe.similarity.checks import Array, check_shape
from layerprobe.similarity.diagnostics import blocks
from layerprobe.similarity.inference import MIN_UNITS, band_width


def rank_influences(layer: ArrayLike) -> tuple[float, Array]:
    r"""Return the effective rank of a layer, and how each sample pulls at it.

    With centred rows c_i, the eigenvectors v_k of their covariance, its trace T and p_k the shares of its eigenvalues,
    the entropy is H = - sum p_k log p_k and the effective rank exp(H). Giving sample i more weight changes H by

        h_i = - (sum_k log p_k (c_i^T v_k)^2 + H |c_i|^2) / T

    a unit of weight, and the effective rank by exp(H) h_i; both have the mean 0.

    Args:
        layer: (n, d) embeddings without NaN that are not all the same; a memory map is read block by block.

    Returns:
        The effective rank, in [1, min(n - 1, d)], and (n,) influence values.

    Source: Hampel 1974 (Journal of the American Statistical Association 69) for influence values; `diagnose` for the
    effective rank.

    Example:
        >>> rank, influences = rank_influences(np.random.default_rng(0).normal(size=(500, 8)))
        >>> round(rank, 1), influences.shape, bool(abs(influences.mean()) < 1e-9)
        (7.9, (500,), True)
    """
    array = np.asarray(layer)
    check_shape(array.shape, array.dtype, name="the layer")
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
    pulls = np.concatenate([each @ logs + entropy * each.sum(axis=1) for each in squares])
    return float(np.exp(entropy)), -n * np.exp(entropy) / total * pulls


def rank_uncertainty(
    layers: Iterable[ArrayLike], *, level: float, clusters: NDArray[np.intp] | None = None
) -> tuple[tuple[float, ...], CurveUncertainty]:
    """Return the effective ranks of several layers of the same samples, and how far they may be off.

    The error is that of the samples: how far the ranks of as many other samples would be from these. That a rank of few
    samples is lower than that of many is no part of it. Intervals are too wide
    where there are few samples for the rank, by a fifth with 300 samples and a rank of 45, and where the rank is nearly
    the width of the layer.

    Args:
        layers: (n, d) embeddings each.
        level: Confidence level of intervals and band.
        clusters: (n,) which document 0, 1, ... a sample belongs to; then documents are the independent units.

    Returns:
        The rank of each layer, with intervals by Student's t and a band that holds the whole curve.

    Raises:
        DataError: If there are fewer than five samples or documents.
    """
    check_level(level)
    found = [rank_influences(layer) for layer in layers]
    ranks, influences = np.array([rank for rank, _ in found]), np.stack([each for _, each in found])
    n = influences.shape[1]
    if clusters is not None:
        influences = np.stack([np.bincount(clusters, weights=each) for each in influences])
    units = influences.shape[1]
    if units < MIN_UNITS:
        raise DataError(f"expected at least {MIN_UNITS} samples or documents for an error, got {units}")
    covariances = influences @ influences.T / n**2 * units / (units - 1)
    errors = np.sqrt(np.diag(covariances))
    student, normal = (each.isf((1 - level) / 2) for each in (stats.t(units - 1), stats.norm))
    width = band_width(covariances, level=level) * student / normal
    return tuple(ranks.tolist()), CurveUncertainty(
        level=level,
        lower=tuple((ranks - student * errors).tolist()),
        upper=tuple((ranks + student * errors).tolist()),
        band_lower=tuple((ranks - width * errors).tolist()),
        band_upper=tuple((ranks + width * errors).tolist()),
        covariance=tuple(map(tuple, covariances.tolist())),
        method="influence values",
        n_clusters=None if clusters is None else units,
    )
