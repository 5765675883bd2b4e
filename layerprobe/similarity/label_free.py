"""InfoNCE: how good a layer may be without a label, from embeddings of altered copies. Knows arrays, no texts.

A view is the embedding of a copy of a text, altered so that it still says about the same. Skean et al. 2025 (arXiv
2502.02013), who found it to go with a layer's downstream scores, report the loss (lower is better) of one direction, or
with negatives of the same view; here it is the bound (higher is better) of both directions.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError
from layerprobe.similarity.checks import Array, as_array, finite_matrix, unit_rows

TEMPERATURE = 0.1
"""Of InfoNCE, as in the code of Skean et al."""
COMPETING = 512
"""Texts among which InfoNCE looks for the other copy, whatever their number: rules were fitted to values of so many."""


def infonce_influences(views: ArrayLike, *, competing: int = COMPETING, name: str = "the layer") -> tuple[float, Array]:
    """Return InfoNCE's lower bound of what one view of a text tells of another, and how each text pulls at it.

        log K - mean_i [ log(e_ii + (K - 1) mean_(j != i) e_ij) - log e_ii ],   e_ij = exp(cos(x_i, y_j) / 0.1),

    the mean of both directions, x and y being the first two views, among K competing texts. With n = K texts, the sum
    over all of them is the paper's. The mean over the others stands for K - 1 of them, so that more or fewer texts do
    not change what it is of; more than K texts are divided at random into parts of at most K.

    The pull of a text is n - 1 times what leaving it out takes away, both as the one to be found and as one that it is
    mistaken for, less the mean of all: pseudo-values, whose variance over n is the jackknife's. Few texts are hard to
    tell apart, and weigh so much in pairs that a derivative would miss up to two thirds of the error.

    Views are (view, text, feature), at least two of two texts.

    Returns:
        Nats, at most log K, 0 where a view tells nothing and below where it misleads; and (n,) influence values of
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
    """Return the information about each text less log K, the mean of both directions, and that mean's pseudo-values."""
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
