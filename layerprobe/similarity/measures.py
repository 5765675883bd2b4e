"""The measures beside CKA: what each is, what it does not depend on, and maps of all layers.

Knows arrays and names of layers; knows no files, no models and no kernels of CKA, which has its own engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import DataError
from layerprobe.progress import Progress, silent
from layerprobe.similarity.cca import mean_correlation, principal_subspace, weighted_correlation
from layerprobe.similarity.checks import Array, centred_layer, check_same_samples, finite_matrix, rounding
from layerprobe.similarity.dissimilarity import dissimilarity_ranks, rank_correlation
from layerprobe.similarity.neighbours import local_alignment, local_kernel, mean_share, nearest_neighbours
from layerprobe.similarity.shape import rotated_overlap, unit_shape
from layerprobe.similarity.values import Matrix, Measure, MeasureName

Prepared = TypeVar("Prepared")

Invariance = Literal[
    "translation",
    "isotropic-scaling",
    "permutation",
    "orthogonal",
    "invertible-linear",
    "row-scaling",
    "row-shift",
]
"""What may be done to either layer: X + 1 c^T; aX with a > 0; features in another order; XQ with orthogonal Q; XA with
invertible A; D X with positive diagonal D; X + r 1^T."""

SVCCA_VARIANCE = 0.99
"""Share of the variance that SVCCA keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasure(Generic[Prepared]):
    """A similarity of two layers: work that is done once a layer, and work that is done for every pair."""

    name: MeasureName
    source: str
    """The paper that defines it."""
    range: tuple[float, float]
    """Of its values, up to rounding; nothing is clamped."""
    symmetric: bool
    """Whether exchanging the layers leaves the value as it is."""
    invariances: frozenset[Invariance]
    """All that leave the value as it is, whichever layer they are applied to; those not named change it."""
    prepare: Callable[..., Prepared]
    """(layer, name=..., and neighbours=... where the measure has them) -> what comparing needs of a layer."""
    compare: Callable[[Prepared, Prepared], float]
    """The value of two prepared layers; raises where they have different numbers of samples."""


_ROTATIONS: frozenset[Invariance] = frozenset({"isotropic-scaling", "permutation", "orthogonal"})


def _svcca_subspace(X: ArrayLike, *, name: str) -> Any:
    return principal_subspace(X, name=name, variance=SVCCA_VARIANCE)


_MEASURES: tuple[LayerMeasure[Any], ...] = (
    LayerMeasure(
        name="mutual-knn",
        source="Huh et al. 2024 (arXiv 2405.07987)",
        range=(0.0, 1.0),
        symmetric=True,
        invariances=_ROTATIONS | {"row-scaling"},
        prepare=nearest_neighbours,
        compare=mean_share,
    ),
    LayerMeasure(
        name="cknna",
        source="Huh et al. 2024 (arXiv 2405.07987), appendix",
        range=(-math.inf, math.inf),
        symmetric=False,
        invariances=_ROTATIONS | {"row-scaling"},
        prepare=local_kernel,
        compare=local_alignment,
    ),
    LayerMeasure(
        name="rsa",
        source="Kriegeskorte et al. 2008 (Frontiers in Systems Neuroscience 2:4)",
        range=(-1.0, 1.0),
        symmetric=True,
        invariances=frozenset({"isotropic-scaling", "permutation", "row-scaling", "row-shift"}),
        prepare=dissimilarity_ranks,
        compare=rank_correlation,
    ),
    LayerMeasure(
        name="procrustes",
        source="Williams et al. 2021 (arXiv 2110.14739)",
        range=(0.0, 1.0),
        symmetric=True,
        invariances=_ROTATIONS | {"translation"},
        prepare=unit_shape,
        compare=rotated_overlap,
    ),
    LayerMeasure(
        name="svcca",
        source="Raghu et al. 2017 (arXiv 1706.05806)",
        range=(0.0, 1.0),
        symmetric=True,
        invariances=_ROTATIONS | {"translation"},
        prepare=_svcca_subspace,
        compare=mean_correlation,
    ),
    LayerMeasure(
        name="pwcca",
        source="Morcos et al. 2018 (arXiv 1806.05759)",
        range=(0.0, 1.0),
        symmetric=False,
        invariances=frozenset({"translation", "isotropic-scaling", "permutation"}),
        prepare=principal_subspace,
        compare=weighted_correlation,
    ),
)

MEASURES: Mapping[MeasureName, LayerMeasure[Any]] = MappingProxyType({measure.name: measure for measure in _MEASURES})
"""Every measure but cka, by name."""


