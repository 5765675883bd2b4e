"""Layers that are read in blocks, centred and scaled, and the tiles of their U-centred Gram matrices. Knows kernels."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.checks import (
    check_finite,
    check_same_samples,
    check_samples,
    check_shape,
    constant_layer,
    rounding,
)
from layerprobe.similarity.values import Normalize

Chosen = slice | NDArray[np.intp]

BLOCK, NUMBERS = 1024, 2**20
"""Rows, and numbers, read at once."""
CACHED_NUMBERS = 2**18
"""Numbers at once for the mean and the norms of a layer: a copy of them fits into a processor's caches."""
DEVICE_NUMBERS = 2**24
"""Numbers at once for a layer whose rows are all on the device."""
DEVICE_SHARE = 0.25
"""Share of a device's free memory up to which the rows of all layers are copied once and stay there: copying them for
every tile would take ten times as long as the products."""
FEW_SAMPLES = 256
"""Number of samples up to which products use float64: few pairs of samples average out few rounding errors, and all
layers of two models take a tenth of a second."""
UNEVEN = 100
"""Squared norm of a row, relative to the mean, from which products use float64: the contribution of other rows is then
less than the rounding of float32."""


Rows: TypeAlias = Any
"""A layer: an array, a memory map, or anything with a shape and a dtype whose rows can be sliced."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentredLayer:
    """A layer whose mean and scale are known; its rows are centred as they are read."""

    source: Rows
    name: str
    """Name in messages, such as "layer 3 of bert-tiny"."""
    mean: Tensor
    """(features,) means."""
    scale: Tensor
    """(features,) factors of the centred features, so that the mean squared norm of a row is 1."""
    squared_norms: Tensor
    """(samples,) squared norms of the centred and scaled rows, float64, on the CPU."""
    unit: float
    """Ratio of a squared distance of the layer (or of its z-scores) to that of scaled rows."""
    spacing: float
    """Relative spacing of the stored numbers, or of those of products if coarser."""
    varying: Tensor | None = None
    """Features that vary; None for all. Only z-scoring leaves out the others."""
    on_device: Tensor | None = None
    """(samples, features) all centred and scaled rows, if a device has room for them or they are few."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.squared_norms)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of products."""
        return self.mean.dtype

    def rows(self, chosen: Chosen) -> Tensor:
        """Return centred and scaled rows, (rows, features), which must not be modified."""
        if self.on_device is not None:
            return self.on_device[chosen]
        values = _tensor(self.source[chosen], dtype=self.dtype, device=self.mean.device)
        if self.varying is not None:
            values = values[:, self.varying]
        return torch.sub(values, self.mean).mul_(self.scale)

    def factor(self, chosen: Chosen, additive: Tensor, *, left: bool) -> Tensor:
        """Return rows with two more columns, (rows, features + 2), for products with added terms.

        With left factors (x_i, a_i, 1) and right factors (x_j, 1, a_j), their product is x_i x_j + a_i + a_j, where
        the (n,) a_i of all samples are `additive`.
        """
        added = additive[chosen, None]
        one = torch.ones_like(added)
        return torch.cat([self.rows(chosen), *((added, one) if left else (one, added))], dim=1)

    def chosen(self, rows: NDArray[np.intp]) -> "CentredLayer":
        """Return the layer with some samples, centred and scaled like all of them."""
        return replace(self, squared_norms=self.squared_norms[rows], on_device=self.rows(rows))


