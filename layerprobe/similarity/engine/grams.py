"""U-centred Gram matrices, tile by tile, and their products. Knows kernels; knows no pairs of layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.engine.rows import CentredLayer, StripReader


def inner_products(left: Tensor, right: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """Return the (m, n) inner products of the rows of (m, k) and (n, k), in their dtype, on their device.

    In float32 on a CPU they use oneDNN: on an AMD EPYC 2.2 times as fast as the library behind `torch.mm` for tiles,
    and 2.8 times for few rows and large k. A (n,) bias is added to the columns.
    """
    if left.dtype == torch.float32 and left.device.type == "cpu":
        # Non-contiguous rows are fifty times as slow on the right.
        return _linear()(left, right.contiguous(), bias)
    return _plain(left, right, bias)


def _plain(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(left, right.T) if bias is None else torch.addmm(bias, left, right.T)


def _has_onednn() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available


@cache
def _linear() -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Return oneDNN's product: its operator without copies between layouts, if this torch has it."""
    if not _has_onednn():
        return _plain
    left, right, bias = torch.arange(15.0).view(3, 5), torch.arange(10.0).view(2, 5), torch.arange(2.0)
    try:
        same = torch.equal(_without_copies(left, right, bias), torch.addmm(bias, left, right.T))
    except (AttributeError, RuntimeError, TypeError):  # private, so it may change in the next version
        same = False
    return _without_copies if same else _with_copies


