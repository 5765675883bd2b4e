"""Sums over the Gram matrices of all layers of all models, in one pass over the samples, on a CPU or on CUDA.

There are two ways: tiles of Gram matrices, and features for the linear kernel. Work memory of the first is a tile for
every layer and `MEMORY` bytes of rows, whatever the number of samples, in addition to the results of per-sample parts.
A device holds all rows if they fit into a part of its memory.

The second takes time linear in the number of samples. With right factors (x_j, 1, a_j) of `rows`, C = sum_j a_j b_j^T
has d + 2 rows and e + 2 columns, and sum_j A_ij B_ij = a_i C b_i over all j, with left factors. The term j = i is
subtracted.

For U-centred Gram matrices A and B, <A, B> = n (n - 3) HSIC_1. With delta_i = k_ii minus the terms that U-centring
would subtract, the biased <HKH, HLH> is <A, B> + (1 - 2 / n) sum delta_i epsilon_i + sum delta sum epsilon / n^2:
K is A plus terms that H removes plus diag(delta). So one pass serves both estimators.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report, settings, silent
from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.checks import Array
from layerprobe.similarity.grams import (
    STRIP,
    CentredLayer,
    Gram,
    inner_products,
    row_blocks,
    strip_reader,
    tiles,
    u_centre,
)
from layerprobe.similarity.values import Estimator

NORM_ROUNDING = 100
"""Rounding, in units in the last place, of the norm of a Gram matrix that should be zero after centring."""
MOMENT_ROUNDING = 32
"""Rounding, in units in the last place, of the fourth moments of two equal layers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSums:
    """Sums of one U-centred Gram matrix A."""

    name: str
    inner: float
    """<A, A>."""
    diagonal: Array
    """(n,) delta."""
    spacing: float
    """Relative spacing of the layer's numbers."""
    per_sample: Array | None = None
    """(n,) sum_j A_ij^2."""
    fourth: float | None = None
    """sum_ij A_ij^4."""
    sigma_squared: float | None = None
    sigma_samples: int | None = None

    @property
    def parts(self) -> Array:
        """(n,) shares of the samples in <A, A>: they add up to 1."""
        assert self.per_sample is not None
        return self.per_sample / self.inner

    @property
    def biased(self) -> float:
        """<HKH, HKH>."""
        delta = self.diagonal
        n = len(delta)
        return self.inner + float((1 - 2 / n) * (delta @ delta) + delta.sum() * delta.sum() / n**2)

    def norm(self, estimator: Estimator) -> float:
        """Return the root of the inner product with itself."""
        inner = self.inner if estimator == "debiased" else self.biased
        # Written so that NaN fails as well.
        if not inner > (NORM_ROUNDING * self.spacing) ** 2 * abs(self.biased):
            raise DegenerateLayerError(
                f"{self.name} has a {estimator} HSIC with itself that is not positive, expected samples with different "
                "distances: compare models on more and different texts, or with another "
                "bandwidth"
            )
        return float(np.sqrt(inner))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums over the U-centred Gram matrices of every layer of one model (A) and of another (B) by one measure."""

    rows: list[LayerSums]
    """Sums by layer of the model."""
    columns: list[LayerSums]
    """Sums by layer of the reference."""
    inner: Array
    """(layers, layers) <A, B>."""
    per_sample: NDArray[np.floating] | None = None
    """(layers, layers, n) sum_j A_ij B_ij, in the dtype of products."""
    moments: tuple[Array, Array, Array] | None = None
    """(layers, layers) sums of A^2 B^2, of A^3 B and of A B^3."""

    def cka(self, estimator: Estimator) -> Array:
        """Return (layers, layers) CKA."""
        norms = [np.array([layer.norm(estimator) for layer in layers]) for layers in (self.rows, self.columns)]
        inner = self.inner
        if estimator == "biased":
            first, second = (np.stack([layer.diagonal for layer in layers]) for layers in (self.rows, self.columns))
            n = first.shape[1]
            inner = inner + (1 - 2 / n) * first @ second.T + np.outer(first.sum(axis=1), second.sum(axis=1)) / n**2
        return inner / np.outer(*norms)

    def influence(self, at: tuple[int, int]) -> Array:
        """Return the (n,) influence of every sample on the debiased CKA of layers at[0] and at[1] of the two models.

        psi_i = n (2 h_i(A, B) - theta (h_i(A, A) + h_i(B, B))) for A and B with norm 1, with h_i the part of the inner
        product that involves sample i: the derivative of the ratio of U-statistics by the weight of a sample. Its
        mean is 0, and its variance over n is that of theta, to first order.
        """
        first, second = self.rows[at[0]], self.columns[at[1]]
        norms = first.norm("debiased") * second.norm("debiased")
        theta = self.inner[at] / norms
        shares = first.parts + second.parts
        assert self.per_sample is not None
        return len(shares) * (2 * self.per_sample[at].astype(np.float64) / norms - theta * shares)

    def norm_influence(self, at: tuple[int, int]) -> Array:
        """Return the (n,) influence, with mean 0, of every sample on (<A, A> + <B, B>) / 2 for A and B with norm 1.

        The influence on <A, B> - x (<A, A> + <B, B>) / 2, for any x instead of theta, is psi - (x - theta) times it.
        """
        shares = self.rows[at[0]].parts + self.columns[at[1]].parts
        return len(shares) * shares - 2

    def pair_variance(self, at: tuple[int, int]) -> float:
        """Return the part of the variance of the debiased CKA of two layers that comes from pairs of samples.

        2 zeta_2 / (n (n - 1)), with zeta_2 the mean square of the kernel of order two whose mean is the value,
        n^2 (A_ij B_ij - theta (A_ij^2 + B_ij^2) / 2).
        """
        first, second = self.rows[at[0]], self.columns[at[1]]
        assert self.moments is not None
        assert self.per_sample is not None
        assert first.fourth is not None
        assert second.fourth is not None
        a, b = first.norm("debiased"), second.norm("debiased")
        n = len(first.diagonal)
        theta = float(self.inner[at]) / (a * b)
        both, left, right = (float(moment[at]) for moment in self.moments)
        terms = (4 + 2 * theta**2) * both / (a * b) ** 2 + theta**2 * (first.fourth / a**4 + second.fourth / b**4)
        fourth = terms - 4 * theta * (left / (a**3 * b) + right / (a * b**3))
        rounding = MOMENT_ROUNDING * float(np.finfo(self.per_sample.dtype).eps) * terms
        zeta = n**4 * (fourth if fourth > rounding else 0.0) / 4 / (n * (n - 1))
        return 2 * zeta / (n * (n - 1))


MEMORY = 2**28
"""Bytes of rows that stay centred for the tiles of their strip; if all layers take more, they are read
for every tile."""
CPU_CHUNK, CUDA_CHUNK = 2**14, 2**20
"""Entries of a layer's tile transposed at once: on a CPU, so that caches hold those of all layers."""
MOMENT_SAMPLES = 1024
"""Number of samples up to which fourth moments are exact; with more, they use pairs of this many evenly spaced ones:
they only determine the smaller part of a variance."""
LANES = 16
"""Small products are fastest with multiples of this many layers: float32 numbers of an AVX-512 register."""
Pair = tuple[int, int]
Moments = tuple[Array, Array, Array]


