"""Embeddings of which some features carry a signal, more of it at some layers than at others."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STRENGTHS = (0.1, 0.5, 1.0, 1.2, 1.0, 0.3)


def layered(n: int, *, width: int = 24, seed: int = 0, strengths: tuple[float, ...] = STRENGTHS) -> tuple[Array, Array]:
    """Return (n, layers, width) embeddings and the (n, 4) signal in them."""
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((n, 4))
    embeddings = rng.standard_normal((n, len(strengths), width))
    for layer, strength in enumerate(strengths):
        embeddings[:, layer, :4] += strength * signal
    return embeddings, signal


def scores_of(signal: Array, *, seed: int = 0) -> Array:
    """Return a number a sample that the signal explains in part."""
    scores: Array = signal.sum(axis=1) + np.random.default_rng(seed).standard_normal(len(signal))
    return scores
