"""InfoNCE: a quality of layers without labels, from embeddings of altered copies. Knows arrays, no texts.

A view is the embedding of a copy of a text, altered so that it means about the same. Skean et al. 2025 (arXiv
2502.02013), who found it to correlate with a layer's downstream scores, report the loss (lower is better) of one
direction, or with negatives of the same view; here it is the bound (higher is better) of both directions.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError
from layerprobe.similarity.checks import Array, as_array, finite_matrix, unit_rows

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
