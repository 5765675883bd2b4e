"""Choosing the passes over the samples for a set of measures, and their path. Knows costs."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch

from layerprobe.context import part
from layerprobe.errors import DataError
from layerprobe.process import use_one_thread_if_forked
from layerprobe.rng import exact_products, without_autocast
from layerprobe.similarity.checks import row_readable
from layerprobe.similarity.engine.grams import NARROW, Gram, linear_gram, rbf_grams
from layerprobe.similarity.engine.paths import feature_sums, products_of, tile_sums
from layerprobe.similarity.engine.rows import FEW_SAMPLES, CentredLayer, Rows, centred_layers
from layerprobe.similarity.engine.sums import Sums
from layerprobe.similarity.measures import CKA

Path = Literal["auto", "gram", "features"]
Pair = tuple[int, int]
NamedLayers = Sequence[tuple[str, Rows]]

CPU_TILE, CUDA_TILE = 160, 896
"""Rows on the shorter side of a tile: a multiple of 32, for fast products, and not a power of two, since rows
that far apart evict each other from a cache when a tile is transposed."""


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
