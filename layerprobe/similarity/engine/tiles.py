"""The Gram path: all pairs of layers from one pass over the tiles of their Gram matrices.

Work memory is a tile for every layer and `MEMORY` bytes of rows, whatever the number of samples; results of per-sample
parts are as large as they are.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from layerprobe.context import report
from layerprobe.similarity.engine.grams import Gram, tiles, u_centred
from layerprobe.similarity.engine.products import inner_products
from layerprobe.similarity.engine.rows import CentredLayer, StripReader
from layerprobe.similarity.engine.sums import LayerSums, PairSums

MEMORY = 2**28
"""Bytes of rows that stay centred while the tiles of their strip are made; where all layers take more, they are read
for every tile."""

CPU_CHUNK, CUDA_CHUNK = 2**15, 2**20
"""Entries of a layer's tile whose powers and products are made at once: on a CPU, such that caches hold them."""


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
    device, dtype = layers[0].mean.device, layers[0].dtype
    accumulators = [_Accumulator(layers, group, pairs, per_sample=per_sample) for group in groups]
    buffer = torch.empty(len(layers) * min(tile, n) ** 2, dtype=dtype, device=device)
    base = torch.empty_like(buffer) if len(groups) > 1 else buffer
    additive = [gram.additive for gram in groups[0]]
    keep = sum(layer.width for layer in layers) * min(tile, n) * dtype.itemsize <= MEMORY
    readers, done = [StripReader(layer, tile, keep=keep) for layer in layers], 0
    for rows, columns in tiles(n, tile):
        shape = len(layers), rows.stop - rows.start, columns.stop - columns.start
        size = math.prod(shape)
        products = base[:size].view(shape)
        for product, read, a in zip(products, readers, additive, strict=True):
            inner_products(*read(rows, columns), added=(a[rows], a[columns]), out=product)
        for accumulator in accumulators:
            values = buffer[:size].view(shape)
            accumulator.centre(products, values, rows, columns)
            accumulator.add(values, rows, columns)
        done += shape[1] * shape[2] * (1 if rows == columns else 2)
        report("comparing", done, n * n)
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

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.layers, self.grams, self.pairs, self.per_sample = layers, grams, pairs, per_sample
        shapes = {pair: (a.stop - a.start, b.stop - b.start) for pair, (a, b) in pairs.items()}
        self.own_inner = zeros(len(layers))
        self.inner = {pair: zeros(*shape) for pair, shape in shapes.items()}
        if per_sample:
            self.own_samples, self.own_fourth = zeros(len(layers), n), zeros(len(layers))
            # As precise as what they are made of, and in float32 half as large.
            self.samples = {
                pair: torch.zeros((*shape, n), dtype=layers[0].dtype, device=device) for pair, shape in shapes.items()
            }
            self.moments = {pair: zeros(3, *shape) for pair, shape in shapes.items()}

    def centre(self, products: Tensor, values: Tensor, rows: slice, columns: slice) -> None:
        """Turn products into tiles of U-centred Gram matrices."""
        for product, value, gram in zip(products, values, self.grams, strict=True):
            u_centred(product, gram, rows, columns, out=value)

    def add(self, values: Tensor, rows: slice, columns: slice) -> None:
        """Add a tile, and its mirror image where it is not on the diagonal."""
        if self.per_sample:
            self._add_samples(values, rows, columns)
            return
        weight = 1 if rows == columns else 2
        # Row by row, so that float32 sums run over a tile's columns alone.
        by_row = values.transpose(0, 1)
        self.own_inner += weight * torch.linalg.vector_norm(values, dim=2).double().square().sum(dim=1)
        for pair, (a, b) in self.pairs.items():
            products = torch.bmm(by_row[:, a], by_row[:, b].transpose(1, 2))
            self.inner[pair] += weight * products.sum(dim=0, dtype=torch.float64)

    def _add_samples(self, values: Tensor, rows: slice, columns: slice) -> None:
        height = max(1, (CUDA_CHUNK if values.is_cuda else CPU_CHUNK) // values.shape[2])
        for start in range(rows.start, rows.stop, height):
            chunk = slice(start, min(start + height, rows.stop))
            part = values[:, chunk.start - rows.start : chunk.stop - rows.start]
            self._add_chunk(part.contiguous(), chunk, columns, mirrored=rows != columns)

    def _add_chunk(self, values: Tensor, rows: slice, columns: slice, *, mirrored: bool) -> None:
        weight = 2 if mirrored else 1
        squares = values * values
        cubes = squares * values
        self.own_samples[:, rows] += squares.sum(dim=2)
        if mirrored:
            self.own_samples[:, columns] += squares.sum(dim=1)
        first, second, third = (powers.flatten(start_dim=1) for powers in (values, squares, cubes))
        self.own_fourth += weight * torch.linalg.vector_norm(second, dim=1).double().square()
        for pair, (a, b) in self.pairs.items():
            moments = ((second[a], second[b]), (third[a], first[b]), (first[a], third[b]))
            for total, factors in zip(self.moments[pair], moments, strict=True):
                total += weight * inner_products(*factors)
            product = torch.empty_like(values[b])
            for layer, samples, inner in zip(values[a], self.samples[pair], self.inner[pair], strict=True):
                of_rows = torch.mul(layer, values[b], out=product).sum(dim=2)
                samples[:, rows] += of_rows
                if mirrored:
                    samples[:, columns] += product.sum(dim=1)
                inner += weight * of_rows.sum(dim=1, dtype=torch.float64)

    def sums(self) -> tuple[list[LayerSums], dict[tuple[int, int], PairSums]]:
        """Return what was accumulated."""
        own_inner = self.own_samples.sum(dim=1) if self.per_sample else self.own_inner
        own = [
            LayerSums(
                name=layer.name,
                inner=float(own_inner[i]),
                diagonal=gram.diagonal.numpy(),
                spacing=layer.spacing,
                per_sample=self.own_samples[i].cpu().numpy() if self.per_sample else None,
                fourth=float(self.own_fourth[i]) if self.per_sample else None,
                sigma_squared=gram.sigma_squared,
                sigma_samples=gram.sigma_samples,
            )
            for i, (layer, gram) in enumerate(zip(self.layers, self.grams, strict=True))
        ]
        return own, {pair: self._pair(pair) for pair in self.pairs}

    def _pair(self, pair: tuple[int, int]) -> PairSums:
        if not self.per_sample:
            return PairSums(inner=self.inner[pair].cpu().numpy())
        inner, samples = self.inner[pair].cpu().numpy(), self.samples[pair].cpu().numpy()
        both, left, right = self.moments[pair].cpu().numpy()
        return PairSums(inner=inner, per_sample=samples, moments=(both, left, right))
