"""Embeddings of every layer -> two components each, turned so that points keep their places. Knows arrays alone.

Source: PCA: Pearson 1901; the turn: orthogonal Procrustes, Schoenemann 1966 (Psychometrika 31).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def text_map(layers: Iterable[NDArray[np.floating]]) -> tuple[list[Array], list[float]]:
    """Return the first two principal components of each layer, and what share of the variance they are.

    Each layer's are turned, or mirrored, to be as close as can be to those of the layer before, and are of one size:
    their mean squared distance from the middle is 1. So what moves from layer to layer moves in the embeddings.

    Args:
        layers: (n, features) each, of the same samples in the same order.

    Returns:
        By layer, (n, 2) and a share from 0 to 1; of a layer that is the same for all samples, zeros and 0.

    Examples:
        >>> layer = np.array([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
        >>> points, shares = text_map([layer, layer[:, [1, 0, 2]]])
        >>> bool(np.allclose(points[0], points[1])), shares
        (True, [1.0, 1.0])
    """
    points: list[Array] = []
    shares: list[float] = []
    for layer in layers:
        placed, share = _components(np.asarray(layer, dtype=np.float64))
        if points:
            u, _, v = np.linalg.svd(placed.T @ points[-1])
            placed = placed @ (u @ v)
        points.append(placed)
        shares.append(share)
    return points, shares


def _components(layer: Array) -> tuple[Array, float]:
    """Return (n, 2) first components at a mean square of 1, and their share of the variance."""
    centred = layer - layer.mean(axis=0)
    total = float(np.square(centred).sum())
    if total <= np.finfo(np.float32).eps ** 2 * float(np.square(layer).sum()):
        return np.zeros((len(layer), 2)), 0.0
    small = centred.T @ centred if centred.shape[1] <= len(centred) else centred @ centred.T
    values, vectors = np.linalg.eigh(small)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    placed = centred @ vectors if centred.shape[1] <= len(centred) else vectors * np.sqrt(values)
    if placed.shape[1] < 2:
        placed = np.column_stack([placed, np.zeros(len(placed))])
    return placed * np.sqrt(len(placed) / values.sum()), round(float(values.sum()) / total, 4)
