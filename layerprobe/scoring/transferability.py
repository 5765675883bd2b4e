"""Transferability estimates (LogME, H-score, LinMSE, ...) of frozen features. Knows arrays, no tasks.

One number from features and targets each, without fine-tuning and without items that are held out; they are to be
compared between layers on the same items, not between tasks.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.special import logsumexp

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.checks import Array, centred_layer, check_same_samples, finite_matrix, unit_rows

STEPS = 1000
"""Of the fixed point of `log_evidence`, at most."""
TOLERANCE = 1e-6
"""Relative change of the ratio of its two precisions at which it stops."""
PENALTY = 1.0
"""Of `linear_mse`: the larger one of the two that Nguyen et al. try, the other being none."""
NEIGHBOURS = 3
"""As TransformerRanker takes."""
SCALE = 50.0
"""Of the cosines in `contrastive_loss`, as L3Prune trains with."""
EPSILON = float(np.finfo(np.float64).eps)
ROWS = 1024
"""Items whose distances to all others are in memory at a time."""


def log_evidence(features: ArrayLike, targets: ArrayLike, *, name: str = "the layer") -> float:
    r"""Return LogME: the largest log evidence, an item, of a Bayesian linear model of the targets.

    With y = F w + noise, w ~ N(0, 1 / alpha) and noise ~ N(0, 1 / beta), n items, d features, s_k the squared singular
    values of F and m the posterior mean of w,

        log p(y) = d/2 log alpha + n/2 log beta - 1/2 sum_k log(alpha + beta s_k)
                   - beta/2 |F m - y|^2 - alpha/2 |m|^2 - n/2 log 2 pi,

    made as large as it gets from alpha = beta = 1 on by gamma = sum_k s_k / (s_k + alpha / beta),
    alpha = gamma / |m|^2, beta = (n - gamma) / |F m - y|^2. Neither features nor targets are centred; turning the
    features round or scaling all of them by one number changes nothing where that ends at the same maximum.

    Args:
        features: (n, d).
        targets: (n,) scores, or (n, k) columns of which the mean is taken, such as `class_columns`.
        name: What to call the features in errors.

    Returns:
        Nats an item, of any sign.

    Source: You et al., ICML 2021 (arXiv 2102.11005); the fixed point from singular values is that of You et al. 2022
    (arXiv 2110.10545). Their code adds 1e-5 to two denominators and stops after 11 steps.

    Examples:
        >>> F = np.random.default_rng(0).normal(size=(50, 3))
        >>> log_evidence(F, F @ [1.0, 2.0, 3.0]) > log_evidence(F, F[::-1] @ [1.0, 2.0, 3.0])
        True
    """
    x, y = _checked(features, targets, name=name)
    n, d = x.shape
    squared, vectors = np.linalg.eigh(x @ x.T if n <= d else x.T @ x)
    nonzero = squared > squared[-1] * max(n, d) * EPSILON
    squared, vectors = squared[nonzero], vectors[:, nonzero]
    projected = vectors.T @ y if n <= d else vectors.T @ (x.T @ y) / np.sqrt(squared)[:, None]
    whole = (y**2).sum(axis=0)
    # what features explain to the last digit has an evidence without end but for this
    rest = np.maximum(whole - (projected**2).sum(axis=0), EPSILON * whole) * (len(squared) < n)
    evidences = [_evidence(squared, column**2, float(left), n) for column, left in zip(projected.T, rest, strict=True)]
    return float(np.mean(evidences))


def _evidence(squared: Array, projected: Array, rest: float, n: int) -> float:
    """Return the largest log evidence an item of one column of targets.

    `squared` are the (rank,) squared singular values, `projected` the squares of the targets along the left singular
    vectors, and `rest` what is left of the targets' square besides them.
    """
    ratio = 1.0  # alpha / beta, which alone decides: beta follows from it
    for _ in range(STEPS):
        shares = squared / (squared + ratio)
        effective, weights = shares.sum(), (projected * shares**2 / squared).sum()
        if weights == 0:  # the features say nothing
            return _evidence_at(np.inf, squared, projected, rest, n)
        alpha = effective / weights
        # n - gamma, without the difference of numbers that are nearly equal
        beta = (n - len(squared) + (1 - shares).sum()) / ((projected * (1 - shares) ** 2).sum() + rest)
        before, ratio = ratio, float(alpha / beta)
        at_limit = not EPSILON * squared[0] < ratio < squared[-1] / EPSILON
        if at_limit or abs(ratio - before) <= TOLERANCE * before:
            break
    return _evidence_at(ratio, squared, projected, rest, n)


def _evidence_at(ratio: float, squared: Array, projected: Array, rest: float, n: int) -> float:
    """Return the log evidence an item for a ratio of the precisions, at the beta that is best for it."""
    beta = n / ((projected / (1 + squared / ratio)).sum() + rest)
    return float((np.log(beta / (2 * np.pi)) - 1 - np.log1p(squared / ratio).sum() / n) / 2)


def class_columns(classes: ArrayLike) -> Array:
    """Return (n, classes) columns of 1 where an item is of a class and 0 elsewhere, of the classes that occur.

    Examples:
        >>> class_columns([2, 0, 2]).tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    labels = np.asarray(classes)
    columns: Array = (labels[:, None] == np.unique(labels)).astype(np.float64)
    return columns


