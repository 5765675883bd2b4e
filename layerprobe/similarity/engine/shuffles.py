"""Inner products with the samples of one model in many orders. Knows Gram matrices that are kept; knows no chance.

The U-centred Gram matrix of samples in another order is the same matrix with its rows and columns in that order, and
the norm stays. So the matrices of one model are made once and read in every order, and those of the other are made
once, strip by strip.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.similarity.checks import Array
from layerprobe.similarity.engine.grams import Gram, tiles, u_centre
from layerprobe.similarity.engine.products import inner_products
from layerprobe.similarity.engine.rows import CentredLayer
from layerprobe.similarity.engine.sums import LayerSums

Order = NDArray[np.intp]

CPU_STRIP, CUDA_STRIP = 32, 512
"""Rows of Gram matrices that are read in one order after the other."""

AT_ONCE = 64
"""Matrices, in some order, that a strip is multiplied with at once."""


def shuffled_inner(
    layers: Sequence[CentredLayer],
    grams: Sequence[Gram],
    split: int,
    orders: Sequence[Order],
    *,
    tile: int,
    memory: int,
) -> tuple[list[LayerSums], Array]:
    """Return the sums of every layer, and the (orders, layers, layers) inner products.

    Those are of the first `split` layers with each of the others, whose samples are put in each of the (n,) orders. As
    many Gram matrices of the others are kept at once as `memory` bytes hold, and one at least; the strips of the first
    layers are made again for each lot.
    """
    n, device, dtype = layers[0].n_samples, layers[0].mean.device, layers[0].dtype
    totals = torch.zeros(len(layers), dtype=torch.float64, device=device)
    inner = torch.zeros(len(orders), split, len(layers) - split, dtype=torch.float64, device=device)
    indices = [torch.from_numpy(order).to(device) for order in orders]
    at_once = max(1, memory // (n * n * dtype.itemsize))
    height = CUDA_STRIP if layers[0].mean.is_cuda else CPU_STRIP
    lots = [slice(start, min(start + at_once, len(layers))) for start in range(split, len(layers), at_once)]
    for number, lot in enumerate(lots):
        matrices = _gram_matrices(layers[lot], grams[lot], tile=tile)
        totals[lot] = _squared_norms(matrices)
        norms = torch.zeros(split, dtype=torch.float64, device=device)
        for first in range(0, n, height):
            rows, columns = slice(first, min(first + height, n)), slice(first, n)
            strips = _strips(layers[:split], grams[:split], rows, columns)
            norms += 2 * _squared_norms(strips)
            strips.mul_(2)  # for their mirror image
            _add(inner[:, :, lot.start - split : lot.stop - split], strips, matrices, indices, rows, columns)
            report("comparing", number + 1 - (1 - rows.stop / n) ** 2, len(lots))
        totals[:split] = norms
    sums = [
        LayerSums(
            name=layer.name,
            inner=float(totals[i]),
            diagonal=gram.diagonal.numpy(),
            spacing=layer.spacing,
            sigma_squared=gram.sigma_squared,
            sigma_samples=gram.sigma_samples,
        )
        for i, (layer, gram) in enumerate(zip(layers, grams, strict=True))
    ]
    return sums, inner.cpu().numpy()


def _gram_matrices(layers: Sequence[CentredLayer], grams: Sequence[Gram], *, tile: int) -> Tensor:
    """Return the (layers, n, n) U-centred Gram matrices."""
    n = layers[0].n_samples
    matrices = torch.zeros(len(layers), n, n, dtype=layers[0].dtype, device=layers[0].mean.device)
    for rows, columns in tiles(n, tile):
        values = _strips(layers, grams, rows, columns)
        matrices[:, rows, columns] += values
        matrices[:, columns, rows] += values.transpose(1, 2)
    return matrices


def _strips(layers: Sequence[CentredLayer], grams: Sequence[Gram], rows: slice, columns: slice) -> Tensor:
    """Return the (layers, rows, columns) parts of U-centred Gram matrices above the diagonal."""
    shape = len(layers), rows.stop - rows.start, columns.stop - columns.start
    strips = torch.empty(shape, dtype=layers[0].dtype, device=layers[0].mean.device)
    for strip, layer, gram in zip(strips, layers, grams, strict=True):
        products = inner_products(layer.rows(rows), layer.rows(columns), bias=gram.additive[columns])
        torch.add(products, gram.additive[rows, None], out=strip)
        u_centre(strip, gram, rows, columns)
    return strips


def _add(
    inner: Tensor, strips: Tensor, matrices: Tensor, orders: Sequence[Tensor], rows: slice, columns: slice
) -> None:
    """Add the inner products of a strip with the same part of the kept matrices in every order."""
    at_once = max(1, AT_ONCE // len(matrices))
    buffer = torch.empty(at_once, len(matrices), *strips.shape[1:], dtype=matrices.dtype, device=matrices.device)
    for start in range(0, len(orders), at_once):
        some = orders[start : start + at_once]
        shuffled = buffer[: len(some)]
        for order, of_order in zip(some, shuffled, strict=True):
            for matrix, part in zip(matrices, of_order, strict=True):
                torch.index_select(matrix.index_select(0, order[rows]), 1, order[columns], out=part)
        products = inner_products(strips.flatten(start_dim=1), shuffled.flatten(0, 1).flatten(start_dim=1))
        inner[start : start + at_once] += products.view(len(strips), len(some), len(matrices)).transpose(0, 1)


def _squared_norms(matrices: Tensor) -> Tensor:
    """Return the sum of squares of each; float32 sums run over a row alone."""
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=2)
    return norms.double().square().sum(dim=1)
