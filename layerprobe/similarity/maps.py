"""Maps and curves of layers with their errors, and the maps of measures other than CKA. Knows arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_choice
from layerprobe.context import part, report
from layerprobe.errors import DegenerateLayerError
from layerprobe.interval import Interval
from layerprobe.similarity.checks import (
    MIN_SAMPLES,
    Array,
    as_array,
    centred_layer,
    check_same_samples,
    finite_matrix,
    varying,
)
from layerprobe.similarity.inference import (
    MIN_UNITS,
    Spread,
    curve_uncertainty,
    difference,
    group_numbers,
    interval,
    jackknife_spread,
    student_interval,
)
from layerprobe.similarity.values import Alignment, LayerMeasure, SimilarityCurve, SimilarityMap

PARTS = 10
"""Largest number of parts of texts or groups left out one at a time: each needs a whole comparison of two
layers."""
Pair = tuple[int, int]


def similarity_curve(similarities: SimilarityMap, *, alignment: Alignment = "same-index") -> SimilarityCurve:
    """Return the similarity of each layer of the model to its partner in the reference.

    same-index: layer l against layer l, for models of equal depth. relative-depth: layer l of n blocks against layer
    round(l m / n) of m blocks, halves up. best-match: layer l against the layer of the reference most similar to it,
    the earlier one of equals; such a curve never shows less similarity than the others. previous-layer, for a map of a
    model against itself: layer l against l - 1, which is high if block l changes little; layer 0 against itself.

    Returns:
        One value per layer of the model, in the range of the map: debiased ones can be negative.

    Examples:
        >>> from layerprobe.similarity.measures import CKA
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
    values = tuple(row[partner] for row, partner in zip(rows, partners, strict=True))
    return SimilarityCurve(values=values, reference_layers=partners, alignment=alignment)