def h_score(features: ArrayLike, classes: ArrayLike, *, name: str = "the layer") -> float:
    r"""Return the regularised H-score: the spread of class means, measured in the spread of all items.

        H = tr( S_a^-1 (1 - a) B ),   S_a = (1 - a) S + a (tr S / d) I,

    with S the covariance of the features, B that of their class means, each as often as its class occurs, and a the
    shrinkage of Ledoit and Wolf. It does not change when features are shifted, rotated or scaled by one number.

    Args:
        features: (n, d).
        classes: (n,) numbers of at least two classes.
        name: What to call the features in errors.

    Returns:
        0 .. classes - 1.

    Source: Ibrahim, Ponomareva and Mazumder, ECML 2022 (arXiv 2110.06893); Bao et al., ICIP 2019 (arXiv 2212.10082) for
    the H-score; Ledoit and Wolf 2004 (Journal of Multivariate Analysis 88) for the shrinkage. Covariances are divided
    by n; code that divides B by n - 1 gets n / (n - 1) times as much.

    Examples:
        >>> h_score([[0.0, 1.0], [0.1, 0.0], [5.0, 1.0], [5.1, 0.0]], [0, 0, 1, 1]) > 0.5
        True
    """
    columns = class_columns(classes)
    _, y = _checked(features, columns, name=name)
    x = centred_layer(features, name=name)
    n, d = x.shape
    covariance = x.T @ x / n
    scale, size = np.trace(covariance) / d, (covariance**2).sum()
    spread = size - d * scale**2
    noise = ((x**2).sum(axis=1) ** 2).mean() - size
    shrinkage = float(np.clip(noise / n / spread, 0.0, 1.0)) if spread > 0 else 0.0
    counts = y.sum(axis=0)
    means = x.T @ y / counts
    shrunken = (1 - shrinkage) * covariance + shrinkage * scale * np.eye(d)
    try:
        solved = linalg.solve(shrunken, means, assume_a="pos")
    except linalg.LinAlgError:
        raise DegenerateLayerError(
            f"the covariance of {name} has no inverse, expected features that vary in more than a few directions: "
            "give more items"
        ) from None
    return float((1 - shrinkage) * (means * solved).sum(axis=0) @ counts / n)


def linear_mse(features: ArrayLike, targets: ArrayLike, *, name: str = "the layer") -> float:
    r"""Return LinMSE: minus the penalised mean squared error of a linear model of scores.

        - min over w, b of  1/n sum_i (y_i - w^T f_i - b)^2 + lambda |w|^2,   lambda = 1,

    of features that are divided by their standard deviations, so that the penalty means the same at every layer.

    Args:
        features: (n, d).
        targets: (n,) scores.
        name: What to call the features in errors.

    Returns:
        Minus the variance of the targets .. 0.

    Source: Nguyen et al., UAI 2023 (arXiv 2312.00656), LinMSE with lambda = 1. Without a penalty every layer scores 0
    as soon as there are no more items than features. Their code takes features as they are and leaves the penalty out
    of what it returns.

    Examples:
        >>> round(linear_mse([[-1.0], [1.0], [-1.0], [1.0]], [0.0, 1.0, 0.0, 1.0]), 6)
        -0.125
    """
    _, y = _checked(features, targets, name=name)
    x = centred_layer(features, name=name)
    spread = x.std(axis=0)
    spread[spread <= np.finfo(np.float32).eps * np.abs(features).max(axis=0)] = 1.0  # the same everywhere
    x, scores = x / spread, y[:, 0] - y.mean()
    n, d = x.shape
    pulls = x.T @ scores / n
    weights = linalg.solve(x.T @ x / n + PENALTY * np.eye(d), pulls, assume_a="pos")
    return float(pulls @ weights - (scores**2).mean())


