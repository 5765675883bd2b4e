"""What others choose a layer by: their readings, of which the zoos of DropBench have the numbers.

`READINGS` go to `read_curves(..., others=)`. Readings of items are of the training items, at most `ITEMS` of them; the
features of an item are its embedding, of a pair that is trained by its cosine |u - v| and u * v of unit vectors, of any
other pair u, v and |u - v|. Nothing computes prompt entropy, curvature, LinMSE, kNN and the loss of L3Prune any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.lab.dropbench.bench import RIVALS
from layerprobe.readings.reading import LayerCurve
from layerprobe.readings.source import Source
from layerprobe.scoring.probes import logistic_features
from layerprobe.similarity.checks import Array, centred_layer, finite_matrix, unit_rows
from layerprobe.tasks.kind import KINDS, Kind
from layerprobe.tasks.values import Examples

ITEMS = 2000
"""Training items that are read, at most."""
EPSILON = float(np.finfo(np.float64).eps)

# ---- without labels, of the embeddings of texts ----------------------------------------------------------


def entropy(matrix: Array) -> float:
    """Return the von Neumann entropy of a symmetric positive matrix over its trace, in nats."""
    shares = np.maximum(np.linalg.eigvalsh(matrix / np.trace(matrix)), 0.0)
    return float(entr(shares).sum())


def dataset_entropy(layer: ArrayLike, *, name: str = "the layer") -> float:
    """Return the von Neumann entropy of the Gram matrix of unit rows, 0 .. log min(n, d) (Skean et al. 2025)."""
    units = unit_rows(finite_matrix(layer, name=name), name=name)
    return entropy(units @ units.T if len(units) < units.shape[1] else units.T @ units)


def isotropy(layer: ArrayLike, *, name: str = "the layer") -> float:
    """Return the mean over the standard deviation of the variances along the principal axes (LOES).

    Variances are at least 1e-6; of more than 512 features only min(n, features) of them count, as in the code of LOES.
    """
    floor, centred = 1e-6, centred_layer(layer, name=name)
    n, width = centred.shape
    variances = np.linalg.svd(centred, compute_uv=False) ** 2 / n
    if width <= 512:
        variances = np.concatenate([variances, np.zeros(width - len(variances))]) + floor
    variances = np.maximum(variances, floor)
    return float(variances.mean() / (variances.std() + floor))


def decay(layer: ArrayLike, *, name: str = "the layer") -> float | None:
    """Return alpha, by which eigenvalues of the covariance fall with their rank: rank^-alpha (alpha-ReQ).

    A line in logarithms over ranks 6 to 100, weighted by 1 / rank, without the ten smallest eigenvalues, as Stringer et
    al. 2019 fit it. None for fewer than 17 of them.
    """
    values = np.linalg.svd(centred_layer(layer, name=name), compute_uv=False) ** 2
    first, last = 6, min(100, len(values) - 10)
    if last <= first or values[last - 1] <= 0:
        return None
    ranks = np.arange(first, last + 1, dtype=np.float64)
    design = np.stack([-np.log(ranks), np.ones_like(ranks)], axis=1)
    weighted = design / ranks[:, None]
    return float(np.linalg.solve(design.T @ weighted, weighted.T @ np.log(values[first - 1 : last]))[0])


def displacement(layer: ArrayLike, first: ArrayLike, *, name: str = "the layer") -> float:
    """Return the Grassmann distance of the subspaces of samples that the ten main directions of two layers span."""
    spans = [np.linalg.svd(centred_layer(rows, name=name), full_matrices=False)[0][:, :10] for rows in (layer, first)]
    cosines = np.linalg.svd(spans[0].T @ spans[1], compute_uv=False)
    return float(np.linalg.norm(np.arccos(np.clip(cosines, -1.0, 1.0))))


def retention(layer: ArrayLike, before: ArrayLike, *, name: str = "the layer") -> float:
    """Return the share of each text's ten nearest others, by cosine, that were so in the layer before: 0 .. 1."""
    near = []
    for rows in (layer, before):
        values = finite_matrix(rows, name=name)
        units = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -np.inf)
        closest = np.argpartition(-cosines, min(10, len(units) - 1) - 1, axis=1)[:, :10]
        near.append(np.zeros_like(cosines, dtype=bool))
        np.put_along_axis(near[-1], closest, True, axis=1)
    return float((near[0] & near[1]).sum() / near[0].sum())


# ---- without labels, of altered copies: (view, text, feature) --------------------------------------------


