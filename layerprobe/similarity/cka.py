"""Centred kernel alignment of layers. Knows arrays and names of layers; knows no files and no models."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_level, settings_or_default
from layerprobe.errors import DataError
from layerprobe.interval import Interval
from layerprobe.similarity import inference
from layerprobe.similarity.checks import Array, as_array
from layerprobe.similarity.engine.passes import NamedLayers, named_layers, sums_of
from layerprobe.similarity.engine.sums import Sums
from layerprobe.similarity.maps import similarity_curve
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import (
    Alignment,
    CurveUncertainty,
    Estimator,
    MapUncertainty,
    Normalize,
    SimilarityCurve,
    SimilarityMap,
    to_matrix,
)


def linear_cka(X: ArrayLike, Y: ArrayLike, *, estimator: Estimator = "debiased", normalize: Normalize = "raw") -> float:
    """Return the linear centred kernel alignment of two layers.

    CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with K = X X^T, L = Y Y^T. It is invariant to X + c, aX and XQ
    with orthogonal Q, but not to other invertible maps.

    Args:
        X: (n, d) embeddings, n >= 4. Products use float64 if either array is float64, n is 256 or less, or a row has
            a hundred times the mean squared distance from the mean, and otherwise float32, accurate to 1e-7.
        Y: (n, e) embeddings of the same samples in the same order.
        estimator: debiased or biased. The biased value of independent layers is far from 0 unless n is much larger
            than the number of features.
        normalize: raw, or zscore to divide every feature by its standard deviation first.

    Returns:
        biased: [0, 1]. debiased: [-1, 1], can be negative. Bounds hold up to rounding: nothing is clamped.

    Raises:
        DataError: If an argument is no matrix of real numbers, or the estimator is unknown.
        DegenerateLayerError: If a layer is constant, not finite, or has fewer than 4 rows.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equation 4; debiased: with HSIC_1 of Song et al. 2012
    (JMLR 13), as Nguyen et al. 2021 (arXiv 2010.15327).

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(linear_cka(X, 3 * X + 1), 12)
        1.0
        >>> linear_cka(X, X**2) < 0.1 < linear_cka(X, X**2, estimator="biased")
        True
    """
    return float(_estimate(X, Y, CKA(estimator=estimator, normalize=normalize)).values[0, 0])


def cka_interval(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    measure: CKA | None = None,
    level: float = LEVEL,
    groups: ArrayLike | None = None,
) -> Interval:
    """Return the debiased CKA of two layers with its interval; linear and on raw features unless a measure is given.

    Groups are (n,) labels, if groups (such as documents) are independent of each other rather than samples. If a few
    samples dominate a layer, `Interval.doubtful` says that the interval may be too narrow. The level is the argument,
    whatever `layerprobe.settings` says.

    Raises:
        LayerProbeError: As in `linear_cka`, or if there are fewer than five samples or groups, or the estimator is
            biased.

    Examples:
        >>> X, noise = np.random.default_rng(0).normal(size=(2, 200, 8))
        >>> debiased = cka_interval(X, X + noise)
        >>> debiased.interval[0] < debiased.value < debiased.interval[1], debiased.doubtful
        (True, False)
    """
    measure = settings_or_default(measure, CKA)
    if measure.estimator != "debiased":
        raise DataError(
            f"expected the debiased estimator for an interval, got {measure.title}: biased values have no interval"
        )
    check_level(level)
    estimate = _estimate(X, Y, measure, level=level, groups=groups)
    value, error = float(estimate.values[0, 0]), estimate.spread(0, 0)
    return Interval(
        value=value,
        standard_error=error.standard_error,
        interval=inference.interval(value, error, level=level),
        level=level,
        freedom=error.freedom,
        effective_share=min(*estimate.effective_shares[0], *estimate.effective_shares[1]),
    )


def estimate_cka(
    models: Sequence[tuple[str, Sequence[Any]]],
    *,
    measures: Sequence[CKA] = (CKA(),),
    pairs: Sequence[tuple[int, int]] | None = None,
    level: float | None = LEVEL,
    groups: ArrayLike | None = None,
    device: str = "cpu",
) -> list[CKAEstimate]:
    """Compare all layers of any number of models in one pass over the samples.

    Args:
        models: Name and (n, d) embeddings of layers 0, 1, ... of each model; the same n samples in
            the same order in all. Arrays, memory maps, or other objects whose rows can be sliced.
        measures: Kernels, bandwidths, estimators and normalizations of CKA.
        pairs: Models to compare, by position in `models`; by default each with every later one.
        level: Confidence level of intervals and bands; None leaves them out, which takes less time, and for n
            samples (layers, layers, n) numbers less memory per pair, in the dtype of products.
        groups: (n,) labels, such as documents, if these are independent of each other rather than the samples.
        device: cpu, cuda or cuda:1, the device for products.

    Returns:
        The pairs in their order, for every measure.

    Raises:
        DataError: If there is nothing to compare, or a layer is not a matrix of real numbers.
        DegenerateLayerError: If a layer is constant, not finite, has fewer than 4 rows, or, for rbf, most rows
            are equal; the message names the layer.
        MisalignedSamplesError: If layers have different numbers of rows.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> models = [(name, rng.normal(size=(3, 50, 8))) for name in "abc"]
        >>> [estimate.map.shape for estimate in estimate_cka(models)]
        [(3, 3), (3, 3), (3, 3)]
    """
    if level is not None:
        check_level(level)
    if pairs is None:
        pairs = list(itertools.combinations(range(len(models)), 2))
    if not pairs or not measures:
        raise DataError(f"expected models and measures to compare by, got {len(pairs)} pairs, {len(measures)} measures")
    named = [named_layers(name, layers) for name, layers in models]
    return _estimates(named, measures, pairs, level=level, groups=groups, device=device)


def _estimate(
    X: ArrayLike, Y: ArrayLike, measure: CKA, *, level: float = LEVEL, groups: ArrayLike | None = None
) -> CKAEstimate:
    # With a level whether it is requested or not: sums by sample are added up in another order, and two functions would
    # differ in the last digits.
    layers: list[NamedLayers] = [[("X", as_array(X, name="X"))], [("Y", as_array(Y, name="Y"))]]
    (estimate,) = _estimates(layers, [measure], [(0, 1)], level=level, groups=groups)
    return estimate


def _estimates(
    models: Sequence[NamedLayers],
    measures: Sequence[CKA],
    pairs: Sequence[tuple[int, int]],
    *,
    level: float | None,
    groups: ArrayLike | None = None,
    device: str = "cpu",
) -> list[CKAEstimate]:
    # Only the debiased estimator has intervals.
    per_sample = level is not None and any(measure.estimator == "debiased" for measure in measures)
    sums = sums_of(models, measures, pairs, per_sample=per_sample, device=device)
    n_samples = len(next(iter(sums.values())).rows[0].diagonal)
    numbers = None if groups is None else inference.group_numbers(groups, n_samples)
    return [
        CKAEstimate(measure=measure, sums=sums[measure, pair], level=level, groups=numbers)
        for measure in measures
        for pair in pairs
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class CKAEstimate:
    """CKA of two models with the influence of every sample, for intervals, bands and tests."""

    measure: CKA
    sums: Sums
    level: float | None
    """Confidence level; None: no uncertainties."""
    groups: NDArray[np.intp] | None = None
    """(n,) group of each sample, from 0."""

    @cached_property
    def values(self) -> Array:
        """(layers, layers) CKA."""
        return self.sums.cka(self.measure.estimator)

    @property
    def uncertain(self) -> bool:
        """Whether there are intervals: for the debiased estimator with at least five samples or groups."""
        units = len(self.sums.rows[0].diagonal) if self.n_groups is None else self.n_groups
        return self.level is not None and self.measure.estimator == "debiased" and units >= inference.MIN_UNITS

    @property
    def n_groups(self) -> int | None:
        """Number of groups, if they are the units."""
        return None if self.groups is None else int(self.groups.max()) + 1

    @cached_property
    def map(self) -> SimilarityMap:
        """Every layer against every layer."""
        rows, columns = self.sums.rows, self.sums.columns
        sigma = [tuple(s.sigma_squared for s in sums if s.sigma_squared is not None) for sums in (rows, columns)]
        return SimilarityMap(
            measure=self.measure,
            values=to_matrix(self.values),
            n_samples=len(rows[0].diagonal),
            sigma_squared=(sigma[0], sigma[1]) if sigma[0] else None,
            sigma_samples=rows[0].sigma_samples,
            uncertainty=self._map_uncertainty() if self.uncertain else None,
            effective_shares=self.effective_shares if self.uncertain else None,
        )

    def spread(self, layer: int, reference_layer: int) -> inference.Spread:
        """Return the spread of the estimate for two layers."""
        at = layer, reference_layer
        return inference.spread(
            self.sums.influence(at),
            self.sums.norm_influence(at),
            pair_variance=float(self._pair_variance[at]),
            groups=self.groups,
        )

    @cached_property
    def effective_shares(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Effective share of the samples or groups for each layer of the model and of the reference."""
        model, reference = (
            tuple(inference.effective_share(layer.parts, groups=self.groups) for layer in layers)
            for layers in (self.sums.rows, self.sums.columns)
        )
        return model, reference

    @cached_property
    def _pair_variance(self) -> Array:
        return self.sums.pair_variance()

    def curve(self, alignment: Alignment) -> SimilarityCurve:
        """Return one value for every layer of the model, with its interval and the band of the whole curve.

        Raises:
            DataError: If same-index is requested for models of different depth.
        """
        curve = similarity_curve(self.map, alignment=alignment)
        if not self.uncertain:
            return curve
        assert self.level is not None
        errors = [self.spread(layer, partner) for layer, partner in enumerate(curve.reference_layers)]
        covariances = inference.covariance(errors)
        layer_ends = [
            [inference.interval(v, e, level=self.level, width=width) for v, e in zip(curve.values, errors, strict=True)]
            for width in (None, inference.band_width(covariances, level=self.level))
        ]
        (lower, upper), (band_lower, band_upper) = (zip(*ends, strict=True) for ends in layer_ends)
        uncertainty = CurveUncertainty(
            level=self.level,
            lower=lower,
            upper=upper,
            band_lower=band_lower,
            band_upper=band_upper,
            covariance=to_matrix(covariances),
        )
        return dataclasses.replace(curve, uncertainty=uncertainty)

    def differences(self, other: Any, at: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> tuple[Interval, ...]:
        """Return values of `other` minus values of this estimate; none for the biased estimator or without a level."""
        if not (self.uncertain and other.uncertain):
            return ()
        assert self.level is not None
        return tuple(
            inference.difference(
                float(other.values[second]),
                float(self.values[here]),
                (other.spread(*second), self.spread(*here)),
                label=inference.difference_label(here, second),
                level=self.level,
            )
            for here, second in at
        )

    def _map_uncertainty(self) -> MapUncertainty:
        assert self.level is not None
        parts = np.empty((3, *self.values.shape))
        for at in np.ndindex(*self.values.shape):
            error = self.spread(*at)
            parts[:, *at] = error.standard_error, *inference.interval(float(self.values[at]), error, level=self.level)
        errors, lower, upper = map(to_matrix, parts)
        return MapUncertainty(
            level=self.level,
            standard_errors=errors,
            lower=lower,
            upper=upper,
            method=f"influence of each {'sample' if self.groups is None else 'group'}",
            n_groups=self.n_groups,
        )
