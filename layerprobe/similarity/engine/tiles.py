"""The Gram path: all pairs of layers from one pass over the tiles of their Gram matrices.

Work memory is a tile for every layer and `MEMORY` bytes of rows, whatever the number of samples; results of per-sample
parts are as large as they are.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from layerprobe.context import report
from layerprobe.similarity.engine.grams import STRIP, Gram, tiles, u_centre
from layerprobe.similarity.engine.products import inner_products
from layerprobe.similarity.engine.rows import CentredLayer, StripReader
from layerprobe.similarity.engine.sums import LayerSums, PairSums

MEMORY = 2**28
"""Bytes of rows that stay centred while the tiles of their strip are made; where all layers take more, they are read
for every tile."""

CPU_CHUNK, CUDA_CHUNK = 2**14, 2**20
"""Entries of a layer's tile that are turned at once: on a CPU, such that caches hold those of all layers."""

MOMENT_SAMPLES = 1024
"""Fourth moments are exact up to so many samples, and those of the pairs of so many evenly spaced ones beyond: only the
smaller part of a variance follows from them."""

LANES = 16
"""Layers that small products are fastest with multiples of: float32 numbers of an AVX-512 register."""


def tile_sums(
    layers: Sequence[CentredLayer],
    groups: Sequence[Sequence[Gram]],
    pairs: Mapping[tuple[int, int], tuple[slice, slice]],
    *,
    per_sample: bool,
    tile: int,
) -> list[tuple[list[LayerSums], dict[tuple[int, int], PairSums]]]:
    """Accumulate the sums of all groups over all tiles.

    Layers are those of all models, one model after the other, and a group has their Gram matrices; for rbf there is
    one a bandwidth, which share their distances. Pairs of models to compare have the slices of their layers.
    `per_sample` keeps per-sample parts and fourth moments, for standard errors.
    """
    n = layers[0].n_samples
    accumulators = [_Accumulator(layers, group, pairs, per_sample=per_sample) for group in groups]
    additive = [gram.additive for gram in groups[0]]
    # What lies behind the last layer is multiplied, too, and left out.
    depth = max(len(layers), *(_widened(b).stop for _, b in pairs.values()))
    size = depth * min(STRIP * tile**2, n**2)
    buffer = torch.zeros(size, dtype=layers[0].dtype, device=layers[0].mean.device)
    height = min(STRIP * tile, n)
    keep = sum(layer.width for layer in layers) * height * buffer.itemsize <= MEMORY
    readers = [StripReader(layer, height, keep=keep) for layer in layers]
    every = list(tiles(n, tile))
    for number, (rows, columns) in enumerate(every, start=1):
        shape = depth, rows.stop - rows.start, columns.stop - columns.start
        values = buffer[: math.prod(shape)].view(shape)
        for value, read, a in zip(values, readers, additive, strict=False):
            torch.add(inner_products(*read(rows, columns), bias=a[columns]), a[rows, None], out=value)
        for accumulator in accumulators:
            accumulator.add(values if accumulator is accumulators[-1] else values.clone(), rows, columns)
        report("comparing", number, len(every))
    return [accumulator.sums() for accumulator in accumulators]