def tile_sums(
    layers: Sequence[CentredLayer],
    groups: Sequence[Sequence[Gram]],
    pairs: Mapping[Pair, tuple[slice, slice]],
    *,
    per_sample: bool,
    tile: int,
) -> list[tuple[list[LayerSums], dict[Pair, Sums]]]:
    """Accumulate the sums of all groups over all tiles, for all layers and all pairs.

    Layers are those of all models in turn, and a group has their Gram matrices; rbf has one group per
    bandwidth, with common distances. Pairs of models to compare have the slices of their layers.
    `per_sample` keeps per-sample parts and fourth moments, for standard errors.
    """
    n = layers[0].n_samples
    accumulators = [_Accumulator(layers, group, pairs, per_sample=per_sample) for group in groups]
    additive = [gram.additive for gram in groups[0]]
    # Padding after the last layer is multiplied, too, and then dropped.
    depth = max(len(layers), *(_widened(b).stop for _, b in pairs.values()))
    size = depth * min(STRIP * tile**2, n**2)
    buffer = torch.zeros(size, dtype=layers[0].dtype, device=layers[0].mean.device)
    height = min(STRIP * tile, n)
    keep = sum(layer.width for layer in layers) * height * buffer.itemsize <= MEMORY
    readers = [strip_reader(layer, height, keep=keep) for layer in layers]
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
        pairs: Mapping[Pair, tuple[slice, slice]],
        *,
        per_sample: bool,
    ) -> None:
        n, device = layers[0].n_samples, layers[0].mean.device

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers = layers
        self.grams = grams
        self.pairs = pairs
        self.per_sample = per_sample
        self.turned = zeros(0, dtype=layers[0].dtype)
        shapes = {pair: (a.stop - a.start, b.stop - b.start) for pair, (a, b) in pairs.items()}
        self.self_inner = zeros(len(layers))
        # One of how many samples counts for fourth moments, and the number of pairs that each pair represents.
        self.step = -(-n // MOMENT_SAMPLES)
        some = -(-n // self.step)
        self.weight = 2 * n * (n - 1) / (some * (some - 1))
        self.inner = {pair: zeros(*shape) for pair, shape in shapes.items()}
        if per_sample:
            self.self_samples = zeros(len(layers), n)
            self.self_fourth = zeros(len(layers))
            # As precise as their inputs, and half as large in float32.
            self.samples = {pair: zeros(n, *shape, dtype=layers[0].dtype) for pair, shape in shapes.items()}
            self.moments = {pair: zeros(3, *shape) for pair, shape in shapes.items()}

    def add(self, values: Tensor, rows: slice, columns: slice) -> None:
        """Centre a tile of products, and add the part above the diagonal and its mirror image."""
        for value, gram in zip(values, self.grams, strict=False):
            u_centre(value, gram, rows, columns)
        if not self.per_sample:
            self._add_rows(values, rows)
            return
        height = max(1, (CUDA_CHUNK if values.is_cuda else CPU_CHUNK) // values.shape[2])
        for start in range(0, values.shape[1], height):
            # Both images while they are in a cache.
            some = values[:, start : start + height]
            self._add_rows(some, slice(rows.start + start, rows.start + start + some.shape[1]))
            self._add_rows(self._turned(some), columns)
        across, down = -columns.start % self.step, -rows.start % self.step
        self._add_moments(values[: len(self.layers), down :: self.step, across :: self.step])

    def _add_rows(self, values: Tensor, rows: slice) -> None:
        weight = 1 if self.per_sample else 2  # without per-sample parts, also for the mirror image
        norms = torch.linalg.vector_norm(values[: len(self.layers)], dim=2).double().square()
        self.self_inner += weight * norms.sum(dim=1)
        if self.per_sample:
            self.self_samples[:, rows] += norms
        # Row by row, so that float32 sums only run over a tile's columns.
        by_row = values.transpose(0, 1)
        for pair, (a, b) in self.pairs.items():
            products = torch.bmm(by_row[:, a], by_row[:, _widened(b)].transpose(1, 2))[:, :, : b.stop - b.start]
            self.inner[pair] += weight * products.sum(dim=0, dtype=torch.float64)
            if self.per_sample:
                self.samples[pair][rows] += products

    def _add_moments(self, values: Tensor) -> None:
        first = values.new_empty(values.shape)
        _copied(values, first)
        first = first.flatten(start_dim=1)
        second = first * first
        third = second * first
        self.self_fourth += self.weight * torch.linalg.vector_norm(second, dim=1).double().square()
        for pair, (a, b) in self.pairs.items():
            moments = ((second[a], second[b]), (third[a], first[b]), (first[a], third[b]))
            for total, factors in zip(self.moments[pair], moments, strict=True):
                total += self.weight * inner_products(*factors)

    def _turned(self, values: Tensor) -> Tensor:
        """Return the (layers, columns, rows) mirror image, in the same memory every time."""
        if self.turned.numel() < values.numel():
            self.turned = values.new_zeros(values.numel())
        turned = self.turned[: values.numel()].view(values.mT.shape)
        some = len(self.layers)  # padding after them is multiplied, too, and then dropped
        _copied(values[:some].mT, turned[:some])
        return turned

    def sums(self) -> tuple[list[LayerSums], dict[Pair, Sums]]:
        """Return the accumulated sums."""
        layer_sums = [
            LayerSums(
                name=layer.name,
                inner=float(self.self_inner[i]),
                diagonal=gram.diagonal.numpy(),
                spacing=layer.spacing,
                per_sample=self.self_samples[i].cpu().numpy() if self.per_sample else None,
                fourth=float(self.self_fourth[i]) if self.per_sample else None,
                sigma_squared=gram.sigma_squared,
                sigma_samples=gram.sigma_samples,
            )
            for i, (layer, gram) in enumerate(zip(self.layers, self.grams, strict=True))
        ]
        return layer_sums, {pair: self._pair(pair, layer_sums[a], layer_sums[b]) for pair, (a, b) in self.pairs.items()}

    def _pair(self, pair: Pair, rows: list[LayerSums], columns: list[LayerSums]) -> Sums:
        sums = Sums(rows=rows, columns=columns, inner=self.inner[pair].cpu().numpy())
        if not self.per_sample:
            return sums
        samples = self.samples[pair].permute(1, 2, 0).cpu().numpy()
        both, left, right = self.moments[pair].cpu().numpy()
        return replace(sums, per_sample=samples, moments=(both, left, right))


def _copied(values: Tensor, to: Tensor) -> None:
    """Copy non-contiguous numbers; numpy takes half of torch's time."""
    if values.is_cuda:
        to.copy_(values)
    else:
        np.copyto(to.numpy(), values.numpy())


def _widened(layers: slice) -> slice:
    """Return layers, padded to a number with faster products."""
    width = layers.stop - layers.start
    return layers if width <= LANES // 2 else slice(layers.start, layers.start + -(-width // LANES) * LANES)


def feature_sums(
    layers: Sequence[CentredLayer],
    grams: Sequence[Gram],
    pairs: Mapping[Pair, tuple[slice, slice]],
    *,
    per_sample: bool,
    memory: int = MEMORY,
) -> dict[Pair, Sums]:
    """Accumulate the sums of pairs for the linear kernel, like `tile_sums`; fourth moments use some samples.

    Per-sample parts take a second pass over the rows, and cross-covariances beyond `memory` bytes more passes.
    """
    products = sorted(products_of(len(layers), pairs))
    samples: dict[Pair, NDArray[np.floating]] = {}
    inner: dict[Pair, float] = {}
    batches = list(_batches(products, layers, memory))
    for number, batch in enumerate(batches):
        covariances = _covariances(layers, grams, batch)
        for pair, covariance in covariances.items():
            inner[pair] = _inner(covariance, grams[pair[0]], grams[pair[1]])
        if per_sample:
            samples |= _per_sample(layers, grams, covariances)
        report("comparing", number + 1, len(batches))
    with settings(progress=silent):  # a pass over some samples
        fourths, moments = _moments(layers, grams, pairs) if per_sample else ([None] * len(layers), {})
    layer_sums = [
        LayerSums(
            name=layer.name,
            inner=inner[i, i],
            diagonal=gram.diagonal.numpy(),
            spacing=layer.spacing,
            per_sample=samples[i, i].astype(np.float64) if per_sample else None,
            fourth=fourths[i],
        )
        for i, (layer, gram) in enumerate(zip(layers, grams, strict=True))
    ]
    by_pair: dict[Pair, Sums] = {}
    for pair, (a, b) in pairs.items():
        order = [[(min(i, j), max(i, j)) for j in range(b.start, b.stop)] for i in range(a.start, a.stop)]
        parts = [np.stack([samples[product] for product in row]) for row in order] if per_sample else []
        by_pair[pair] = Sums(
            rows=layer_sums[a],
            columns=layer_sums[b],
            inner=np.array([[inner[product] for product in row] for row in order]),
            per_sample=np.stack(parts) if per_sample else None,
            moments=moments.get(pair),
        )
    return by_pair


def products_of(n_layers: int, pairs: Mapping[Pair, tuple[slice, slice]]) -> set[Pair]:
    """Return the pairs of layers to multiply, the earlier layer first."""
    products = {(i, i) for i in range(n_layers)}
    for a, b in pairs.values():
        products |= {(min(i, j), max(i, j)) for i in range(a.start, a.stop) for j in range(b.start, b.stop)}
    return products


def _batches(products: Sequence[Pair], layers: Sequence[CentredLayer], memory: int) -> Iterator[list[Pair]]:
    batch = list[Pair]()
    used = 0
    for i, j in products:
        size = 8 * (layers[i].width + 2) * (layers[j].width + 2)
        if batch and used + size > memory:
            yield batch
            batch = []
            used = 0
        batch.append((i, j))
        used += size
    yield batch


def _covariances(layers: Sequence[CentredLayer], grams: Sequence[Gram], batch: Sequence[Pair]) -> dict[Pair, Tensor]:
    covariances = {
        (i, j): torch.zeros(layers[i].width + 2, layers[j].width + 2, dtype=torch.float64, device=layers[i].mean.device)
        for i, j in batch
    }
    read = sorted({i for pair in batch for i in pair})
    for rows in row_blocks(layers[0].n_samples):
        factors = {i: layers[i].factor(rows, grams[i].additive, left=False) for i in read}
        for (i, j), covariance in covariances.items():
            # Not `inner_products`: oneDNN sums many rows sequentially, and loses digits of large features.
            covariance += factors[i].T @ factors[j]
    return covariances


def _inner(covariance: Tensor, a: Gram, b: Gram) -> float:
    """Return <A, B>: (x_i x_j - o_i - o_j)(y_i y_j - p_i - p_j) summed over i and j, without i = j."""
    n, o, p = len(a.offsets), a.additive.double(), b.additive.double()
    everything = (
        covariance[:-2, :-2].square().sum()
        + 2 * (covariance[:-2, -1] @ covariance[:-2, -2] + covariance[-1, :-2] @ covariance[-2, :-2])
        + 2 * n * (o @ p)
        + 2 * (o.sum() * p.sum())
    )
    return float(everything) - float(a.diagonal @ b.diagonal)


def _per_sample(
    layers: Sequence[CentredLayer], grams: Sequence[Gram], covariances: Mapping[Pair, Tensor]
) -> dict[Pair, NDArray[np.floating]]:
    dtype = layers[0].dtype
    read = sorted({i for pair in covariances for i in pair})
    turned = {pair: covariance.T.to(dtype).contiguous() for pair, covariance in covariances.items()}
    device = layers[0].mean.device
    diagonals = {i: grams[i].diagonal.to(device) for i in read}
    samples = {pair: torch.empty(layers[0].n_samples, dtype=dtype, device=device) for pair in covariances}
    for rows in row_blocks(layers[0].n_samples):
        factors = {i: layers[i].factor(rows, grams[i].additive, left=True) for i in read}
        for (i, j), covariance in turned.items():
            everything = (inner_products(factors[i], covariance) * factors[j]).sum(dim=1)
            samples[i, j][rows] = everything - diagonals[i][rows] * diagonals[j][rows]
    return {pair: values.cpu().numpy() for pair, values in samples.items()}


def _moments(
    layers: Sequence[CentredLayer], grams: Sequence[Gram], pairs: Mapping[Pair, tuple[slice, slice]]
) -> tuple[list[float | None], dict[Pair, Moments]]:
    """Return the fourth moments of every layer and of every pair of models."""
    n = layers[0].n_samples
    chosen = np.linspace(0, n - 1, min(n, MOMENT_SAMPLES)).round().astype(np.intp)
    some = [layer.chosen(chosen) for layer in layers]
    # Centred by the sums over all samples.
    group = [
        replace(g, offsets=g.offsets[chosen], additive=g.additive[chosen], diagonal=g.diagonal[chosen]) for g in grams
    ]
    ((self_sums, of_pairs),) = tile_sums(some, [group], pairs, per_sample=True, tile=MOMENT_SAMPLES // 4)
    scale = n * (n - 1) / (len(chosen) * (len(chosen) - 1))
    moments = {pair: sums.moments for pair, sums in of_pairs.items() if sums.moments is not None}
    return (
        [None if layer.fourth is None else scale * layer.fourth for layer in self_sums],
        {pair: (scale * both, scale * left, scale * right) for pair, (both, left, right) in moments.items()},
    )
