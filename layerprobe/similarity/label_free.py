"""How good a layer may be without a label, from its embeddings and those of altered copies. Knows arrays, no texts.

Source: Skean et al. 2025 (arXiv 2502.02013, Layer by Layer), who found them to go with a layer's downstream scores.
A view is the embedding of a copy of a text, altered so that it still says about the same.

How this differs from their code (OFSkean/information_flow, revisions 5dc1ca8 and 703d566), so that numbers compare
between layers and models, not with theirs:

- Embeddings: theirs are means of tokens that were centred by text and scaled to length 1, and are not scaled after
  that; here they are pooled as requested and scaled to length 1. Their entropies are divided by log min(n, d) by
  default.
- InfoNCE: theirs is the loss, lower is better; 5dc1ca8 counts the other texts of the same view as negatives, too, and
  703d566 asks in one direction. Here it is the bound, higher is better, of both directions.
- LiDAR: theirs is the entropy, here it is its exponential, a rank, as in the paper. 1e-4 is added to both, and weighs
  more where rows are shorter.
- DiME: where there are more texts than features, theirs multiplies matrices of features by features; here they are
  always of texts by texts, as the paper defines it.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import Array, as_array, check_finite, check_shape
from layerprobe.similarity.diagnostics import blocks

TEMPERATURE = 0.1
"""Of InfoNCE, as in the code of Skean et al."""
RIDGE = 1e-4
"""Added to the spread within texts by LiDAR, as Thilak et al. do; rows have length 1."""
COMPETING = 512
"""Texts among which InfoNCE looks for the other copy, whatever their number: rules were fitted to values of so many."""
SHUFFLES = 10
"""Pairings of the two views over which DiME takes its mean, as in the code of Skean et al."""


def dataset_entropy(layer: ArrayLike, *, name: str = "the layer") -> float:
    """Return the von Neumann entropy of the embeddings of a data set: how many directions they spread over.

    With unit rows u_i, the eigenvalues l_k of the Gram matrix u_i . u_j / n sum to 1, and S = - sum_k l_k log l_k.
    exp(S) is an effective rank that counts the direction which all rows share; that of `diagnose` is of centred rows,
    which are not scaled to one length.

    The layer is (n, d); a memory map is read block by block.

    Returns:
        Nats, 0 .. log min(n, d).
    """
    array = as_array(layer, name=name)
    check_shape(array.shape, array.dtype, name=name)
    n, d = array.shape
    if n < d:
        units = _units(np.asarray(array, dtype=np.float64), name=name)
        return entropy(units @ units.T / n)
    units_of_blocks = (_units(block, name=name) for block in blocks(array))
    return entropy(sum((units.T @ units for units in units_of_blocks), np.zeros((d, d))) / n)


def entropy(matrix: Array) -> float:
    """Return the von Neumann entropy of a symmetric positive matrix over its trace, in nats.

    Examples:
        >>> round(float(np.exp(entropy(np.eye(5)))), 6)
        5.0
    """
    shares = np.maximum(np.linalg.eigvalsh(matrix / np.trace(matrix)), 0.0)
    return float(entr(shares).sum())


def infonce(views: ArrayLike, *, competing: int = COMPETING, name: str = "the layer") -> float:
    """Return InfoNCE's lower bound of what one view of a text tells of another, among K competing texts.

        log K - mean_i [ log(e_ii + (K - 1) mean_(j != i) e_ij) - log e_ii ],   e_ij = exp(cos(x_i, y_j) / 0.1),

    the mean of both directions, x and y being the first two views. With n = K texts, the sum over all of them is the
    paper's. The mean over the others stands for K - 1 of them, so that more or fewer texts do not change what it is of;
    more than K texts are divided at random into parts of at most K.

    Views are (view, text, feature), at least two of two texts.

    Returns:
        Nats, at most log K; 0 where a view tells nothing, and below where it misleads.

    Source: van den Oord et al. 2018 (arXiv 1807.03748), equations 4 and 5.
    """
    return infonce_influences(views, competing=competing, name=name)[0]


def infonce_influences(views: ArrayLike, *, competing: int = COMPETING, name: str = "the layer") -> tuple[float, Array]:
    """Return InfoNCE, see `infonce`, and how each text pulls at it.

    The pull of a text is n - 1 times what leaving it out takes away, both as the one to be found and as one that it is
    mistaken for, less the mean of all: pseudo-values, whose variance over n is the jackknife's. Few texts are hard to
    tell apart, and weigh so much in pairs that a derivative would miss up to two thirds of the error.

    Returns:
        Nats, and (n,) influence values of mean 0.

    Source: Efron and Stein 1981 (Annals of Statistics 9).
    """
    x, y, *_ = _checked_views(views, name=name)
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


def lidar(views: ArrayLike, *, name: str = "the layer") -> float:
    """Return LiDAR: the effective rank of what tells texts apart, measured against what tells their views apart.

    With unit rows, S_w the covariance of views around their text's mean, S_b that of the means, and l_k the
    eigenvalues of (S_w + 1e-4 I)^(-1/2) S_b (S_w + 1e-4 I)^(-1/2) over their sum: exp(- sum_k l_k log l_k).

    Returns:
        1 .. min(n - 1, d).

    Source: Thilak et al. 2023 (arXiv 2312.04000), equations 1 to 5.
    """
    units = _checked_views(views, name=name)
    means = units.mean(axis=0)
    within = (units - means).reshape(-1, units.shape[2])
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    centred = means - means.mean(axis=0)
    # The nonzero eigenvalues are those of the Gram matrix of the whitened means.
    whitened = centred @ (vectors / np.sqrt(np.maximum(values, 0.0) + RIDGE))
    if np.abs(centred).max() <= np.finfo(np.float32).eps:
        raise DegenerateLayerError(f"{name} has one mean for the views of all texts: expected texts that differ")
    small = whitened @ whitened.T if len(whitened) < whitened.shape[1] else whitened.T @ whitened
    return math.exp(entropy(small))


def dime(views: ArrayLike, *, seed: int = 0, name: str = "the layer") -> float:
    """Return DiME: how much less two views surprise together when they are views of the same texts.

    With K and L the Gram matrices of the unit rows of the first two views, S the von Neumann entropy over the trace
    and P random permutations of the texts: mean_P S(K * P L P^T) - S(K * L), * elementwise.

    Returns:
        Nats; about 0 where views tell nothing of each other.

    Source: Skean et al. 2023 (arXiv 2301.08164), equation 8, in the limit alpha -> 1.
    """
    x, y, *_ = _checked_views(views, name=name)
    K, L = x @ x.T, y @ y.T
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(K)) for _ in range(SHUFFLES)]
    apart = float(np.mean([entropy(K * L[np.ix_(order, order)]) for order in orders]))
    return apart - entropy(K * L)


def _checked_views(views: ArrayLike, *, name: str) -> Array:
    array = as_array(views, name=name)
    if array.ndim != 3 or array.dtype.kind not in "fiu" or min(array.shape[:2]) < 2:
        raise DataError(f"expected at least two views of two texts of {name}, got {array.dtype} of {array.shape}")
    return np.stack([_units(view.astype(np.float64), name=name) for view in array])


def _units(rows: Array, *, name: str) -> Array:
    check_finite([rows], name=name)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise DegenerateLayerError(f"{name} has {int((lengths == 0).sum())} rows of zeros, which have no direction")
    units: Array = rows / lengths
    return units
