"""Maps of all layers by the measures besides CKA, which has its own engine, and one value a layer of any map."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import check_choice
from layerprobe.context import report
from layerprobe.errors import DataError
from layerprobe.similarity.checks import Array, as_array, centred_layer, check_same_samples, finite_matrix, varying
from layerprobe.similarity.values import Alignment, LayerMeasure, Matrix, Measure, SimilarityCurve, SimilarityMap


def measure_map(
    model_layers: Collection[ArrayLike],
    reference_layers: Iterable[ArrayLike],
    measure: Measure,
    *,
    model_name: str = "the model",
    reference_name: str = "the reference",
) -> Matrix:
    """Compare every layer of one model with every layer of another.

    Each layer is read and prepared once. What was prepared of the reference stays in memory, that of the model is
    made one layer at a time: per layer 16 n k bytes for neighbours, 4 n^2 for RSA, 8 n d for the others.
    Layers may be loaded while they are iterated over.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, n >= 4; d may differ by layer.
        reference_layers: The same of the reference, for the same samples in the same order.
        measure: Any but CKA.
        model_name: What messages call the model.
        reference_name: What messages call the reference.

    Returns:
        values[i][j] of layer i of the model and layer j of the reference, in the range that the measure declares.

    Examples:
        >>> from layerprobe.similarity.measures.rsa import RSA
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> values = measure_map(layers, layers[:2], RSA())
        >>> len(values), len(values[0]), round(values[1][1], 12)
        (3, 2, 1.0)
    """
    checked = layer_measure(measure)
    reference = list(_prepared(reference_layers, checked, model=reference_name))
    values: list[tuple[float, ...]] = []
    for layer in _prepared(model_layers, checked, model=model_name):
        values.append(tuple(_compared(checked, layer, other) for other in reference))
        report("comparing layers", len(values), len(model_layers))
    return tuple(values)


def layer_similarity(X: ArrayLike, Y: ArrayLike, measure: Measure, *, names: tuple[str, str] = ("X", "Y")) -> float:
    """Return the similarity of (n, d) and (n, e) embeddings of the same samples by any measure but CKA.

    Raises:
        LayerProbeError: As in `measure_map`.
    """
    checked = layer_measure(measure)
    return _compared(checked, _prepare(X, checked, name=names[0]), _prepare(Y, checked, name=names[1]))


def without_parts(
    model_layer: ArrayLike,
    reference_layer: ArrayLike,
    measure: Measure,
    *,
    remaining: Sequence[NDArray[np.bool_]],
    names: tuple[str, str] = ("the model's layer", "the reference's layer"),
) -> Array:
    """Return the (parts,) values of a similarity that remain when one part of samples at a time is left out.

    Layers and measure are as in `layer_similarity`, and `samples_without_parts` returns which samples are kept.
    """
    X, Y = as_array(model_layer, name=names[0]), as_array(reference_layer, name=names[1])
    n = len(finite_matrix(X, name=names[0]))
    check_same_samples(len(finite_matrix(Y, name=names[1])), n, name=names[1], other=names[0])
    return np.array([layer_similarity(X[rows], Y[rows], measure, names=names) for rows in remaining])


def samples_without_parts(units: NDArray[np.intp], *, parts: int, seed: int = 0) -> list[NDArray[np.bool_]]:
    """Return which samples stay when one random part of units at a time is left out.

    Units are (n,) numbers of samples or of their groups, counted from 0. Parts, at most as many as units, differ in
    size by at most one unit.

    Examples:
        >>> groups = np.array([0, 0, 1, 1, 1, 2])
        >>> sorted(int(kept.sum()) for kept in samples_without_parts(groups, parts=3))
        [3, 4, 5]
    """
    left_out = np.array_split(np.random.default_rng(seed).permutation(int(units.max()) + 1), parts)
    return [~np.isin(units, part) for part in left_out]


def zscored(X: ArrayLike, *, name: str) -> Array:
    """Return the centred features divided by their standard deviations, without those that only rounding varies."""
    centred = centred_layer(X, name=name)
    features = centred[:, varying(finite_matrix(X, name=name), centred, as_array(X, name=name).dtype)]
    scores: Array = features / features.std(axis=0)
    return scores


def layer_measure(measure: Measure) -> LayerMeasure[Any]:
    """Return the measure; raise DataError if it is CKA, or no measure."""
    if not isinstance(measure, Measure):
        raise DataError(f"expected an instance of a class of layerprobe.similarity.measures, got {measure!r}")
    if not isinstance(measure, LayerMeasure):
        raise DataError(f"expected a measure of two layers, got {measure.title}: use estimate_cka")
    return measure


Prepared = tuple[str, int, Any]
"""What messages call a layer, its samples, and what a measure needs of it."""


def _prepare(layer: ArrayLike, measure: LayerMeasure[Any], *, name: str) -> Prepared:
    prepared = measure.prepare(zscored(layer, name=name) if measure.normalize == "zscore" else layer, name=name)
    return name, np.shape(layer)[0], prepared


def _compared(measure: LayerMeasure[Any], first: Prepared, second: Prepared) -> float:
    check_same_samples(first[1], second[1], name=first[0], other=second[0])
    return measure.compare(first[2], second[2])


def _prepared(layers: Iterable[ArrayLike], measure: LayerMeasure[Any], *, model: str) -> Iterator[Prepared]:
    i = -1
    for i, layer in enumerate(layers):
        yield _prepare(layer, measure, name=f"layer {i} of {model}")
    if i < 0:
        raise DataError(f"{model} has no layers, expected at least one")


def similarity_curve(similarities: SimilarityMap, *, alignment: Alignment = "same-index") -> SimilarityCurve:
    """Return the similarity of each layer of the model to its partner in the reference.

    same-index: layer l against layer l. relative-depth: layer l of n blocks against layer round(l m / n) of m
    blocks, halves up. best-match: layer l against the layer of the reference most similar to it, the earlier one
    of equals; such a curve never shows less similarity than the others. previous-layer, for a map of a model against
    itself: layer l against l - 1, which says how little block l changes; layer 0 against itself.

    Returns:
        One value a layer of the model, in the range of the map: debiased ones can be negative.

    Examples:
        >>> from layerprobe.similarity.measures.cka import CKA
        >>> values = ((0.9, 0.5), (0.6, 0.7), (0.8, 0.2))
        >>> three_by_two = SimilarityMap(measure=CKA(), values=values, n_samples=50)
        >>> similarity_curve(three_by_two, alignment="relative-depth").values
        (0.9, 0.7, 0.2)
        >>> similarity_curve(three_by_two, alignment="best-match").reference_layers
        (0, 1, 0)
    """
    check_choice(alignment, Alignment, name="alignment")
    rows = similarities.values
    n, m = len(rows) - 1, len(rows[0]) - 1
    partners = tuple(range(n + 1))
    if alignment == "best-match":
        partners = tuple(row.index(max(row)) for row in rows)
    elif alignment == "relative-depth":
        # Integers, because round() takes halves to the even neighbour: 8 blocks against 4 would skip unevenly.
        partners = tuple((2 * layer * m + n) // (2 * n) if n else 0 for layer in partners)
    elif alignment == "previous-layer":
        partners = tuple(min(max(layer - 1, 0), m) for layer in partners)
    elif n != m:
        raise DataError(
            f"the model has {n + 1} layers and the reference {m + 1}, expected equally many for same-index: "
            "use relative-depth or best-match"
        )
    values = tuple(row[partner] for row, partner in zip(rows, partners, strict=True))
    return SimilarityCurve(values=values, reference_layers=partners, alignment=alignment)
