"""Other authors' criteria for choosing a layer, as readings computed only when requested by name.

DropBench scores them beside those that come with every table; features of items are those of `transferability`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.readings.reading import Reading
from layerprobe.readings.transferability import read_items
from layerprobe.readings.values import LayerCurve
from layerprobe.scoring.transferability import class_columns
from layerprobe.similarity.checks import Array, centred_layer, finite_matrix
from layerprobe.tasks.kind import KINDS

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

FLOOR = 1e-6
"""Of variances, and of their deviation, as in the code of LOES."""
PENALTY = 1e-3
"""Of its ridge regression."""
FIRST_RANK, LAST_RANK, LEFT_OUT = 6, 100, 10
"""Ranks of the eigenvalues to which a power law is fitted, and how many of the smallest are left out."""
SUBSPACE = 10
"""Principal directions whose subspaces are compared; as many neighbours."""

# ---- formulas --------------------------------------------------------------------------------------------


def isotropy(layer: ArrayLike, *, name: str = "the layer") -> float:
    """Return how alike the variances along the principal axes are: their mean over their standard deviation.

    Variances are divided by n and at least 1e-6; of more than 512 features only min(n, features) of them count, as in
    the code of LOES. Positive; not bounded.

    Source: Batra et al. 2026 (arXiv 2605.23033).

    Examples:
        >>> isotropy([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]).__round__(3)
        1.667
    """
    centred = centred_layer(layer, name=name)
    n, width = centred.shape
    variances = np.linalg.svd(centred, compute_uv=False) ** 2 / n
    if width <= 512:
        variances = np.concatenate([variances, np.zeros(width - len(variances))]) + FLOOR
    variances = np.maximum(variances, FLOOR)
    return float(variances.mean() / (variances.std() + FLOOR))


def loes(features: ArrayLike, targets: ArrayLike, *, name: str = "the layer") -> float:
    """Return the score of LOES for its first layer: the error of a ridge regression on its own items + 1 - isotropy.

    The error is the mean square of what a ridge regression of (n,) or (n, k) targets on (n, d) features leaves, with
    penalty 1e-3 and an intercept. Lower is better.

    Source: Batra et al. 2026 (arXiv 2605.23033).
    """
    x, y = (
        centred_layer(features, name=name),
        np.asarray(targets, dtype=np.float64).reshape(len(np.asarray(targets)), -1),
    )
    y = y - y.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ y)
    return float(((x @ weights - y) ** 2).mean()) + 1 - isotropy(features, name=name)


def kite(features: ArrayLike, targets: ArrayLike, random: ArrayLike, *, name: str = "the layer") -> float:
    """Return KITE: linear CKA of features with the targets over that with features of the same model before training.

    The paper sets features against random features; random weights are taken here, at the same layer. Not negative.

    Source: Guo 2024 (arXiv 2405.01603).
    """
    x, r = centred_layer(features, name=name), centred_layer(random, name=f"random {name}")
    y = np.asarray(targets, dtype=np.float64).reshape(len(x), -1)
    y = y - y.mean(axis=0)

    def alignment(other: Array) -> float:
        norms = np.linalg.norm(x.T @ x) * np.linalg.norm(other.T @ other)
        return float(np.linalg.norm(x.T @ other) ** 2 / norms)

    return alignment(y) / alignment(r)


def decay(layer: ArrayLike, *, name: str = "the layer") -> float | None:
    """Return alpha, by which the eigenvalues of the covariance fall with their rank: rank^-alpha, a line in logarithms.

    Ranks 6 to 100, weighted by 1 / rank; the ten smallest eigenvalues are left out. None for fewer than 17 of them.

    Source: Agrawal et al. 2022 (NeurIPS), the fit that of Stringer et al. 2019.
    """
    centred = centred_layer(layer, name=name)
    values = np.linalg.svd(centred, compute_uv=False) ** 2
    last = min(LAST_RANK, len(values) - LEFT_OUT)
    if last <= FIRST_RANK or values[last - 1] <= 0:
        return None
    ranks = np.arange(FIRST_RANK, last + 1, dtype=np.float64)
    design = np.stack([-np.log(ranks), np.ones_like(ranks)], axis=1)
    weighted = design / ranks[:, None]
    return float(np.linalg.solve(design.T @ weighted, weighted.T @ np.log(values[FIRST_RANK - 1 : last]))[0])


def displacement(layer: ArrayLike, first: ArrayLike, *, name: str = "the layer") -> float:
    """Return the Grassmann distance of two layers: of the subspaces of samples that their ten main directions span.

    It is the root of the sum of the squared principal angles, from 0 to sqrt(10) pi / 2.
    """
    spans = [
        np.linalg.svd(centred_layer(rows, name=name), full_matrices=False)[0][:, :SUBSPACE] for rows in (layer, first)
    ]
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
        closest = np.argpartition(-cosines, min(SUBSPACE, len(units) - 1) - 1, axis=1)[:, :SUBSPACE]
        near.append(np.zeros_like(cosines, dtype=bool))
        np.put_along_axis(near[-1], closest, True, axis=1)
    return float((near[0] & near[1]).sum() / near[0].sum())


# ---- readings --------------------------------------------------------------------------------------------


def _isotropy(source: Source) -> LayerCurve:
    embedded = source.embeddings
    return source.by_layer(
        lambda layer, name: isotropy(embedded.measured(layer), name=name), first_layer=embedded.first_layer
    )


def _alpha_req(source: Source) -> LayerCurve | None:
    """Return how far each decay is from 1; None where a layer has none."""
    embedded, named = source.embeddings, f"of {source.checkpoint.label}"
    alphas = [decay(embedded.measured(layer), name=f"layer {layer} {named}") for layer in range(source.n_layers)]
    distances = tuple(abs(alpha - 1) for alpha in alphas if alpha is not None)
    return LayerCurve(values=distances, first_layer=embedded.first_layer) if len(distances) == len(alphas) else None


def _moved(source: Source) -> LayerCurve:
    """Return how far each layer's subspace lies from that of the first layer."""
    embedded = source.embeddings
    first = embedded.measured(embedded.first_layer)
    return source.by_layer(
        lambda layer, name: displacement(embedded.measured(layer), first, name=name), first_layer=embedded.first_layer
    )