def lidar(views: ArrayLike, *, name: str = "the layer") -> float:
    """Return the effective rank of what tells texts apart, against what tells their copies apart: 1 .. min(n - 1, d).

    With S_w the covariance of unit rows around their text's mean, S_b that of the means, and l_k the eigenvalues of
    (S_w + 1e-4 I)^(-1/2) S_b (S_w + 1e-4 I)^(-1/2) over their sum: exp(- sum_k l_k log l_k) (Thilak et al. 2023).
    """
    units = _unit_views(views, name=name)
    means = units.mean(axis=0)
    within = (units - means).reshape(-1, units.shape[2])
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    centred = means - means.mean(axis=0)
    whitened = centred @ (vectors / np.sqrt(np.maximum(values, 0.0) + 1e-4))
    if np.abs(centred).max() <= np.finfo(np.float32).eps:
        raise DegenerateLayerError(f"{name} has one mean for the views of all texts: expected texts that differ")
    small = whitened @ whitened.T if len(whitened) < whitened.shape[1] else whitened.T @ whitened
    return math.exp(entropy(small))


def dime(views: ArrayLike, *, seed: int = 0, name: str = "the layer") -> float:
    """Return S(K * P L P^T), mean over ten random permutations P of the texts, less S(K * L), in nats.

    K and L are the Gram matrices of the unit rows of two copies, S the von Neumann entropy (Skean et al. 2023).
    """
    x, y, *_ = _unit_views(views, name=name)
    K, L = x @ x.T, y @ y.T
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(K)) for _ in range(10)]
    return float(np.mean([entropy(K * L[np.ix_(order, order)]) for order in orders])) - entropy(K * L)


def _unit_views(views: ArrayLike, *, name: str) -> Array:
    return np.stack([unit_rows(finite_matrix(view, name=name), name=name) for view in np.asarray(views)])


# ---- with labels, of (n, d) features and (n,) targets or (n, k) columns of them ---------------------------


