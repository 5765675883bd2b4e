"""Centred kernel alignment of layers. Knows arrays and names of layers; knows no files and no models."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import LEVEL, check_level, settings_or_default
from layerprobe.context import part
from layerprobe.errors import DataError
from layerprobe.interval import Interval
from layerprobe.process import use_one_thread_if_forked
from layerprobe.rng import exact_products, without_autocast
from layerprobe.similarity import inference
from layerprobe.similarity.checks import Array, as_array, row_readable
from layerprobe.similarity.grams import (
    FEW_SAMPLES,
    NARROW,
    CentredLayer,
    Gram,
    Rows,
    centred_layers,
    linear_gram,
    rbf_grams,
)
from layerprobe.similarity.maps import similarity_curve
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.sums import Pair, Sums, feature_sums, products_of, tile_sums
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

Path = Literal["auto", "gram", "features"]
NamedLayers = Sequence[tuple[str, Rows]]

CPU_TILE, CUDA_TILE = 160, 896
"""Rows on the shorter side of a tile: a multiple of 32, for fast products, and not a power of two, since rows
that far apart evict each other from a cache when a tile is transposed."""


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


# ---- passes over the samples ----------------------------------------------------------------------------


def named_layers(name: str, layers: Sequence[Rows]) -> NamedLayers:
    """Return the layers of a model with their names for messages; raise DataError if there are none."""
    if not len(layers):
        raise DataError(f"{name} has no layers, expected at least one")
    names = [f"layer {i} of {name}" for i in range(len(layers))]
    return [(layer_name, row_readable(layer, name=layer_name)) for layer_name, layer in zip(names, layers, strict=True)]


def sums_of(
    models: Sequence[NamedLayers],
    measures: Sequence[CKA],
    pairs: Sequence[Pair],
    *,
    per_sample: bool = True,
    device: torch.device | str = "cpu",
    tile: int | None = None,
    path: Path = "auto",
) -> dict[tuple[CKA, Pair], Sums]:
    """Return the sums of every measure and pair of models.

    Measures that differ only in the estimator share their sums, and bandwidths share their distances.

    Pairs are models to compare, by position in `models`. `per_sample` keeps parts for standard errors: (layers, layers,
    n) numbers per pair. The path is gram, features (linear kernel only), or auto: the one with fewer operations.
    """
    ends = list(itertools.accumulate(map(len, models)))
    slices = [slice(end - len(layers), end) for end, layers in zip(ends, models, strict=True)]
    of_pairs = {(a, b): (slices[a], slices[b]) for a, b in pairs}
    sources = list(itertools.chain.from_iterable(models))
    by_measure: dict[tuple[CKA, Pair], Sums] = {}
    kinds = list(dict.fromkeys((m.normalize, m.kernel) for m in measures))
    with _full_precision():
        for number, (normalize, kernel) in enumerate(kinds):
            same = [m for m in measures if (m.normalize, m.kernel) == (normalize, kernel)]
            with part(start=number, share=1, whole=len(kinds)):
                sums = _pass(sources, same, of_pairs, device, tile, path, per_sample)
            for measure, pair in itertools.product(same, of_pairs):
                by_measure[measure, pair] = sums[measure.bandwidth_multiplier][pair]
    return by_measure


def _pass(
    sources: NamedLayers,
    measures: Sequence[CKA],
    pairs: Mapping[Pair, tuple[slice, slice]],
    device: torch.device | str,
    tile: int | None,
    path: Path,
    per_sample: bool,
) -> dict[float | None, dict[Pair, Sums]]:
    """Return sums by bandwidth multiplier and pair."""
    layers, groups, tile = _centred(sources, measures, device, tile)
    if measures[0].kernel == "linear":
        # Few samples take the same path, and give the same digits, whatever they are compared with.
        if path == "auto" and layers[0].n_samples <= FEW_SAMPLES:
            path = "gram"
        if path == "features" or (path == "auto" and _features_are_cheaper(layers, pairs, per_sample=per_sample)):
            return {None: feature_sums(layers, groups[0], pairs, per_sample=per_sample)}
    sums = tile_sums(layers, groups, pairs, per_sample=per_sample, tile=tile)
    bandwidths = dict.fromkeys(measure.bandwidth_multiplier for measure in measures)
    return {bandwidth: by_pair for bandwidth, (_, by_pair) in zip(bandwidths, sums, strict=True)}


def _centred(
    sources: NamedLayers,
    measures: Sequence[CKA],
    device: torch.device | str,
    tile: int | None,
    *,
    float64: bool = False,
) -> tuple[list[CentredLayer], list[Sequence[Gram]], int]:
    """Return layers, the terms that centre their Gram matrices by bandwidth multiplier, and the size of tiles."""
    multipliers = dict.fromkeys(measure.bandwidth_multiplier for measure in measures)
    widths = [multiplier for multiplier in multipliers if multiplier is not None]
    float64 = float64 or any(multiplier < NARROW for multiplier in widths)
    layers = centred_layers(sources, normalize=measures[0].normalize, device=device, float64=float64)
    tile = tile or (CUDA_TILE if layers[0].mean.is_cuda else CPU_TILE)
    if not widths:
        return layers, [[linear_gram(layer) for layer in layers]], tile
    by_layer: list[list[Gram]] = []
    for layer in layers:
        grams = rbf_grams(layer, widths, tile=tile)
        if grams is None:
            return _centred(sources, measures, device, tile, float64=True)
        by_layer.append(grams)
    return layers, list(zip(*by_layer, strict=True)), tile


def _features_are_cheaper(
    layers: Sequence[CentredLayer], pairs: Mapping[Pair, tuple[slice, slice]], *, per_sample: bool
) -> bool:
    """Compare multiplications: n^2 / 2 dot products per layer, against a cross-covariance per pair of layers."""
    n = layers[0].n_samples
    grams = n * n / 2 * sum(layer.width for layer in layers)
    features = n * sum(layers[i].width * layers[j].width for i, j in products_of(len(layers), pairs))
    return features * (2 if per_sample else 1) < grams


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32 and bfloat16 in float32 products, whatever the process allows elsewhere."""
    use_one_thread_if_forked()
    with torch.no_grad(), without_autocast(), exact_products():
        yield
