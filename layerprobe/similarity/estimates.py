"""Maps and curves of the measures besides CKA, with jackknife errors. Knows arrays and names of layers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import LEVEL, check_level
from layerprobe.context import part, report
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.interval import Interval
from layerprobe.similarity.checks import MIN_SAMPLES, Array
from layerprobe.similarity.inference import MIN_UNITS, difference_label, group_numbers, student_uncertainty, tested
from layerprobe.similarity.maps import (
    layer_measure,
    measure_map,
    samples_without_parts,
    similarity_curve,
    without_parts,
)
from layerprobe.similarity.values import Alignment, LayerMeasure, Measure, SimilarityCurve, SimilarityMap

PARTS = 10
"""Of texts or groups, left out one at a time, where there are so many: each takes a whole comparison of two
layers."""

Pair = tuple[int, int]


def measure_layers(
    model_layers: Sequence[Any],
    reference_layers: Sequence[Any],
    measure: Measure,
    *,
    level: float | None = LEVEL,
    groups: NDArray[np.intp] | None = None,
    model_name: str = "the model",
    reference_name: str = "the reference",
) -> MeasureEstimate:
    """Compare every layer of one model with every layer of another, as `measure_map`, with errors of its curves.

    Intervals and bands of curves have the confidence level, None leaves them out; `groups` are (n,) numbers
    of what samples belong to, where groups are the independent units.

    Returns:
        The map, and what curves and tests are computed from. There are no intervals with fewer than five samples or
        groups, nor where the samples that stay without a part are too few for the measure.

    Examples:
        >>> from layerprobe.similarity.measures.procrustes import Procrustes
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> round(measure_layers(layers, layers, Procrustes()).curve("same-index").values[0], 12)
        1.0
    """
    if level is not None:
        check_level(level)
    if len(model_layers) == 0:
        raise DataError(f"{model_name} has no layers, expected at least one")
    n, checked = len(model_layers[0]), layer_measure(measure)
    checked.check_samples(n)
    numbers = None if groups is None else group_numbers(groups, n)
    remaining = [] if level is None else _without_parts(n, numbers, checked)
    with part(start=0, share=1, whole=2 if remaining else 1):
        values = measure_map(
            model_layers, reference_layers, measure, model_name=model_name, reference_name=reference_name
        )
    return MeasureEstimate(
        layers=(model_layers, reference_layers),
        names=(model_name, reference_name),
        map=SimilarityMap(measure=measure, values=values, n_samples=n),
        level=level,
        remaining=remaining,
        n_groups=None if numbers is None else int(numbers.max()) + 1,
    )


def _without_parts(n: int, groups: NDArray[np.intp] | None, measure: LayerMeasure[Any]) -> list[NDArray[np.bool_]]:
    """Return which samples stay, for every part that is left out; none where these are too few."""
    units = np.arange(n) if groups is None else groups
    n_units = int(units.max()) + 1
    if n_units < MIN_UNITS:
        return []
    remaining = samples_without_parts(units, parts=min(PARTS, n_units))
    return remaining if min(rows.sum() for rows in remaining) >= max(MIN_SAMPLES, measure.least_samples) else []


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureEstimate:
    """A map whose values are estimated again without a part of samples, where a curve or a test asks for it."""

    layers: tuple[Sequence[Any], Sequence[Any]]
    """Of the model and of the reference."""
    names: tuple[str, str]
    """What messages call the two."""
    map: SimilarityMap
    """Without intervals: those of all pairs would take ten times its time."""
    level: float | None
    """Confidence level of intervals; None leaves them out."""
    remaining: Sequence[NDArray[np.bool_]] = ()
    """(n,) for every part that is left out, which samples stay; none where there are no intervals."""
    n_groups: int | None = None
    """Groups, where they and not texts are the independent units."""
    _replicates: dict[Pair, Array | None] = field(default_factory=dict)
    """What `replicates` returned, by pair."""

    @property
    def method(self) -> str:
        """How the errors are computed, in a few words."""
        how = "tenths of the" if len(self.remaining) == PARTS else "single"
        return f"leaving out {how} {'texts' if self.n_groups is None else 'groups'}"

    def replicates(self, at: Pair) -> Array | None:
        """Return (parts,) values of two layers, each without one part of samples; None where there are none."""
        if at not in self._replicates:
            first, second = (layers[i] for layers, i in zip(self.layers, at, strict=True))
            model, reference = (f"layer {i} of {name}" for name, i in zip(self.names, at, strict=True))
            values = None
            # All samples together do have the similarity, which is in the map.
            with contextlib.suppress(DegenerateLayerError):
                if self.remaining:
                    values = without_parts(
                        first, second, self.map.measure, remaining=self.remaining, names=(model, reference)
                    )
            self._replicates[at] = values
        return self._replicates[at]

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve.

        The covariance of the errors is (G - 1) / G sum_g (theta_g - mean)(theta_g - mean)^T over the G parts left
        out: 10, or single texts or groups where there are fewer. Intervals are Student's with G - 1 degrees of
        freedom; their ends, unlike the values, are cut to the range of the measure. No bootstrap: two copies of a
        sample are each other's nearest neighbours in every layer, which makes any two layers alike. For measures by
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
            method=self.method,
            n_groups=self.n_groups,
            limits=self.map.measure.range,
        )
        return dataclasses.replace(curve, uncertainty=uncertainty)

    def steps(self, curve: SimilarityCurve) -> tuple[Interval, ...]:
        """Return the change of a curve from each layer to the next, tested on the same samples."""
        return self.differences(self, list(itertools.pairwise(enumerate(curve.reference_layers))))

    def differences(self, other: Any, at: Sequence[tuple[Pair, Pair]]) -> tuple[Interval, ...]:
        """Return values of `other`, of the same samples, less values of this; none where one of them has no interval.

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