@dataclass(frozen=True, kw_only=True, eq=False)
class MapEstimate:
    """A map with the errors of its values, for curves and tests."""

    map: SimilarityMap
    """The map; of measures other than CKA without intervals, which would take ten times as long for all pairs."""
    level: float = LEVEL
    """Confidence level of intervals."""
    spread: Callable[[Pair], Spread | None] = lambda at: None
    """Returns the spread of the value of two layers; None if it has no interval."""
    interval: Callable[..., tuple[float, float]] = interval
    """Returns the interval of a value and its spread."""

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve."""
        curve = similarity_curve(self.map, alignment=alignment)
        errors = list[Spread]()
        for at in enumerate(curve.reference_layers):
            error = self.spread(at)
            if error is None:
                return curve
            errors.append(error)
        uncertainty = curve_uncertainty(curve.values, errors, level=self.level, interval=self.interval)
        return dataclasses.replace(curve, uncertainty=uncertainty)

    def differences(self, other: MapEstimate, at: Sequence[tuple[Pair, Pair]]) -> tuple[Interval, ...]:
        """Return values of `other` on the same samples minus values of this; none if one of them has no interval.

        Each place is a pair of (layer, reference layer) here and one there.
        """
        differences = list[Interval]()
        for here, there in at:
            errors = other.spread(there), self.spread(here)
            if errors[0] is None or errors[1] is None:
                return ()
            layer = f"layer {there[0]}"
            differences.append(
                difference(
                    other.map.values[there[0]][there[1]],
                    self.map.values[here[0]][here[1]],
                    (errors[0], errors[1]),
                    label=layer if here[0] == there[0] else f"{layer} minus layer {here[0]}",
                    level=self.level,
                )
            )
        return tuple(differences)


def layer_similarity(
    X: ArrayLike, Y: ArrayLike, measure: LayerMeasure[Any], *, names: tuple[str, str] = ("X", "Y")
) -> float:
    """Return the similarity of (n, d) and (n, e) embeddings of the same samples by any measure except CKA.

    Raises:
        LayerProbeError: As in `prepare` of the measure.
    """
    return measure.compare(_prepared(X, measure, name=names[0]), _prepared(Y, measure, name=names[1]))


def zscored(X: ArrayLike, *, name: str) -> Array:
    """Return the centred features divided by their standard deviations, without features that vary only by rounding."""
    centred = centred_layer(X, name=name)
    features = centred[:, varying(finite_matrix(X, name=name), centred, as_array(X, name=name).dtype)]
    return features / features.std(axis=0)


def _prepared(layer: ArrayLike, measure: LayerMeasure[Any], *, name: str) -> Any:
    return measure.prepare(zscored(layer, name=name) if measure.normalize == "zscore" else layer, name=name)


def measure_layers(
    model_layers: Sequence[Any],
    reference_layers: Sequence[Any],
    measure: LayerMeasure[Any],
    *,
    level: float | None = LEVEL,
    groups: ArrayLike | None = None,
    model_name: str = "the model",
    reference_name: str = "the reference",
) -> MapEstimate:
    """Compare every layer of one model with every layer of another by a measure other than CKA, with errors of curves.

    Each layer is read and prepared once. Prepared layers of the reference stay in memory, those of the model are
    prepared one at a time: per layer 16 n k bytes for neighbours, 8 n d for others.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, n >= 4; d may differ by layer.
        reference_layers: The same of the reference, for the same samples in the same order.
        measure: Any measure except CKA.
        level: Confidence level of intervals and bands of curves; None leaves them out.
        groups: (n,) labels, such as documents, if these are independent of each other rather than the samples.
        model_name: Name of the model in messages.
        reference_name: Name of the reference in messages.

    Returns:
        The map with jackknife errors: values are estimated again without each of 10 parts of the samples, or without
        single texts or groups if there are fewer. Ends of intervals, unlike values, are clipped to the range of the
        measure. No bootstrap: two copies of a sample are each other's nearest neighbours in every layer, which makes
        any two layers similar. For measures by nearest neighbours the errors are too large, by 1.4 to 1.7 in
        simulations of 150 to 1500 samples: a sample that leaves changes the neighbours of others, which a jackknife
        counts more than once. There are no intervals with fewer than five samples or groups, or if too few samples
        remain without a part for the measure.

    Examples:
        >>> from layerprobe.similarity.measures import Procrustes
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> round(measure_layers(layers, layers, Procrustes()).curve("same-index").values[0], 12)
        1.0
    """
    n, n_reference = len(model_layers[0]), len(reference_layers[0])
    check_same_samples(n, n_reference, name=f"layer 0 of {model_name}", other=f"layer 0 of {reference_name}")
    units = np.arange(n) if groups is None else group_numbers(groups, n)
    remaining = [] if level is None else _without_parts(units, measure)
    reference = [
        _prepared(layer, measure, name=f"layer {i} of {reference_name}") for i, layer in enumerate(reference_layers)
    ]
    values: list[tuple[float, ...]] = []
    with part(start=0, share=1, whole=2 if remaining else 1):
        for i, layer in enumerate(model_layers):
            prepared = _prepared(layer, measure, name=f"layer {i} of {model_name}")
            values.append(tuple(measure.compare(prepared, other) for other in reference))
            report("comparing layers", len(values), len(model_layers))
    heatmap = SimilarityMap(measure=measure, values=tuple(values), n_samples=n)
    if level is None or not remaining:
        return MapEstimate(map=heatmap)
    n_done = itertools.count(len(values) + 1)

    @functools.cache
    def spread(at: Pair) -> Spread | None:
        names = f"layer {at[0]} of {model_name}", f"layer {at[1]} of {reference_name}"
        X = as_array(model_layers[at[0]], name=names[0])
        Y = as_array(reference_layers[at[1]], name=names[1])
        try:
            replicates = [layer_similarity(X[rows], Y[rows], measure, names=names) for rows in remaining]
        except DegenerateLayerError:  # the similarity of all samples exists: it is in the map
            return None
        report("estimating errors", min(next(n_done), 2 * len(values)), 2 * len(values))
        return jackknife_spread(np.array(replicates))

    ends = functools.partial(student_interval, limits=measure.range)
    return MapEstimate(map=heatmap, level=level, spread=spread, interval=ends)


def _without_parts(units: NDArray[np.intp], measure: LayerMeasure[Any]) -> list[NDArray[np.bool_]]:
    """Return the remaining samples for every random part of units that is left out; empty if they are too few.

    Units are (n,) numbers of samples or of their groups, from 0; parts differ in size by at most one unit.
    """
    n_units = int(units.max()) + 1
    if n_units < MIN_UNITS:
        return []
    parts = np.array_split(np.random.default_rng(0).permutation(n_units), min(PARTS, n_units))
    remaining = [~np.isin(units, part) for part in parts]
    return remaining if min(rows.sum() for rows in remaining) >= max(MIN_SAMPLES, measure.least_samples) else []
