"""Centred kernel alignment of layers. Knows arrays and names of layers; knows no files and no models."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
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
from layerprobe.similarity.checks import as_array, row_readable
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
from layerprobe.similarity.maps import MapEstimate
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.sums import LayerSums, Pair, Sums, feature_sums, products_of, tile_sums
from layerprobe.similarity.values import Estimator, MapUncertainty, Normalize, SimilarityMap, to_matrix

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
    return float(_sums_of_two(X, Y, CKA(estimator=estimator, normalize=normalize)).cka(estimator)[0, 0])


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
    sums = _sums_of_two(X, Y, measure)
    numbers = None if groups is None else inference.group_numbers(groups, len(sums.rows[0].diagonal))
    value = float(sums.cka("debiased")[0, 0])
    error = _spread(sums, numbers, (0, 0))
    return Interval(
        value=value,
        standard_error=error.standard_error,
        interval=inference.interval(value, error, level=level),
        level=level,
        freedom=error.freedom,
        effective_share=min(*_effective_shares(sums.rows, numbers), *_effective_shares(sums.columns, numbers)),
    )


def estimate_cka(
    models: Sequence[tuple[str, Sequence[Any]]],
    *,
    measures: Sequence[CKA] = (CKA(),),
    pairs: Sequence[tuple[int, int]] | None = None,
    level: float | None = LEVEL,
    groups: ArrayLike | None = None,
    device: str = "cpu",
) -> list[MapEstimate]:
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
        DataError: If a layer is not a matrix of real numbers.
        DegenerateLayerError: If a layer is constant, not finite, has fewer than 4 rows, or, for rbf, most rows
            are equal; the message names the layer.
        MisalignedSamplesError: If layers have different numbers of rows.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> models = [(name, rng.normal(size=(3, 50, 8))) for name in "abc"]
        >>> [estimate.map.shape for estimate in estimate_cka(models)]
        [(3, 3), (3, 3), (3, 3)]
    """
    if pairs is None:
        pairs = list(itertools.combinations(range(len(models)), 2))
    named = [named_layers(name, layers) for name, layers in models]
    # Only the debiased estimator has intervals.
    per_sample = level is not None and any(measure.estimator == "debiased" for measure in measures)
    sums = sums_of(named, measures, pairs, per_sample=per_sample, device=device)
    n_samples = len(next(iter(sums.values())).rows[0].diagonal)
    numbers = None if groups is None else inference.group_numbers(groups, n_samples)
    return [_estimate(measure, sums[measure, pair], level, numbers) for measure in measures for pair in pairs]


def _sums_of_two(X: ArrayLike, Y: ArrayLike, measure: CKA) -> Sums:
    # By sample whether requested or not: these are added up in another order, and two functions would differ in the
    # last digits.
    layers: list[NamedLayers] = [[("X", as_array(X, name="X"))], [("Y", as_array(Y, name="Y"))]]
    (sums,) = sums_of(layers, [measure], [(0, 1)]).values()
    return sums


def _estimate(measure: CKA, sums: Sums, level: float | None, groups: NDArray[np.intp] | None) -> MapEstimate:
    """Return the map of two models; intervals are for the debiased estimator with at least five samples or groups."""
    rows, columns = sums.rows, sums.columns
    values = sums.cka(measure.estimator)
    sigma = [tuple(s.sigma_squared for s in layers if s.sigma_squared is not None) for layers in (rows, columns)]
    heatmap = SimilarityMap(
        measure=measure,
        values=to_matrix(values),
        n_samples=len(rows[0].diagonal),
        sigma_squared=(sigma[0], sigma[1]) if sigma[0] else None,
        sigma_samples=rows[0].sigma_samples,
    )
    n_groups = None if groups is None else int(groups.max()) + 1
    units = heatmap.n_samples if n_groups is None else n_groups
    if level is None or measure.estimator == "biased" or units < inference.MIN_UNITS:
        return MapEstimate(map=heatmap)
    spread = functools.partial(_spread, sums, groups)
    parts = np.empty((3, *values.shape))
    for at in np.ndindex(*values.shape):
        error = spread(at)
        parts[:, *at] = error.standard_error, *inference.interval(float(values[at]), error, level=level)
    errors, lower, upper = map(to_matrix, parts)
    uncertainty = MapUncertainty(
        level=level,
        standard_errors=errors,
        lower=lower,
        upper=upper,
        method=f"influence of each {'sample' if groups is None else 'group'}",
        n_groups=n_groups,
    )
    shares = _effective_shares(rows, groups), _effective_shares(columns, groups)
    heatmap = dataclasses.replace(heatmap, uncertainty=uncertainty, effective_shares=shares)
    return MapEstimate(map=heatmap, level=level, spread=spread)


def _spread(sums: Sums, groups: NDArray[np.intp] | None, at: Pair) -> inference.Spread:
    """Return the spread of the debiased CKA of two layers."""
    influences, norms = sums.influence(at), sums.norm_influence(at)
    return inference.spread(influences, norms, pair_variance=sums.pair_variance(at), groups=groups)


def _effective_shares(layers: Sequence[LayerSums], groups: NDArray[np.intp] | None) -> tuple[float, ...]:
    """Return the effective share of the samples or groups of each layer."""
    return tuple(inference.effective_share(layer.parts, groups=groups) for layer in layers)


def named_layers(name: str, layers: Sequence[Rows]) -> NamedLayers:
    """Return the layers of a model with their names for messages."""
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