class _Accumulator:
    """The sums of one group while tiles are added."""

    def __init__(
        self,
        layers: Sequence[CentredLayer],
        grams: Sequence[Gram],
        pairs: Mapping[tuple[int, int], tuple[slice, slice]],
        *,
        per_sample: bool,
    ) -> None:
        n, device = layers[0].n_samples, layers[0].mean.device

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers, self.grams, self.pairs, self.per_sample = layers, grams, pairs, per_sample
        shapes = {pair: (a.stop - a.start, b.stop - b.start) for pair, (a, b) in pairs.items()}
        self.own_inner = zeros(len(layers))
        # Of how many samples one counts for fourth moments, and for how many pairs a pair of them does.
        self.step = -(-n // MOMENT_SAMPLES)
        some = -(-n // self.step)
        self.weight = 2 * n * (n - 1) / (some * (some - 1))
        self.inner = {pair: zeros(*shape) for pair, shape in shapes.items()}
        if per_sample:
            self.own_samples, self.own_fourth = zeros(len(layers), n), zeros(len(layers))
            # As precise as what they are made of, and in float32 half as large.
            self.samples = {pair: zeros(n, *shape, dtype=layers[0].dtype) for pair, shape in shapes.items()}
            self.moments = {pair: zeros(3, *shape) for pair, shape in shapes.items()}

    def add(self, values: Tensor, rows: slice, columns: slice) -> None:
        """Centre a tile of products, and add what is above the diagonal and its mirror image."""
        for value, gram in zip(values, self.grams, strict=False):
            u_centre(value, gram, rows, columns)
        self._add_rows(values, rows)
        if self.per_sample:
            height = max(1, (CUDA_CHUNK if values.is_cuda else CPU_CHUNK) // values.shape[2])
            for start in range(0, values.shape[1], height):
                self._add_rows(_turned(values[:, start : start + height]), columns)
            across, down = -columns.start % self.step, -rows.start % self.step
            self._add_moments(values[: len(self.layers), down :: self.step, across :: self.step])

    def _add_rows(self, values: Tensor, rows: slice) -> None:
        weight = 1 if self.per_sample else 2  # without parts of samples also for the mirror image
        norms = torch.linalg.vector_norm(values[: len(self.layers)], dim=2).double().square()
        self.own_inner += weight * norms.sum(dim=1)
        if self.per_sample:
            self.own_samples[:, rows] += norms
        # Row by row, so that float32 sums run over a tile's columns alone.
        by_row = values.transpose(0, 1)
        for pair, (a, b) in self.pairs.items():
            products = torch.bmm(by_row[:, a], by_row[:, _widened(b)].transpose(1, 2))[:, :, : b.stop - b.start]
            self.inner[pair] += weight * products.sum(dim=0, dtype=torch.float64)
            if self.per_sample:
                self.samples[pair][rows] += products

    def _add_moments(self, values: Tensor) -> None:
        first = values.flatten(start_dim=1)
        second = first * first
        third = second * first
        self.own_fourth += self.weight * torch.linalg.vector_norm(second, dim=1).double().square()
        for pair, (a, b) in self.pairs.items():
            moments = ((second[a], second[b]), (third[a], first[b]), (first[a], third[b]))
            for total, factors in zip(self.moments[pair], moments, strict=True):
                total += self.weight * inner_products(*factors)

    def sums(self) -> tuple[list[LayerSums], dict[tuple[int, int], PairSums]]:
        """Return what was accumulated."""
        layer_sums = [
            LayerSums(
                name=layer.name,
                inner=float(self.own_inner[i]),
                diagonal=gram.diagonal.numpy(),
                spacing=layer.spacing,
                per_sample=self.own_samples[i].cpu().numpy() if self.per_sample else None,
                fourth=float(self.own_fourth[i]) if self.per_sample else None,
                sigma_squared=gram.sigma_squared,
                sigma_samples=gram.sigma_samples,
            )
            for i, (layer, gram) in enumerate(zip(self.layers, self.grams, strict=True))
        ]
        return layer_sums, {pair: self._pair(pair) for pair in self.pairs}

    def _pair(self, pair: tuple[int, int]) -> PairSums:
        if not self.per_sample:
            return PairSums(inner=self.inner[pair].cpu().numpy())
        inner, samples = self.inner[pair].cpu().numpy(), self.samples[pair].permute(1, 2, 0).cpu().numpy()
        both, left, right = self.moments[pair].cpu().numpy()
        return PairSums(inner=inner, per_sample=samples, moments=(both, left, right))


def _turned(values: Tensor) -> Tensor:
    """Return the (layers, columns, rows) mirror image; numpy copies it in half of torch's time."""
    return values.mT.contiguous() if values.is_cuda else torch.from_numpy(values.numpy().swapaxes(1, 2).copy("C"))


def _widened(layers: slice) -> slice:
    """Return layers, and as many behind them as products are faster with."""
    width = layers.stop - layers.start
    return layers if width <= LANES // 2 else slice(layers.start, layers.start + -(-width // LANES) * LANES)