def measure_map(
    model_layers: Collection[ArrayLike],
    reference_layers: Iterable[ArrayLike],
    measure: Measure,
    *,
    model_name: str = "the model",
    reference_name: str = "the reference",
    progress: Progress = silent,
) -> Matrix:
    """Compare every layer of one model with every layer of another.

    Each layer is read and prepared once. What was prepared of the reference stays in memory, that of the model is
    made one layer at a time: per layer 16 n k bytes for neighbours, 4 n^2 for RSA, 8 n d for the others.
    Layers may be loaded while they are iterated over.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, n >= 4; d may differ by layer.
        reference_layers: The same of the reference, for the same samples in the same order.
        measure: Which, with how many neighbours, and whether of raw or z-scored features.
        model_name: What messages call the model.
        reference_name: What messages call the reference.
        progress: Told the layers of the model that are done.

    Returns:
        values[i][j] of layer i of the model and layer j of the reference, in the range that `MEASURES` declares.

    Raises:
        DataError: If a model has no layers, a layer is no matrix of real numbers, the measure is cka, or there are
            not so many neighbours.
        DegenerateLayerError: If a layer has no such similarity; the message names the layer.
        MisalignedSamplesError: If layers have different numbers of rows.

    Example:
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> values = measure_map(layers, layers[:2], Measure(name="rsa", kernel=None, estimator=None))
        >>> len(values), len(values[0]), round(values[1][1], 12)
        (3, 2, 1.0)
    """
    found = _layer_measure(measure)
    reference = list(_prepared(reference_layers, measure, model=reference_name))
    values: list[tuple[float, ...]] = []
    for layer in _prepared(model_layers, measure, model=model_name):
        values.append(tuple(found.compare(layer, other) for other in reference))
        progress("comparing layers", len(values), len(model_layers))
    return tuple(values)


def without_groups(
    model_layer: ArrayLike,
    reference_layer: ArrayLike,
    measure: Measure,
    *,
    kept: Sequence[NDArray[np.bool_]],
    names: tuple[str, str] = ("the model's layer", "the reference's layer"),
) -> Array:
    """Return the values of a similarity that remain when one group of samples at a time is left out.

    Args:
        model_layer: (n, d) embeddings.
        reference_layer: (n, e) embeddings of the same samples in the same order.
        measure: Which, with how many neighbours, and whether of raw or z-scored features.
        kept: (n,) for every group, which samples stay, as `samples_without_groups` returns them.
        names: What messages call the layers.

    Returns:
        (groups,)

    Raises:
        DataError: If a layer is no matrix of real numbers, the measure is cka, or there are not so many neighbours.
        DegenerateLayerError: If a layer has no such similarity without one of the groups.
        MisalignedSamplesError: If the numbers of rows differ.
    """
    _layer_measure(measure)
    X, Y = np.asarray(model_layer), np.asarray(reference_layer)
    n = len(finite_matrix(X, name=names[0]))
    check_same_samples(len(finite_matrix(Y, name=names[1])), n, name=names[1], other=names[0])
    return np.array([_value(X[rows], Y[rows], measure, names) for rows in kept])


def samples_without_groups(units: NDArray[np.intp], *, groups: int, seed: int = 0) -> list[NDArray[np.bool_]]:
    """Return which samples stay when one random group of units at a time is left out.

    Args:
        units: (n,) the unit of each sample, counted from 0: its own number, or that of its document.
        groups: At most as many as there are units; they differ in size by at most one unit.
        seed: Decides the groups.

    Returns:
        (n,) for every group.

    Example:
        >>> documents = np.array([0, 0, 1, 1, 1, 2])
        >>> sorted(int(kept.sum()) for kept in samples_without_groups(documents, groups=3))
        [3, 4, 5]
    """
    parts = np.array_split(np.random.default_rng(seed).permutation(int(units.max()) + 1), groups)
    return [~np.isin(units, part) for part in parts]


def zscored(X: ArrayLike, *, name: str) -> Array:
    """Return the centred features divided by their standard deviations, without those that are constant.

    Args:
        X: (n, d) embeddings, n >= 4.
        name: What messages call it.

    Returns:
        (n, at most d), columns of mean 0 and variance 1; features that vary by no more than the rounding of the
        dtype are left out.

    Raises:
        DataError: If it is no matrix of real numbers.
        DegenerateLayerError: If it is constant, not finite, or has fewer than 4 rows.
    """
    centred, layer = centred_layer(X, name=name), finite_matrix(X, name=name)
    floor = rounding(np.abs(layer).max(axis=0), np.sqrt(np.mean(layer**2)), np.asarray(X).dtype)
    varying = centred[:, np.abs(centred).max(axis=0) > floor]
    scores: Array = varying / varying.std(axis=0)
    return scores


def _layer_measure(measure: Measure) -> LayerMeasure[Any]:
    if measure.name not in MEASURES:
        raise DataError(
            f"measure is {measure.name!r}, expected one of {', '.join(map(repr, MEASURES))}: cka has its own map"
        )
    return MEASURES[measure.name]


def _prepare(layer: ArrayLike, measure: Measure, *, name: str) -> Any:
    values = zscored(layer, name=name) if measure.normalize == "zscore" else layer
    options = {} if measure.neighbours is None else {"neighbours": measure.neighbours}
    return MEASURES[measure.name].prepare(values, name=name, **options)


def _prepared(layers: Iterable[ArrayLike], measure: Measure, *, model: str) -> Iterator[Any]:
    """Yield one a layer.

    Raises:
        DataError: If there are none.
    """
    i = -1
    for i, layer in enumerate(layers):
        yield _prepare(layer, measure, name=f"layer {i} of {model}")
    if i < 0:
        raise DataError(f"{model} has no layers, expected at least one")


def _value(X: NDArray[Any], Y: NDArray[Any], measure: Measure, names: tuple[str, str]) -> float:
    first = _prepare(X, measure, name=names[0])
    return MEASURES[measure.name].compare(first, _prepare(Y, measure, name=names[1]))