def _without_copies(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    products: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return products


def _with_copies(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    products: Any = torch.nn.functional.linear(left.to_mkldnn(), right, bias)
    dense: Tensor = products.to_dense()
    return dense


ROUNDING = 32
"""Rounding of a squared distance between copies, in units in the last place."""

WIDE = 0.5
"""Bandwidth multiplier from which K - 1 has more digits than K: K is e^-2 at the median distance."""

NARROW = 0.25
"""Bandwidth multiplier below which K is no more than e^-8 at the median distance, and float32 loses it."""

STRIP = 5
"""Tiles of rows multiplied with another tile at once: the rows of a strip are centred once for all later tiles."""

MEDIAN_SAMPLES = 4096
"""Number of samples up to which the median distance is exact; with more, it uses this many evenly spaced ones: its
error is then about 0.1 %, and memory does not grow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gram:
    """The row means that centre the Gram matrix of a layer under one kernel."""

    offsets: Tensor
    """(n,) terms that U-centring subtracts, for rows and for columns."""
    additive: Tensor
    """(n,) terms added to products, for rows and for columns: the linear kernel's are then U-centred, and
    the Gaussian's are -d^2 / 2."""
    diagonal: Tensor
    """(n,) float64: k_ii minus the terms that U-centring would subtract from it."""
    exponent: float | None = None
    """rbf: 1 / sigma^2, for scaled rows."""
    wide: bool = False
    """rbf: whether 1 is subtracted from the kernel."""
    sigma_squared: float | None = None
    """rbf: sigma^2 in units of the layer."""
    sigma_samples: int | None = None
    """rbf: number of samples for the median."""


def linear_gram(layer: CentredLayer) -> Gram:
    """Return the terms that centre the linear kernel: rows have mean zero, so a row sum is the negative diagonal."""
    offsets = _offsets(-layer.squared_norms)
    diagonal = layer.squared_norms - 2 * offsets
    return Gram(offsets=offsets.to(layer.mean), additive=(-offsets).to(layer.mean), diagonal=diagonal)


def rbf_grams(layer: CentredLayer, multipliers: Sequence[float], *, tile: int) -> list[Gram] | None:
    """Return the terms that centre the Gaussian kernel of each bandwidth, from a first pass over all distances.

    None if distances are as small as the rounding of float32, so that products need float64.
    """
    n = layer.n_samples
    chosen = np.linspace(0, n - 1, min(n, MEDIAN_SAMPLES)).round().astype(np.intp)
    some = layer if len(chosen) == n else layer.chosen(chosen)
    distances = list(_distances(some, tile=tile))
    median = _median(distances)
    if median <= ROUNDING * torch.finfo(layer.dtype).eps:  # rows have a mean squared norm of 1
        if layer.dtype == torch.float32:
            return None
        raise DegenerateLayerError(
            f"{layer.name} has a median distance of 0 between samples, expected most samples to differ: "
            "remove duplicate texts, or use the linear kernel"
        )
    kernels = [(-0.5 / (multiplier**2 * median), multiplier >= WIDE) for multiplier in multipliers]
    # All distances if there are few, a second pass if there are many.
    every = distances if some is layer else _distances(layer, tile=tile)
    offsets = map(_offsets, _row_sums(n, every, kernels))
    return [
        Gram(
            offsets=of_kernel.to(layer.mean),
            additive=(-layer.squared_norms / 2).to(layer.mean),
            diagonal=(0.0 if wide else 1.0) - 2 * of_kernel,
            exponent=-2 * exponent,
            wide=wide,
            sigma_squared=multiplier**2 * median * layer.unit,
            sigma_samples=len(chosen),
        )
        for multiplier, (exponent, wide), of_kernel in zip(multipliers, kernels, offsets, strict=True)
    ]


def gaussian(scaled: Tensor, *, wide: bool) -> Tensor:
    """Return exp of -d^2 / (2 sigma^2), in place; minus 1 for wide kernels.

    HSIC does not change when a constant is subtracted from K. With a large sigma, K is nearly 1 everywhere, and float32
    keeps its differences only if the 1 is never added.
    """
    return scaled.expm1_() if wide else scaled.exp_()


def u_centre(products: Tensor, gram: Gram, rows: slice, columns: slice) -> None:
    """Turn products with added terms into a part of the U-centred Gram matrix above its diagonal, in place."""
    if gram.exponent is not None:
        gaussian(products.clamp_(max=0).mul_(gram.exponent), wide=gram.wide)
        products.sub_(gram.offsets[rows, None]).sub_(gram.offsets[columns])
    keep_above(products, rows, columns)


def tiles(n: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """Yield the row and column blocks of the upper triangle: `tile` columns by the rows of a strip, strip by strip.

    A block that ends on the diagonal has a square of `tile` rows there, half of which is below it.
    """
    for start in range(0, n, STRIP * tile):
        for first in range(start, n, tile):
            last = min(first + tile, n)
            yield slice(start, min(start + STRIP * tile, last)), slice(first, last)


def keep_above(values: Tensor, rows: slice, columns: slice) -> None:
    """Set entries that are not above the diagonal to 0; the columns begin with the rows or later."""
    if columns.start < rows.stop:
        values[columns.start - rows.start :].triu_(1)


def _offsets(row_sums: Tensor) -> Tensor:
    n = len(row_sums)
    return row_sums / (n - 2) - row_sums.sum() / (2 * (n - 1) * (n - 2))


def _distances(layer: CentredLayer, *, tile: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the tiles of the squared distances between samples."""
    halves, read = -layer.squared_norms.to(layer.mean) / 2, StripReader(layer, STRIP * tile)
    for rows, columns in tiles(layer.n_samples, tile):
        products = inner_products(*read(rows, columns), bias=halves[columns]).add_(halves[rows, None])
        yield rows, columns, products.mul_(-2).clamp_(min=0)


def _median(distances: Sequence[tuple[slice, slice, Tensor]]) -> float:
    """Return the median over i < j."""
    above = list[Tensor]()
    for rows, columns, tile in distances:
        first = columns.start - rows.start
        square = tile[first:]
        above += [tile[:first].flatten(), square[torch.ones_like(square, dtype=torch.bool).triu_(1)]]
    every, middle = torch.cat(above), sum(map(len, above)) // 2
    if every.is_cuda:
        ordered = every.sort().values.double()
        return float(ordered[middle] if len(every) % 2 else ordered[middle - 1 : middle + 1].mean())
    values = every.numpy()
    # Not np.median, whose mean of the two is in float32. One rank at a time is ten times as fast in numpy 2.
    values.partition(middle)
    high = float(values[middle])
    low = high if len(values) % 2 else float(values[:middle].max())
    return (low + high) / 2


def _row_sums(
    n: int, distances: Iterable[tuple[slice, slice, Tensor]], kernels: Sequence[tuple[float, bool]]
) -> list[Tensor]:
    sums = list[Tensor]()
    for rows, columns, values in distances:
        sums = sums or [torch.zeros(n, dtype=torch.float64, device=values.device) for _ in kernels]
        for total, (exponent, wide) in zip(sums, kernels, strict=True):
            kernel = gaussian(values * exponent, wide=wide)
            keep_above(kernel, rows, columns)
            total[columns] += kernel.sum(dim=0).double()
            total[rows] += kernel.sum(dim=1).double()
    return [total.cpu() for total in sums]