def neighbour_predictions(features: ArrayLike, targets: ArrayLike, *, classes: bool, name: str = "the layer") -> Array:
    """Predict each item from its three nearest neighbours: the mean of scores, or the class with most votes.

    Distances are Euclidean. Of classes with as many votes the one of the nearest item wins.

    Args:
        features: (n, d).
        targets: (n,) scores or class numbers.
        classes: Whether targets are classes.
        name: What to call the features in errors.

    Returns:
        (n,) predictions, each made without the item's own target.

    Source: Sorkhei et al. 2025 (arXiv 2503.18528) for nearest neighbours as an estimate; neighbours and distances are
    those of TransformerRanker (Garbaciauskas et al., Findings of ACL 2024).

    Examples:
        >>> neighbour_predictions([[0.0], [1], [2], [10], [11], [12]], [0, 0, 0, 1, 1, 1], classes=True).tolist()
        [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    """
    _, y = _checked(features, targets, name=name)
    x = centred_layer(features, name=name)
    neighbours = np.concatenate([_nearest(x, start) for start in range(0, len(x), ROWS)])
    neighbour_targets = y[neighbours, 0]
    if not classes:
        means: Array = neighbour_targets.mean(axis=1)
        return means
    votes = (neighbour_targets[:, :, None] == neighbour_targets[:, None, :]).sum(axis=2)
    winners: Array = neighbour_targets[np.arange(len(neighbour_targets)), votes.argmax(axis=1)]
    return winners


def _nearest(x: Array, start: int) -> NDArray[np.intp]:
    """Return the nearest other rows, the nearest first, of some rows from `start` on."""
    rows = x[start : start + ROWS]
    lengths = (x**2).sum(axis=1)
    distances = lengths - 2 * rows @ x.T  # the row's own length changes no order
    distances[np.arange(len(rows)), np.arange(start, start + len(rows))] = np.inf
    near = np.argpartition(distances, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
    order = np.take_along_axis(distances, near, axis=1).argsort(axis=1, kind="stable")
    nearest: NDArray[np.intp] = np.take_along_axis(near, order, axis=1)
    return nearest


def contrastive_loss(
    queries: ArrayLike,
    candidates: ArrayLike,
    positive: NDArray[np.bool_],
    allowed: NDArray[np.bool_] | None = None,
    *,
    name: str = "the layer",
) -> float:
    r"""Return the supervised contrastive loss of one batch of embeddings.

        mean_i mean_{j in P(i)} [ log sum_{k in A(i)} exp(50 cos(q_i, c_k)) - 50 cos(q_i, c_j) ]

    With one positive each this is the loss that L3Prune reads at every layer before training, without hard negatives.

    Args:
        queries: (n, d).
        candidates: (m, d).
        positive: (n, m), P: whether a candidate belongs to a query; queries without one are left out.
        allowed: (n, m), A: the candidates among which it is looked for, all by default.
        name: What to call the embeddings in errors.

    Returns:
        Nats, at least 0.

    Source: Thennal, Fischer and Biemann, RepL4NLP 2025 (arXiv 2410.14578); for several positives Khosla et al. 2020
    (arXiv 2004.11362), eq. 2.

    Examples:
        >>> round(contrastive_loss(np.eye(2), np.ones((2, 2)), np.eye(2, dtype=bool)), 6)  # log 2
        0.693147
    """
    has_positive = positive.any(axis=1)
    if not has_positive.any():
        raise DataError("expected a positive pair for a contrastive loss, got none")
    first, second = (unit_rows(finite_matrix(matrix, name=name), name=name) for matrix in (queries, candidates))
    logits = SCALE * first @ second.T
    among = logits if allowed is None else np.where(allowed, logits, -np.inf)
    losses = logsumexp(among, axis=1)[:, None] - logits
    counts = positive.sum(axis=1)
    return float(np.mean((losses * positive).sum(axis=1)[has_positive] / counts[has_positive]))


def _checked(features: ArrayLike, targets: ArrayLike, *, name: str) -> tuple[Array, Array]:
    """Return (n, d) features and (n, k) columns of targets, each of which varies."""
    centred_layer(features, name=name)  # refuses features that say nothing
    y = np.asarray(targets, dtype=np.float64)
    y = y[:, None] if y.ndim == 1 else y
    x = finite_matrix(features, name=name)
    check_same_samples(len(y), len(x), name="the targets", other=name)
    if not np.isfinite(y).all() or (np.ptp(y, axis=0) == 0).any():
        raise DataError(
            f"expected finite targets that differ, or at least two classes, got {np.unique(y)[:3].tolist()} "
            f"for all {len(y)} items"
        )
    return x, y