def log_evidence(features: ArrayLike, targets: ArrayLike, *, name: str = "the layer") -> float:
    r"""Return LogME: the largest log evidence, an item, of a Bayesian linear model of the targets, mean over columns.

    With y = F w + noise, w ~ N(0, 1 / alpha), noise ~ N(0, 1 / beta), and s_k the squared singular values of F,

        log p(y) = d/2 log alpha + n/2 log beta - 1/2 sum_k log(alpha + beta s_k)
                   - beta/2 |F m - y|^2 - alpha/2 |m|^2 - n/2 log 2 pi,

    made as large as it gets from alpha = beta = 1 on by gamma = sum_k s_k / (s_k + alpha / beta),
    alpha = gamma / |m|^2, beta = (n - gamma) / |F m - y|^2 (You et al. 2021 and 2022). Nothing is centred.
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
    return float(
        np.mean([_evidence(squared, column**2, left, n) for column, left in zip(projected.T, rest, strict=True)])
    )


def _evidence(squared: Array, projected: Array, rest: float, n: int) -> float:
    """Return the log evidence an item of one column, at the fixed point of alpha / beta, which alone decides."""
    ratio = 1.0
    for _ in range(1000):
        shares = squared / (squared + ratio)
        effective, weights = shares.sum(), (projected * shares**2 / squared).sum()
        if weights == 0:  # the features say nothing
            ratio = np.inf
            break
        # n - gamma, without the difference of numbers that are nearly equal
        beta = (n - len(squared) + (1 - shares).sum()) / ((projected * (1 - shares) ** 2).sum() + rest)
        before, ratio = ratio, float(effective / weights / beta)
        at_limit = not EPSILON * squared[0] < ratio < squared[-1] / EPSILON
        if at_limit or abs(ratio - before) <= 1e-6 * before:
            break
    beta = n / ((projected / (1 + squared / ratio)).sum() + rest)
    return float((np.log(beta / (2 * np.pi)) - 1 - np.log1p(squared / ratio).sum() / n) / 2)


def loes(features: ArrayLike, targets: ArrayLike, *, name: str = "the layer") -> float:
    """Return the mean squared error of ridge regression (penalty 1e-3) on its own items + 1 - isotropy (LOES)."""
    x, y = centred_layer(features, name=name), np.asarray(targets, dtype=np.float64)
    y = y.reshape(len(x), -1) - y.reshape(len(x), -1).mean(axis=0)
    weights = np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ y)
    return float(((x @ weights - y) ** 2).mean()) + 1 - isotropy(features, name=name)


def kite(features: ArrayLike, targets: ArrayLike, random: ArrayLike, *, name: str = "the layer") -> float:
    """Return linear CKA of features with the targets over that with features of random weights (Guo 2024)."""
    x, r = centred_layer(features, name=name), centred_layer(random, name=f"random {name}")
    y = np.asarray(targets, dtype=np.float64).reshape(len(x), -1)

    def alignment(other: Array) -> float:
        return float(np.linalg.norm(x.T @ other) ** 2 / np.linalg.norm(other.T @ other))

    return alignment(y - y.mean(axis=0)) / alignment(r)


def _checked(features: ArrayLike, targets: ArrayLike, *, name: str) -> tuple[Array, Array]:
    """Return (n, d) features and (n, k) columns of targets, each of which varies."""
    centred_layer(features, name=name)  # refuses features that say nothing
    x, y = finite_matrix(features, name=name), np.asarray(targets, dtype=np.float64)
    y = y[:, None] if y.ndim == 1 else y
    if not np.isfinite(y).all() or (np.ptp(y, axis=0) == 0).any():
        raise DataError(f"expected finite targets that differ, got {np.unique(y)[:3].tolist()} for all {len(y)} items")
    return x, y


# ---- readings --------------------------------------------------------------------------------------------


def item_features(kind: Kind, u: NDArray[np.float32], v: NDArray[np.float32] | None, *, name: str) -> Array:
    """Return (n, features) of items from the (n, width) embeddings of their first texts and, of pairs, second ones."""
    if v is None or kind.zero_shot != "cosine":
        return logistic_features(u, v).astype(np.float64)
    first, second = (unit_rows(side.astype(np.float64), name=name) for side in (u, v))
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def read_items(source: Source, number: Callable[[Array, Array, str], float]) -> LayerCurve | None:
    """Return a number of every layer from features, targets and its name; None where items are no texts or pairs."""
    examples, kind = source.labels.train, KINDS[source.labels.kind]
    if not isinstance(examples, Examples):
        return None
    embedded, chosen = source.split("train"), np.arange(len(examples))
    if len(chosen) > ITEMS:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, ITEMS, replace=False))
    targets, sides = np.array(examples.targets)[chosen], [embedded.rows(side)[chosen] for side in examples.sides]

    def of_layer(layer: int, name: str) -> float:
        values = embedded.measured(layer)
        first, *second = (values[rows] for rows in sides)
        return number(item_features(kind, first, second[0] if second else None, name=name), targets, name)

    return source.by_layer(of_layer, first_layer=embedded.first_layer)


def _columns(source: Source, targets: Array) -> Array:
    """Return scores as they are, and classes as (n, classes) columns of 0 and 1."""
    labelled = KINDS[source.labels.kind].labelled
    return (targets[:, None] == np.unique(targets)).astype(np.float64) if labelled else targets


def _by_layer(number: Callable[..., float], *others: int) -> Callable[[Source], LayerCurve]:
    """Return what computes a number from the embeddings of each layer, and of another one: the layer before, or 0."""

    def compute(source: Source) -> LayerCurve:
        embedded = source.embeddings
        first = embedded.first_layer

        def of_layer(layer: int, name: str) -> float:
            layer = max(layer, first + 1) if -1 in others else layer  # none is before the first, which repeats the next
            rest = [embedded.measured(layer - 1 if other else first) for other in others]
            return number(embedded.measured(layer), *rest, name=name)

        return source.by_layer(of_layer, first_layer=first and first + (-1 in others))

    return compute


def _of_copies(number: Callable[..., float], n_views: int) -> Callable[[Source], LayerCurve]:
    def compute(source: Source) -> LayerCurve:
        copied = replace(source, n_views=n_views)
        return copied.by_layer(
            lambda layer, name: number(copied.copies(layer), name=name), first_layer=copied.first_copied_layer
        )

    return compute


def _alpha_req(source: Source) -> LayerCurve | None:
    """Return how far each decay is from 1; None where a layer has none."""
    alphas = [decay(source.embeddings.measured(layer)) for layer in range(source.n_layers)]
    distances = tuple(abs(alpha - 1) for alpha in alphas if alpha is not None)
    whole = len(distances) == len(alphas)
    return LayerCurve(values=distances, first_layer=source.embeddings.first_layer) if whole else None


def _of_items(number: Callable[..., float]) -> Callable[[Source], LayerCurve | None]:
    return lambda source: read_items(source, lambda x, y, name: number(x, _columns(source, y), name=name))


def _kite(source: Source) -> LayerCurve | None:
    """Return KITE of every layer; None for a model that was given loaded, which cannot be made with random weights."""
    if source.checkpoint.loaded is not None:
        return None
    random, layers = list[Array](), iter(range(source.n_layers))

    def remember(features: Array, _: Array, name: str) -> float:
        random.append(features)
        return 0.0

    random_model = source.checkpoint.with_options(random_init=0, display_name=None)
    read_items(replace(source, extraction=replace(source.extraction, checkpoint=random_model)), remember)
    return _of_items(lambda x, y, name: kite(x, y, random[next(layers)], name=name))(source)


COMPUTED: dict[str, Callable[[Source], LayerCurve | None]] = {
    "dataset entropy": _by_layer(dataset_entropy),
    "LiDAR": _of_copies(lidar, 4),
    "DiME": _of_copies(dime, 2),
    "LOES without labels": _by_layer(isotropy),
    "alpha-ReQ": _alpha_req,
    "subspace displacement": _by_layer(displacement, 0),
    "neighbour retention": _by_layer(retention, -1),
    "LogME": _of_items(log_evidence),
    "LOES": _of_items(loes),
    "KITE": _kite,
}
"""Displacement and retention follow an abstract alone."""
READINGS = {name: replace(RIVALS[name], compute=compute) for name, compute in COMPUTED.items()}
