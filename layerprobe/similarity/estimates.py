"""Maps and curves of the measures beside CKA, with jackknife errors. Knows arrays and names of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.progress import Progress, part_of, silent
from layerprobe.results import (
    Alignment,
    CurveUncertainty,
    Difference,
    Matrix,
    Measure,
    SimilarityCurve,
    SimilarityMap,
    check_level,
)
from layerprobe.similarity.checks import Array
from layerprobe.similarity.curve import similarity_curve
from layerprobe.similarity.inference import band_width, difference_label, tested
from layerprobe.similarity.measures import MEASURES, measure_map, without_groups

GROUPS = 10
"""Of samples or documents, left out one at a time: each takes a whole comparison of two layers."""

MIN_UNITS = 5
"""Fewer texts or documents leave no interval."""

Pair = tuple[int, int]


class Estimate(Protocol):
    """A map of two models from which curves with intervals and tests follow."""

    @property
    def map(self) -> SimilarityMap:
        """Every layer against every layer."""

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve."""

    def steps(self, curve: SimilarityCurve) -> tuple[Difference, ...]:
        """Return the change of a curve from each layer to the next."""

    def differences(self, other: Any, at: Sequence[tuple[Pair, Pair]]) -> tuple[Difference, ...]:
        """Return values of `other`, of the same kind, less values of this estimate."""


def measure_layers(
    model_layers: Sequence[Any],
    reference_layers: Sequence[Any],
    measure: Measure,
    *,
    level: float | None = 0.95,
    clusters: NDArray[np.intp] | None = None,
    model_name: str = "the model",
    reference_name: str = "the reference",
    progress: Progress = silent,
) -> MeasureEstimate:
    """Compare every layer of one model with every layer of another by a measure beside CKA.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, n >= 4; d may differ by layer.
        reference_layers: The same of the reference, for the same samples in the same order.
        measure: Which, with how many neighbours, and whether of raw or z-scored features.
        level: Confidence level of intervals and bands of curves; None leaves them out.
        clusters: (n,) the document of each sample, counted from 0, where documents are the independent units.
        model_name: What messages call the model.
        reference_name: What messages call the reference.
        progress: Told how much is done.

    Raises:
        DataError: If a model has no layers, or a layer is no matrix of real numbers.
        DegenerateLayerError: If a layer has no such similarity; the message names the layer.
        MisalignedSamplesError: If layers have different numbers of rows.

    Example:
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> measure = Measure(name="procrustes", kernel=None, estimator=None)
        >>> measure_layers(layers, layers, measure).curve("same-index").values[0].__round__(12)
        1.0
    """
    if level is not None:
        check_level(level)
    n = len(model_layers[0])
    units = n if clusters is None else int(clusters.max()) + 1
    largest = -(-units // min(GROUPS, units))
    if units < MIN_UNITS or (measure.neighbours or 0) > n - largest - 1:
        level = None  # what is left without a group would be too little
    values = measure_map(
        model_layers,
        reference_layers,
        measure,
        model_name=model_name,
        reference_name=reference_name,
        progress=part_of(progress, start=0, share=1, whole=1 if level is None else 2),
    )
    return MeasureEstimate(
        layers=(model_layers, reference_layers),
        names=(model_name, reference_name),
        map=SimilarityMap(measure=measure, values=values, n_samples=n),
        level=level,
        clusters=clusters,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureEstimate:
    """A map whose values are estimated again without a group of samples, where a curve or a test asks for it."""

    layers: tuple[Sequence[Any], Sequence[Any]]
    """Of the model and of the reference."""
    names: tuple[str, str]
    map: SimilarityMap
    """Without intervals: those of all pairs would take ten times its time."""
    level: float | None
    clusters: NDArray[np.intp] | None = None
    progress: Progress = silent
    _replicates: dict[Pair, Array] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int | None:
        """Documents, where they are the units."""
        return None if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def groups(self) -> int:
        """How many groups are left out, one at a time."""
        return min(GROUPS, self.n_clusters or self.map.n_samples)

    def replicates(self, at: Pair) -> Array:
        """Return (groups,) values of two layers, each without one group of samples."""
        if at not in self._replicates:
            first, second = (
                (layers[i], f"layer {i} of {name}") for layers, i, name in zip(self.layers, at, self.names, strict=True)
            )
            self._replicates[at] = without_groups(
                first[0],
                second[0],
                self.map.measure,
                groups=self.groups,
                clusters=self.clusters,
                names=(first[1], second[1]),
            )
        return self._replicates[at]

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve.

        The covariance of the errors is (G - 1) / G sum_g (theta_g - mean)(theta_g - mean)^T over the groups left
        out; intervals are Student's with G - 1 degrees of freedom, cut to the range of the measure.

        Raises:
            DataError: If same-index is asked for models of different depth.
        """
        curve = similarity_curve(self.map, alignment=alignment)
        if self.level is None:
            return curve
        found = []
        for at in enumerate(curve.reference_layers):
            found.append(self.replicates(at))
            self.progress("estimating errors", len(curve.values) + len(found), 2 * len(curve.values))
        covariance = _covariance(np.stack(found), self.groups)
        errors = np.sqrt(np.diag(covariance))
        student, normal = (d.isf((1 - self.level) / 2) for d in (stats.t(self.groups - 1), stats.norm))
        width = band_width(covariance, level=self.level) * student / normal
        values, allowed = np.array(curve.values), MEASURES[self.map.measure.name].range

        def around(quantile: float, sign: int) -> tuple[float, ...]:
            return tuple(float(value) for value in np.clip(values + sign * quantile * errors, *allowed))

        matrix: Matrix = tuple(tuple(float(value) for value in row) for row in covariance)
        return SimilarityCurve(
            values=curve.values,
            reference_layers=curve.reference_layers,
            alignment=alignment,
            uncertainty=CurveUncertainty(
                level=self.level,
                lower=around(student, -1),
                upper=around(student, 1),
                band_lower=around(width, -1),
                band_upper=around(width, 1),
                covariance=matrix,
                method=f"leaving out {self.groups} parts of the texts in turn",
                n_clusters=self.n_clusters,
            ),
        )

    def steps(self, curve: SimilarityCurve) -> tuple[Difference, ...]:
        """Return the change of a curve from each layer to the next, tested on the same samples."""
        at = list(enumerate(curve.reference_layers))
        return self.differences(self, list(itertools.pairwise(at)))

    def differences(self, other: MeasureEstimate, at: Sequence[tuple[Pair, Pair]]) -> tuple[Difference, ...]:
        """Return values of `other` less values of this estimate, tested on the same samples.

        Args:
            other: An estimate from the same samples, or this one.
            at: Pairs of (layer, reference layer) here and there.
        """
        if self.level is None or other.level is None:
            return ()
        return tuple(self._difference(other, here, there) for here, there in at)

    def _difference(self, other: MeasureEstimate, here: Pair, there: Pair) -> Difference:
        assert self.level is not None
        value = other.map.values[there[0]][there[1]] - self.map.values[here[0]][here[1]]
        gaps = other.replicates(there) - self.replicates(here)
        error = math.sqrt((self.groups - 1) * float(gaps.var()))
        return tested(value, error, self.groups - 1, label=difference_label(here, there), level=self.level)


def _covariance(replicates: Array, groups: int) -> Array:
    deviations = replicates - replicates.mean(axis=1, keepdims=True)
    covariance: Array = (groups - 1) / groups * deviations @ deviations.T
    return covariance