def strip_reader(
    layer: CentredLayer, height: int, *, keep: bool = True
) -> Callable[[slice, slice], tuple[Tensor, Tensor]]:
    """Return a function that reads the rows of both sides of a tile of `tiles`; it keeps those of the current strip."""
    strip, strip_rows = slice(0, 0), torch.empty(0)

    def side_of(side: slice) -> Tensor:
        within = side.start < strip.stop
        return strip_rows[side.start - strip.start : side.stop - strip.start] if within else layer.rows(side)

    def read(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        nonlocal strip, strip_rows
        if keep and rows.stop > strip.stop:
            strip = slice(rows.start, min(rows.start + height, layer.n_samples))
            strip_rows = layer.rows(strip)
        return side_of(rows), side_of(columns)

    return read


def centred_layers(
    sources: Sequence[tuple[str, Rows]],
    *,
    normalize: Normalize = "raw",
    device: torch.device | str = "cpu",
    float64: bool = False,
) -> list[CentredLayer]:
    """Read layers for their means, then for their scales and norms of rows, and again for the norms of z-scores.

    Products use float64 if requested, if a layer is float64, samples are few, or a few rows of a layer are much longer
    than the others; otherwise float32. Sums run over blocks of rows after subtracting a row near the
    mean, so that a common offset costs no digits; sums over blocks are in float64. Z-scoring
    leaves out constant features.
    """
    for name, source in sources:
        check_shape(source.shape, source.dtype, name=name)
        check_samples(source.shape[0], name=name)
        check_same_samples(source.shape[0], sources[0][1].shape[0], name=name, other=sources[0][0])
    few = sources[0][1].shape[0] <= FEW_SAMPLES
    wide = float64 or few or any(_needs_float64(source) for _, source in sources)
    numbers = sum(math.prod(source.shape) for _, source in sources)
    room = DEVICE_SHARE * _free_memory(device)
    # Values far outside the range of float32 overflow or vanish when squared: such layers need float64.
    for dtype in (torch.float64,) if wide else (torch.float32, torch.float64):
        all_rows: list[Tensor | None] = [None] * len(sources)
        if numbers * dtype.itemsize <= room:  # all are being copied while the first ones are centred
            all_rows = [_all_rows(source, dtype=dtype, device=torch.device(device)) for _, source in sources]
        centred = [
            _centred(
                source,
                rows,
                name=name,
                normalize=normalize,
                device=torch.device(device),
                dtype=dtype,
                spacing=torch.finfo(torch.float64 if float64 or _needs_float64(source) else torch.float32).eps,
            )
            for (name, source), rows in zip(sources, all_rows, strict=True)
        ]
        layers = [layer for layer in centred if layer is not None]
        if len(layers) == len(centred):
            return layers
    names = ", ".join(name for (name, _), layer in zip(sources, centred, strict=True) if layer is None)
    raise DegenerateLayerError(f"{names} has values too large or too small to square in float64, expected embeddings")


def _needs_float64(source: Rows) -> bool:
    return source.dtype.kind in "iu" or source.dtype.itemsize > 4


def _centred(
    source: Rows,
    on_device: Tensor | None,
    *,
    name: str,
    normalize: Normalize,
    device: torch.device,
    dtype: torch.dtype,
    spacing: float,
) -> CentredLayer | None:
    """Return the layer, or None if squares overflow or vanish in `dtype`, or its rows need float64."""
    n = source.shape[0]
    first = _tensor(source[0:1], dtype=dtype, device=device)[0] if on_device is None else on_device[0].clone()
    total = torch.zeros(len(first), dtype=torch.float64)
    for _, block in _blocks(source, on_device, dtype=dtype, device=device):
        total += (block - first).sum(dim=0).cpu()
        if not torch.isfinite(total).all():
            check_finite((source[rows] for rows in row_blocks(*source.shape)), name=name)
            return None
    # Arrays as short as a row are computed on the CPU: on a device, starting takes longer than computing.
    mean = (first.cpu().double() + total / n).to(dtype)
    squares, spread = torch.zeros_like(total), torch.zeros_like(total)
    norms = torch.empty(n, dtype=torch.float64)
    mean_there = mean.to(device)
    for rows, block in _blocks(source, on_device, dtype=dtype, device=device):
        centred_block = block - mean_there
        spread = torch.maximum(spread, centred_block.abs().amax(dim=0).cpu())
        squares += centred_block.square_().sum(dim=0).cpu()
        norms[rows] = centred_block.sum(dim=1).cpu().double()
    root_mean_square = float((mean.double().square() + squares / n).mean().sqrt())
    if not math.isfinite(root_mean_square):
        return None
    varies = spread > torch.from_numpy(rounding((mean.abs() + spread).numpy(), root_mean_square, source.dtype))
    if not varies.any():
        raise DegenerateLayerError(constant_layer(n, name=name))
    limits = torch.finfo(dtype)
    if not limits.tiny / limits.eps < float(squares.sum()) / n < limits.max / n:
        return None
    varying = None
    variances = squares / n
    if normalize == "zscore":
        if not varies.all():
            varying = varies.nonzero()[:, 0]
            mean, variances = mean[varying], variances[varying]
        unit = float(len(variances))
        scale = (variances * unit).rsqrt()
    else:
        unit = float(variances.sum())
        scale = torch.full_like(variances, unit**-0.5)
    scale = scale.to(dtype)
    if on_device is not None:
        if varying is not None:
            on_device = on_device[:, varying.to(device)]
        on_device = on_device.sub_(mean.to(device)).mul_(scale.to(device))
    layer = CentredLayer(
        source=source,
        name=name,
        mean=mean.to(device),
        scale=scale.to(device),
        squared_norms=norms,
        unit=unit,
        spacing=spacing,
        varying=None if varying is None else varying.to(device),
        on_device=on_device,
    )
    if normalize == "zscore":
        for rows in row_blocks(n, layer.width):
            norms[rows] = layer.rows(rows).square().sum(dim=1).double().cpu()
    else:
        norms *= float(scale[0]) ** 2
    longest = float(norms.max())  # NaN if one is
    most = UNEVEN if mean.dtype == torch.float32 else torch.finfo(torch.float64).max
    return layer if 0 < longest <= most else None


def row_blocks(n: int, width: int = 1, *, most: int = BLOCK, numbers: int = NUMBERS) -> Iterator[slice]:
    """Yield runs of at most `most` rows, and of at most `numbers` numbers unless a row is longer."""
    size = max(1, min(most, numbers // width))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _blocks(
    source: Rows, on_device: Tensor | None, *, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    if on_device is not None:
        for rows in row_blocks(*on_device.shape, most=len(on_device), numbers=DEVICE_NUMBERS):
            yield rows, on_device[rows]
        return
    for rows in row_blocks(*source.shape, numbers=CACHED_NUMBERS):
        yield rows, _tensor(source[rows], dtype=dtype, device=device)


def _all_rows(source: Rows, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a copy of all rows on the device, possibly still being transferred."""
    rows = torch.empty(source.shape, dtype=dtype, device=device)
    on_cuda = device.type == "cuda"
    for some in row_blocks(*source.shape):
        block = _tensor(source[some], dtype=dtype, device=torch.device("cpu"))
        # From pinned memory it is two and a half times as fast; torch keeps it until it is read.
        rows[some].copy_(block.pin_memory() if on_cuda else block, non_blocking=on_cuda)
    return rows


def _free_memory(device: torch.device | str) -> int:
    """Return the bytes that are free on a device with memory of its own; 0 for a CPU."""
    if torch.device(device).type != "cuda":
        return 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _tensor(values: NDArray[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor that must not be modified: the source itself if possible, or a copy of a read-only memory map."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    return torch.from_numpy(np.require(values, dtype=kind, requirements=["C", "W"])).to(device)


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
    return torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


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
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def _with_copies(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(left.to_mkldnn(), right, bias).to_dense()


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
    halves = -layer.squared_norms.to(layer.mean) / 2
    read = strip_reader(layer, STRIP * tile)
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
    every = torch.cat(above)
    middle = len(every) // 2
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
