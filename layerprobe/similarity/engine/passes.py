"""Which passes over the samples a set of measures takes, by which path. Knows costs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from layerprobe.progress import Progress, part_of, silent
from layerprobe.similarity.engine.features import feature_sums
from layerprobe.similarity.engine.grams import NARROW, NeedsFloat64Error, linear_gram, rbf_grams
from layerprobe.similarity.engine.rows import CentredLayer, Rows, centred_layers
from layerprobe.similarity.engine.sums import LayerSums, PairSums
from layerprobe.similarity.engine.tiles import Group, tile_sums
from layerprobe.similarity.measures.cka import CKA, RBFCKA
from layerprobe.similarity.values import Kernel, Normalize

Path = Literal["auto", "gram", "features"]
Pair = tuple[int, int]
NamedLayers = Sequence[tuple[str, Rows]]

CPU_TILE, CUDA_TILE = 512, 2048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """What one measure needs of two models."""

    rows: list[LayerSums]
    """By layer of the model."""
    columns: list[LayerSums]
    """By layer of the reference."""
    pair: PairSums


def sums_of(
    models: Sequence[NamedLayers],
    measures: Sequence[CKA],
    pairs: Sequence[Pair],
    *,
    per_sample: bool = True,
    device: torch.device | str = "cpu",
    tile: int | None = None,
    path: Path = "auto",
    progress: Progress = silent,
) -> dict[tuple[CKA, Pair], Sums]:
    """Return the sums of every measure and pair of models.

    Measures that differ in the estimator alone share their sums, and bandwidths share their distances.

    Args:
        models: What messages call each layer, and its (n, d) embeddings; the same n samples in all.
        measures: Kernels, bandwidths and normalizations of CKA.
        pairs: Which models to compare, by position in `models`.
        per_sample: Whether to keep what standard errors need: (layers, layers, n) numbers a pair.
        device: Where products are made.
        tile: Rows of a tile of the Gram matrices; by the device by default.
        path: gram, features (linear kernel alone), or auto for the one that takes fewer operations.
        progress: Called with the tiles that are done.

    Raises:
        DataError: If a layer is no matrix of real numbers.
        DegenerateLayerError: If a layer has no similarity; the message names it.
        MisalignedSamplesError: If layers have different numbers of rows.
    """
    ends = list(itertools.accumulate(map(len, models)))
    slices = [slice(end - len(layers), end) for end, layers in zip(ends, models, strict=True)]
    of_pairs = {(a, b): (slices[a], slices[b]) for a, b in pairs}
    sources = list(itertools.chain.from_iterable(models))
    by_measure: dict[tuple[CKA, Pair], Sums] = {}
    kinds = _kinds(measures)
    with _full_precision():
        for number, (normalize, kernel) in enumerate(kinds):
            same = [m for m in measures if (m.normalize, m.kernel) == (normalize, kernel)]
            report = part_of(progress, start=number, share=1, whole=len(kinds))

            def sums_in(
                *, float64: bool, same: list[CKA] = same, report: Progress = report
            ) -> dict[float | None, tuple[list[LayerSums], dict[Pair, PairSums]]]:
                layers = centred_layers(sources, normalize=same[0].normalize, device=device, float64=float64)
                return _pass(layers, same, of_pairs, per_sample=per_sample, tile=tile, path=path, report=report)

            try:
                sums = sums_in(float64=any((_bandwidth(m) or 1) < NARROW for m in same))
            except NeedsFloat64Error:
                sums = sums_in(float64=True)
            for measure, (pair, (a, b)) in itertools.product(same, of_pairs.items()):
                own, of_pair = sums[_bandwidth(measure)]
                by_measure[measure, pair] = Sums(rows=own[a], columns=own[b], pair=of_pair[pair])
    return by_measure


def _kinds(measures: Sequence[CKA]) -> list[tuple[Normalize, Kernel]]:
    return list(dict.fromkeys((m.normalize, m.kernel) for m in measures))


def _bandwidth(measure: CKA) -> float | None:
    return measure.bandwidth_multiplier if isinstance(measure, RBFCKA) else None


def _pass(
    layers: list[CentredLayer],
    measures: Sequence[CKA],
    pairs: Mapping[Pair, tuple[slice, slice]],
    *,
    per_sample: bool,
    tile: int | None,
    path: Path,
    report: Progress,
) -> dict[float | None, tuple[list[LayerSums], dict[Pair, PairSums]]]:
    """Return sums by bandwidth multiplier."""
    tile = tile or (CUDA_TILE if layers[0].mean.is_cuda else CPU_TILE)
    multipliers = list(dict.fromkeys(map(_bandwidth, measures)))
    if measures[0].kernel == "linear":
        grams = [linear_gram(layer) for layer in layers]
        if path == "features" or (path == "auto" and _features_are_cheaper(layers, pairs, per_sample=per_sample)):
            return {None: feature_sums(layers, grams, pairs, per_sample=per_sample, progress=report)}
        groups = [Group(grams=grams)]
    else:
        widths = [multiplier for multiplier in multipliers if multiplier is not None]
        by_layer = [rbf_grams(layer, widths, tile=tile) for layer in layers]
        groups = [Group(grams=grams) for grams in zip(*by_layer, strict=True)]
    sums = tile_sums(layers, groups, pairs, per_sample=per_sample, tile=tile, progress=report)
    return dict(zip(multipliers, sums, strict=True))


def _features_are_cheaper(
    layers: Sequence[CentredLayer], pairs: Mapping[Pair, tuple[slice, slice]], *, per_sample: bool
) -> bool:
    """Compare multiplications: n^2 / 2 dot products a layer, against a cross-covariance a pair of layers."""
    n = layers[0].n_samples
    grams = n * n / 2 * sum(layer.width for layer in layers)
    wanted = {(i, i) for i in range(len(layers))}
    for a, b in pairs.values():
        wanted |= {(min(i, j), max(i, j)) for i, j in itertools.product(range(a.start, a.stop), range(b.start, b.stop))}
    features = n * sum(layers[i].width * layers[j].width for i, j in wanted)
    return features * (2 if per_sample else 1) < grams


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 products, whatever the process allows elsewhere."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)