def _retained(source: Source) -> LayerCurve:
    """Return what each layer keeps of the neighbours of the one before; the first repeats the value of the next."""
    embedded = source.embeddings
    begin = min(embedded.first_layer + 1, source.n_layers - 1)

    def of_layer(layer: int, name: str) -> float:
        layer = max(layer, begin)
        return retention(embedded.measured(layer), embedded.measured(layer - 1), name=name)

    return source.by_layer(of_layer, first_layer=embedded.first_layer and begin)


def _loes(source: Source) -> LayerCurve | None:
    classes = KINDS[source.labels.kind].labelled
    return read_items(source, lambda features, y, name: loes(features, class_columns(y) if classes else y, name=name))


def _kite(source: Source) -> LayerCurve | None:
    """Return KITE of every layer; None for a model that was given loaded, which cannot be made with random weights."""
    if source.checkpoint.loaded is not None:
        return None
    classes, random = KINDS[source.labels.kind].labelled, list[Array]()

    def remember(features: Array, _: Array, name: str) -> float:
        random.append(features)
        return 0.0

    read_items(replace(source, checkpoint=source.checkpoint.with_options(random_init=0, display_name=None)), remember)
    layers = iter(random)
    return read_items(
        source,
        lambda features, y, name: kite(features, class_columns(y) if classes else y, next(layers), name=name),
    )


LOES_SOURCE = "Batra et al. 2026 (arXiv 2605.23033)"
AFTER_LRD = "after the abstract of Jiang et al. 2026 (arXiv 2605.12714); ten directions and neighbours are ours"
ISOTROPY = Reading(
    description="mean over standard deviation of the variances along the principal axes: LOES without labels",
    direction=1,
    compute=_isotropy,
    source=LOES_SOURCE,
)
LOES = Reading(
    description="squared error of a ridge regression on its own items + 1 - isotropy of their features",
    direction=-1,
    needs="labels",
    compute=_loes,
    source=LOES_SOURCE,
)
KITE = Reading(
    description="CKA of features with the targets, over that with features of random weights",
    direction=1,
    needs="labels",
    compute=_kite,
    source="Guo 2024 (arXiv 2405.01603)",
)
ALPHA_REQ = Reading(
    description="how far from 1 the exponent is by which eigenvalues of the covariance fall",
    direction=-1,
    compute=_alpha_req,
    source="Agrawal et al. 2022 (NeurIPS)",
)
DISPLACEMENT = Reading(
    description="Grassmann distance from the first layer, of the subspaces of ten main directions",
    unit="radians",
    direction=1,
    compute=_moved,
    source=AFTER_LRD,
)
RETENTION = Reading(
    description="share of each text's ten nearest others that it had in the layer before",
    direction=1,
    maximum=1.0,
    first=1,
    compute=_retained,
    source=AFTER_LRD,
)
