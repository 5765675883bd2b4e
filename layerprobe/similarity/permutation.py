"""What a map of CKA shows by chance: the samples of one model are shuffled. Knows arrays; knows no models, no files."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.checks import LEVEL, check_level
from layerprobe.context import part
from layerprobe.errors import DataError
from layerprobe.similarity.checks import Array, check_shape
from layerprobe.similarity.engine.grams import STRIP
from layerprobe.similarity.engine.passes import CPU_TILE, CUDA_TILE, named_layers, shuffled_sums, sums_of
from layerprobe.similarity.engine.rows import ChosenRows, Rows
from layerprobe.similarity.engine.sums import cka_values
from layerprobe.similarity.measures.cka import CKA
from layerprobe.similarity.values import Measure, PermutationNull, as_matrix

CPU_MEMORY, CUDA_MEMORY = 2**28, 2**31
"""Bytes of tiles, and of the rows that they are made of, for the permutations that are compared at once."""

CPU_KEPT, CUDA_KEPT = 2**30, 2**33
"""Bytes of Gram matrices of the reference that are kept while they are read in every order: on a CPU 13 layers at once
up to 4,544 samples, and one up to 16,384. With more samples they are made in every order."""

READING = 64
"""Multiplications that take as long as to read a number of a Gram matrix in another order."""

TIES = 1e-6
"""Values no further apart are equal: the same similarity, added up in another order, differs by rounding."""


def permutation_null(
    model_layers: Sequence[Rows],
    reference_layers: Sequence[Rows],
    values: ArrayLike,
    *,
    measure: CKA,
    permutations: int = 200,
    level: float = LEVEL,
    seed: int = 0,
    device: str = "cpu",
) -> PermutationNull:
    """Return what a map of CKA would show if the samples of the two models had nothing to do with each other.

    The samples of the reference are put in random orders, each the same for all of its layers, and the whole map is
    computed again for each of the R orders. For a value s with s_1, ..., s_R in its place:

    - threshold: the ceil(level x (R + 1))-th smallest of s, s_1, ..., s_R;
    - p = (1 + #{r: s_r >= s}) / (1 + R);
    - calibrated = max((s - threshold) / (1 - threshold), 0), which is positive if and only if p <= 1 - level.

    These hold for one pair of layers, chosen beforehand. For the best of all pairs they hold with the largest value
    of the map for s and the largest of each shuffled map for s_r: the fields that begin with `maximum`.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, whose rows can be taken by arrays of indices.
        reference_layers: The same of the reference, for the same samples in the same order.
        values: (layers, layers) CKA of the two.
        measure: What `values` are: any kernel, estimator and normalization of CKA.
        permutations: R: at least 1 / (1 - level) - 1, because p is never less than 1 / (1 + R).
        level: Of the threshold; 0.95 for a test at 5 %.
        seed: Of the orders.
        device: cpu, cuda or cuda:1: where products are made.

    Returns:
        p: [1 / (1 + R), 1]. threshold: in the range of the measure, can be negative. calibrated: [0, 1] up
        to rounding; 1 where a layer is compared with itself, 0 where similarity is no more than chance reaches.

    Raises:
        LayerProbeError: As in `estimate_cka` and `check_permutations`, or if `values` are not finite numbers for every
            pair of layers.

    Source: Groeger, Wen and Brbic 2026 (arXiv 2602.14486), equations 9-12, and 14-17 for the maximum, which is maxT
    of Westfall and Young 1993. Ours: values within 1e-6 count as
    equal, and too few permutations are an error. The test assumes that samples are exchangeable: sentences of one
    group are not. The bandwidth of rbf beyond 16,384 samples varies a little with the order, by about 0.1 %.

    Examples:
        >>> from layerprobe.similarity.cka import estimate_cka
        >>> rng = np.random.default_rng(1)
        >>> model = [rng.normal(size=(50, 8)) for _ in range(2)]
        >>> reference = [model[0] @ rng.normal(size=(8, 4)), rng.normal(size=(50, 4))]
        >>> (estimate,) = estimate_cka([("a", model), ("b", reference)])
        >>> null = permutation_null(model, reference, estimate.values, measure=CKA(), permutations=99)
        >>> null.p_values[0][0], null.maximum_p_value, null.calibrated[1][1]
        (0.01, 0.01, 0.0)
    """
    check_permutations(permutations, measure, level=level)
    observed = np.asarray(values, dtype=np.float64)
    expected = len(model_layers), len(reference_layers)
    if observed.shape != expected or not np.isfinite(observed).all():
        raise DataError(
            f"expected {expected} finite values, one for each layer of the model and of the reference, got "
            f"{np.count_nonzero(np.isfinite(observed))} finite ones in an array of shape {observed.shape}"
        )
    layers = model_layers, reference_layers
    null = shuffled_maps(*layers, measure=measure, permutations=permutations, seed=seed, device=device)
    threshold = _threshold(observed, null, level)
    largest, largest_null = observed.max(), null.max(axis=(1, 2))
    largest_threshold = _threshold(largest, largest_null, level)
    return PermutationNull(
        permutations=permutations,
        level=level,
        threshold=as_matrix(threshold),
        p_values=as_matrix(_p_values(observed, null)),
        calibrated=as_matrix(_calibrated(observed, threshold)),
        maximum_threshold=float(largest_threshold),
        maximum_p_value=float(_p_values(largest, largest_null)),
    )


def shuffled_maps(
    model_layers: Sequence[Rows],
    reference_layers: Sequence[Rows],
    *,
    measure: CKA,
    permutations: int,
    seed: int = 0,
    device: str = "cpu",
) -> Array:
    """Return (permutations, layers, layers) CKA of the model with the reference's samples in random orders.

    Where one Gram matrix fits into memory, those of the reference are made once and read in every order, by as many
    layers at once as fit. Otherwise they are made in every order, and those of the model once for as many permutations
    as fit; so they are where products of few features are cheaper than to read n^2 numbers.
    """
    model, reference = named_layers("the model", model_layers), named_layers("the reference", reference_layers)
    for name, layer in itertools.chain(model, reference):
        check_shape(layer.shape, layer.dtype, name=name)
    rng, n_samples = np.random.default_rng(seed), reference_layers[0].shape[0]
    orders = [rng.permutation(n_samples) for _ in range(permutations)]
    if memory := _kept(model_layers, reference_layers, measure, device=device):
        with part(start=0, share=permutations, whole=permutations):
            by_order = shuffled_sums(model, reference, measure, orders, memory=memory, device=device)
            return np.stack([cka_values(sums.pair, sums.rows, sums.columns, measure.estimator) for sums in by_order])
    at_once = _at_once(model_layers, reference_layers, device=device)
    maps = list[Array]()
    for start in range(0, permutations, at_once):
        some = orders[start : start + at_once]
        shuffled = [[(name, ChosenRows(layer, order)) for name, layer in reference] for order in some]
        pairs = [(0, number) for number in range(1, len(some) + 1)]
        with part(start=start, share=len(some), whole=permutations):
            by_pair = sums_of([model, *shuffled], [measure], pairs, per_sample=False, device=device)
        maps += [cka_values(sums.pair, sums.rows, sums.columns, measure.estimator) for sums in by_pair.values()]
    return np.stack(maps)


def _kept(model: Sequence[Rows], reference: Sequence[Rows], measure: CKA, *, device: str) -> int:
    """Return the bytes of Gram matrices to keep; 0 where not one fits, or to keep them takes longer."""
    n, memory = reference[0].shape[0], CUDA_KEPT if device.startswith("cuda") else CPU_KEPT
    if n * n * _itemsize(model, reference) > memory:
        return 0
    pairs = list(itertools.product(model, reference))
    by_features = n * sum(x.shape[1] * y.shape[1] for x, y in pairs)
    reading = n * n / 2 * (READING * len(reference) + len(pairs))
    return 0 if measure.kernel == "linear" and by_features < reading else memory


def _itemsize(model: Sequence[Rows], reference: Sequence[Rows]) -> int:
    """Return the bytes of a product."""
    float64 = any(layer.dtype.kind in "iu" or layer.dtype.itemsize > 4 for layer in itertools.chain(model, reference))
    return 8 if float64 else 4


def _at_once(model: Sequence[Rows], reference: Sequence[Rows], *, device: str) -> int:
    """Return for how many permutations the work memory of the engine's Gram path suffices."""
    on_cuda = device.startswith("cuda")
    n, tile = reference[0].shape[0], CUDA_TILE if on_cuda else CPU_TILE
    strip, tile = min(n, STRIP * tile), min(n, tile)
    # A tile, and the rows that it was made of.
    numbers = [sum(strip * tile + (strip + tile) * layer.shape[1] for layer in layers) for layers in (model, reference)]
    memory = (CUDA_MEMORY if on_cuda else CPU_MEMORY) // _itemsize(model, reference)
    return max(1, (memory - numbers[0]) // numbers[1])


def check_permutations(permutations: int, measure: Measure, *, level: float, groups: bool = False) -> None:
    """Raise DataError unless the measure is CKA, texts are independent, and p can be as small as 1 - level."""
    if not isinstance(measure, CKA):
        raise DataError(f"expected permutations for cka alone, got {permutations} for {measure.title}")
    if groups:
        raise DataError(
            "expected permutations or groups, got both: shuffling assumes that all texts are independent, and texts "
            "of one group are not"
        )
    check_level(level)
    # Rounded, because 1 / (1 - 0.9) is a little more than 10.
    needed = math.ceil(round(1 / (1 - level), 6)) - 1
    if permutations < needed:
        raise DataError(
            f"expected at least {needed} permutations at level {level:g}, got {permutations}: "
            "with fewer no similarity is above chance"
        )


def _threshold(observed: ArrayLike, null: Array, level: float) -> Array:
    """Return the critical value: an order statistic, so that being above it and a small p are the same."""
    both = np.concatenate([null, np.asarray(observed)[np.newaxis]])
    # Rounded, because 0.55 * 100 is a little more than 55.
    rank = math.ceil(round(level * len(both), 6))
    threshold: Array = np.partition(both, rank - 1, axis=0)[rank - 1]
    return threshold


def _p_values(observed: Array, null: Array) -> Array:
    p_values: Array = (1 + (null >= observed - TIES).sum(axis=0)) / (1 + len(null))
    return p_values


def _calibrated(observed: Array, threshold: Array) -> Array:
    above = observed - threshold
    return np.divide(above, 1 - threshold, out=np.zeros_like(above), where=above > TIES)
