"""Maps and curves of measures other than CKA, which has its own engine, with jackknife errors. Knows arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_choice, check_level
from layerprobe.context import part, report
from layerprobe.errors import DataError, DegenerateLayerError
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
from layerprobe.similarity.inference import MIN_UNITS, difference_label, group_numbers, student_uncertainty, tested
from layerprobe.similarity.values import Alignment, LayerMeasure, Measure, SimilarityCurve, SimilarityMap

PARTS = 10
"""Largest number of parts of texts or groups left out one at a time: each needs a whole comparison of two
layers."""

Pair = tuple[int, int]


def layer_similarity(X: ArrayLike, Y: ArrayLike, measure: Measure, *, names: tuple[str, str] = ("X", "Y")) -> float:
    """Return the similarity of (n, d) and (n, e) embeddings of the same samples by any measure except CKA.

    Raises:
        LayerProbeError: As in `prepare` of the measure, or if the numbers of samples differ.
    """
    checked = layer_measure(measure)
    return _compared(checked, _prepare(X, checked, name=names[0]), _prepare(Y, checked, name=names[1]))


def zscored(X: ArrayLike, *, name: str) -> Array:
    """Return the centred features divided by their standard deviations, without features that vary only by rounding."""
    centred = centred_layer(X, name=name)
    features = centred[:, varying(finite_matrix(X, name=name), centred, as_array(X, name=name).dtype)]
    scores: Array = features / features.std(axis=0)
    return scores


def layer_measure(measure: Measure) -> LayerMeasure[Any]:
    """Return the measure; raise DataError if it is CKA, or not a measure."""
    if not isinstance(measure, LayerMeasure):
        raise DataError(f"expected a measure of two layers, got {measure!r}; for CKA use estimate_cka")
    return measure


Prepared = tuple[str, int, Any]
"""A prepared layer: its name, its number of samples, and the input of the measure."""


def _prepare(layer: ArrayLike, measure: LayerMeasure[Any], *, name: str) -> Prepared:
    prepared = measure.prepare(zscored(layer, name=name) if measure.normalize == "zscore" else layer, name=name)
    return name, np.shape(layer)[0], prepared


def _compared(measure: LayerMeasure[Any], first: Prepared, second: Prepared) -> float:
    check_same_samples(first[1], second[1], name=first[0], other=second[0])
    return measure.compare(first[2], second[2])


def similarity_curve(similarities: SimilarityMap, *, alignment: Alignment = "same-index") -> SimilarityCurve:
    """Return the similarity of each layer of the model to its partner in the reference.

    same-index: layer l against layer l. relative-depth: layer l of n blocks against layer round(l m / n) of m
    blocks, halves up. best-match: layer l against the layer of the reference most similar to it, the earlier one
    of equals; such a curve never shows less similarity than the others. previous-layer, for a map of a model against
    itself: layer l against l - 1, which is high if block l changes little; layer 0 against itself.

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
    elif n != m:
        raise DataError(
            f"the model has {n + 1} layers and the reference {m + 1}, expected equally many for same-index: "
            "use relative-depth or best-match"
        )
    values = tuple(row[partner] for row, partner in zip(rows, partners, strict=True))
    return SimilarityCurve(values=values, reference_layers=partners, alignment=alignment)


