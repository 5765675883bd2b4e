"""The feature path: the linear kernel from cross-covariances, in time linear in the number of samples.

With right factors (x_j, 1, a_j) of `rows`, C = sum_j a_j b_j^T has d + 2 rows and e + 2 columns, and
sum_j A_ij B_ij = a_i C b_i over all j, with left factors. What j = i adds is subtracted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from layerprobe.context import report, settings, silent
from layerprobe.similarity.checks import Array
from layerprobe.similarity.engine.grams import Gram, inner_products
from layerprobe.similarity.engine.rows import CentredLayer, row_blocks
from layerprobe.similarity.engine.sums import LayerSums, PairSums
from layerprobe.similarity.engine.tiles import MOMENT_SAMPLES, tile_sums

MEMORY = 2**28
"""Bytes of cross-covariances that are accumulated in one pass over the rows."""

Pair = tuple[int, int]
Moments = tuple[Array, Array, Array]


def feature_sums(
    layers: Sequence[CentredLayer],
    grams: Sequence[Gram],
    pairs: Mapping[Pair, tuple[slice, slice]],
    *,
    per_sample: bool,
    memory: int = MEMORY,
) -> tuple[list[LayerSums], dict[Pair, PairSums]]:
    """Accumulate the sums of the linear kernel, as `tile_sums` does; fourth moments are those of some samples.

    Parts of samples take a second pass over the rows, and more than `memory` bytes of cross-covariances more passes.
    """
    products = sorted(products_of(len(layers), pairs))
    samples: dict[Pair, Tensor] = {}
    inner: dict[Pair, float] = {}
    batches = list(_batches(products, layers, memory))
    for number, batch in enumerate(batches):
        covariances = _covariances(layers, grams, batch)
        for pair, covariance in covariances.items():
            inner[pair] = _inner(covariance, grams[pair[0]], grams[pair[1]])
        if per_sample:
            samples |= _per_sample(layers, grams, covariances)
        report("comparing", number + 1, len(batches))
    with settings(progress=silent):  # of some samples alone
        fourths, moments = _moments(layers, grams, pairs) if per_sample else ([None] * len(layers), {})
    layer_sums = [
        LayerSums(
            name=layer.name,
            inner=inner[i, i],
            diagonal=gram.diagonal.numpy(),
            spacing=layer.spacing,
            per_sample=samples[i, i].double().numpy() if per_sample else None,
            fourth=fourths[i],
        )
        for i, (layer, gram) in enumerate(zip(layers, grams, strict=True))
    ]
    return layer_sums, {pair: _pair_sums(*slices, inner, samples, moments.get(pair)) for pair, slices in pairs.items()}


def products_of(n_layers: int, pairs: Mapping[Pair, tuple[slice, slice]]) -> set[Pair]:
    """Return the layers to multiply, the earlier one first."""
    products = {(i, i) for i in range(n_layers)}
    for a, b in pairs.values():
        products |= {(min(i, j), max(i, j)) for i in range(a.start, a.stop) for j in range(b.start, b.stop)}
    return products


def _batches(products: Sequence[Pair], layers: Sequence[CentredLayer], memory: int) -> Iterator[list[Pair]]:
    batch, used = list[Pair](), 0
    for i, j in products:
        size = 8 * (layers[i].width + 2) * (layers[j].width + 2)
        if batch and used + size > memory:
            yield batch
            batch, used = [], 0
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
            # Not `inner_products`: oneDNN adds up many rows one after the other, and loses digits of large features.
            covariance += factors[i].T @ factors[j]
    return covariances


def _inner(covariance: Tensor, a: Gram, b: Gram) -> float:
    """Return <A, B>: (x_i x_j - o_i - o_j)(y_i y_j - p_i - p_j) summed over i and j, less i = j."""
    n, cross = len(a.offsets), covariance[:-2, :-2]
    o, p = a.additive.double().cpu(), b.additive.double().cpu()
    sums = covariance.cpu()
    everything = (
        float(cross.square().sum())
        + 2 * float(sums[:-2, -1] @ sums[:-2, -2] + sums[-1, :-2] @ sums[-2, :-2])
        + 2 * n * float(o @ p)
        + 2 * float(o.sum() * p.sum())
    )
    return everything - float(a.diagonal @ b.diagonal)


def _per_sample(
    layers: Sequence[CentredLayer], grams: Sequence[Gram], covariances: Mapping[Pair, Tensor]
) -> dict[Pair, Tensor]:
    dtype = layers[0].dtype
    read = sorted({i for pair in covariances for i in pair})
    turned = {pair: covariance.T.to(dtype).contiguous() for pair, covariance in covariances.items()}
    samples = {pair: torch.empty(layers[0].n_samples, dtype=dtype) for pair in covariances}
    for rows in row_blocks(layers[0].n_samples):
        factors = {i: layers[i].factor(rows, grams[i].additive, left=True) for i in read}
        for (i, j), covariance in turned.items():
            everything = (inner_products(factors[i], covariance) * factors[j]).sum(dim=1)
            samples[i, j][rows] = everything.cpu() - grams[i].diagonal[rows] * grams[j].diagonal[rows]
    return samples


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
    ((own_sums, of_pairs),) = tile_sums(some, [group], pairs, per_sample=True, tile=MOMENT_SAMPLES // 4)
    scale = n * (n - 1) / (len(chosen) * (len(chosen) - 1))
    moments = {pair: sums.moments for pair, sums in of_pairs.items() if sums.moments is not None}
    return (
        [None if layer.fourth is None else scale * layer.fourth for layer in own_sums],
        {pair: (scale * both, scale * left, scale * right) for pair, (both, left, right) in moments.items()},
    )


def _pair_sums(
    a: slice, b: slice, inner: Mapping[Pair, float], samples: Mapping[Pair, Tensor], moments: Moments | None
) -> PairSums:
    order = [[(min(i, j), max(i, j)) for j in range(b.start, b.stop)] for i in range(a.start, a.stop)]
    values = torch.tensor([[inner[pair] for pair in row] for row in order], dtype=torch.float64)
    if not samples:
        return PairSums(inner=values.numpy())
    parts = torch.stack([torch.stack([samples[pair] for pair in row]) for row in order])
    return PairSums(inner=values.numpy(), per_sample=parts.numpy(), moments=moments)