def measure_layers(
    model_layers: Sequence[Any],
    reference_layers: Sequence[Any],
    measure: Measure,
    *,
    level: float | None = LEVEL,
    groups: ArrayLike | None = None,
    model_name: str = "the model",
    reference_name: str = "the reference",
) -> MeasureEstimate:
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
        The map, and the inputs of curves and tests. There are no intervals with fewer than five samples or
        groups, or if too few samples remain without a part for the measure.

    Examples:
        >>> from layerprobe.similarity.measures import Procrustes
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> round(measure_layers(layers, layers, Procrustes()).curve("same-index").values[0], 12)
        1.0
    """
    if level is not None:
        check_level(level)
    names = model_name, reference_name
    for name, layers in zip(names, (model_layers, reference_layers), strict=True):
        if not len(layers):
            raise DataError(f"{name} has no layers, expected at least one")
    n, checked = len(model_layers[0]), layer_measure(measure)
    units = np.arange(n) if groups is None else group_numbers(groups, n)
    remaining = [] if level is None else _without_parts(units, checked)
    reference = [
        _prepare(layer, checked, name=f"layer {i} of {reference_name}") for i, layer in enumerate(reference_layers)
    ]
    values: list[tuple[float, ...]] = []
    with part(start=0, share=1, whole=2 if remaining else 1):
        for i, layer in enumerate(model_layers):
            prepared = _prepare(layer, checked, name=f"layer {i} of {model_name}")
            values.append(tuple(_compared(checked, prepared, other) for other in reference))
            report("comparing layers", len(values), len(model_layers))
    return MeasureEstimate(
        layers=(model_layers, reference_layers),
        names=names,
        map=SimilarityMap(measure=measure, values=tuple(values), n_samples=n),
        level=level,
        remaining=remaining,
    )


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


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureEstimate:
    """A map whose values are estimated again without parts of the samples, for curves and tests."""

    layers: tuple[Sequence[Any], Sequence[Any]]
    """Layers of the model and of the reference."""
    names: tuple[str, str]
    """Names of the two in messages."""
    map: SimilarityMap
    """The map without intervals, which would take ten times as long for all pairs."""
    level: float | None
    """Confidence level of intervals; None leaves them out."""
    remaining: Sequence[NDArray[np.bool_]] = ()
    """(n,) remaining samples for every part left out; empty without intervals."""
    _replicates: dict[Pair, Array | None] = field(default_factory=dict)
    """Cached results of `replicates` by pair."""

    def replicates(self, at: Pair) -> Array | None:
        """Return (parts,) values of two layers, each without one part of samples; None if there are none."""
        if not self.remaining:
            return None
        if at not in self._replicates:
            names = f"layer {at[0]} of {self.names[0]}", f"layer {at[1]} of {self.names[1]}"
            X, Y = (as_array(layers[i], name=name) for layers, i, name in zip(self.layers, at, names, strict=True))
            self._replicates[at] = None
            # The similarity of all samples exists: it is in the map.
            with contextlib.suppress(DegenerateLayerError):
                parts = [layer_similarity(X[i], Y[i], self.map.measure, names=names) for i in self.remaining]
                self._replicates[at] = np.array(parts)
        return self._replicates[at]

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve.

        The covariance of the errors is (G - 1) / G sum_g (theta_g - mean)(theta_g - mean)^T over the G parts left
        out: 10, or single texts or groups if there are fewer. Intervals are Student's with G - 1 degrees of
        freedom; their ends, unlike the values, are clipped to the range of the measure. No bootstrap: two copies of a
        sample are each other's nearest neighbours in every layer, which makes any two layers similar. For measures by
        nearest neighbours the errors are too large, by 1.4 to 1.7 in simulations of 150 to 1500 samples: a sample
        that leaves changes the neighbours of others, which a jackknife counts more than once.

        Source: Quenouille 1956 (Biometrika 43); Efron and Tibshirani 1993, An Introduction to the Bootstrap,
        chapter 11.
        """
        curve = similarity_curve(self.map, alignment=alignment)
        by_layer = []
        for at in enumerate(curve.reference_layers):
            replicates = self.replicates(at)
            if replicates is None:
                return curve
            by_layer.append(replicates)
            report("estimating errors", len(curve.values) + len(by_layer), 2 * len(curve.values))
        assert self.level is not None
        parts, all_replicates = len(self.remaining), np.stack(by_layer)
        deviations = all_replicates - all_replicates.mean(axis=1, keepdims=True)
        uncertainty = student_uncertainty(
            np.array(curve.values),
            (parts - 1) / parts * deviations @ deviations.T,
            freedom=parts - 1,
            level=self.level,
            limits=self.map.measure.range,
        )
        return dataclasses.replace(curve, uncertainty=uncertainty)

    def differences(self, other: Any, at: Sequence[tuple[Pair, Pair]]) -> tuple[Interval, ...]:
        """Return values of `other` on the same samples minus values of this; none if one of them has no interval.

        Each place is a pair of (layer, reference layer) here and one there.
        """
        differences, freedom = list[Interval](), len(self.remaining) - 1
        for here, second_at in at:
            first, second = self.replicates(here), other.replicates(second_at)
            if first is None or second is None:
                return ()
            assert self.level is not None
            value = other.map.values[second_at[0]][second_at[1]] - self.map.values[here[0]][here[1]]
            error = math.sqrt(freedom * float((second - first).var()))
            differences.append(tested(value, error, freedom, label=difference_label(here, second_at), level=self.level))
        return tuple(differences)
