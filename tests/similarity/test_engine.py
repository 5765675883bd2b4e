"""The tiled engine gives the numbers of the definitions, whatever the path, the tiles, the dtype and the scale."""

import dataclasses
import itertools
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from layerprobe import context
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.similarity import grams
from layerprobe.similarity import sums as engine_sums
from layerprobe.similarity.cka import _full_precision, estimate_cka, sums_of
from layerprobe.similarity.grams import BLOCK, MEDIAN_SAMPLES, STRIP, centred_layers, inner_products, linear_gram
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.sums import MOMENT_SAMPLES, Sums, feature_sums
from tests.similarity import oracle
from tests.similarity.oracle import LINEAR, MEASURES, RBF, map_by_cka, rbf_sigma_squared

Array = NDArray[Any]

seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)
measures = pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.title)
debiased = pytest.mark.parametrize("measure", [LINEAR, RBF], ids=lambda measure: measure.title)


def value(X: Array, Y: Array, measure: CKA = LINEAR, **options: Any) -> float:
    """CKA of two layers by the engine."""
    return float(values([[X], [Y]], [measure], **options)[0, 0, 0])


def values(models: Sequence[Sequence[Array]], measures: Sequence[CKA], **options: Any) -> Array:
    """(measures, layers, layers) CKA of two models."""
    options = {"per_sample": False} | options
    found = sums_of(named(models), measures, [(0, 1)], **options)
    return np.stack([cka_of(found[measure, (0, 1)], measure) for measure in measures])


def named(models: Sequence[Sequence[Array]]) -> list[list[tuple[str, Array]]]:
    return [[(f"layer {i} of model {m}", X) for i, X in enumerate(layers)] for m, layers in enumerate(models)]


def cka_of(sums: Sums, measure: CKA) -> Array:
    return sums.cka(measure.estimator)


def related(rng: np.random.Generator, n: int, d: int, e: int) -> tuple[Array, Array]:
    X = rng.normal(size=(n, d)) + rng.normal(size=d)
    return X, np.tanh(X @ rng.normal(size=(d, e))) + rng.normal(size=(n, e))


@pytest.fixture
def models() -> list[list[Array]]:
    """Four and three layers of different widths, on 67 samples."""
    rng = np.random.default_rng(0)
    first = [rng.normal(size=(67, d)) + d for d in (5, 9, 70, 3)]
    return [first, [X[:, ::2] + rng.normal(size=X[:, ::2].shape) for X in first[:3]]]


# ---- the definitions -----------------------------------------------------------------------------------------


@measures
@given(seed=seeds, n=st.integers(4, 60), d=st.integers(1, 70), e=st.integers(1, 70), tile=st.integers(1, 70))
@quick
def test_cka_is_that_of_the_definitions(measure: CKA, seed: int, n: int, d: int, e: int, tile: int) -> None:
    X, Y = related(np.random.default_rng(seed), n, d, e)
    # Few samples can lie so that centring leaves next to nothing.
    assume(max(oracle.condition(oracle.gram(Z, measure)) for Z in (X, Y)) < 1e3)
    expected = oracle.cka(X, Y, measure)
    np.testing.assert_allclose(value(X, Y, measure, tile=tile), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(value(X, Y, measure, tile=tile, per_sample=True), expected, rtol=0, atol=1e-9)


def test_measures_are_had_together_as_apart(models: list) -> None:
    widths = [dataclasses.replace(RBF, bandwidth_multiplier=factor) for factor in (0.2, 0.5, 2.0)]
    every = [*MEASURES, *widths]
    together = values(models, every, tile=20)
    for measure, found in zip(every, together, strict=True):
        np.testing.assert_allclose(found, values(models, [measure], tile=20)[0], rtol=0, atol=1e-14)
        np.testing.assert_allclose(found, oracle.cka_map(*models, measure), rtol=0, atol=1e-12)


def test_bandwidths_are_in_units_of_the_layer(models: list) -> None:
    (estimate,) = estimate_cka([("a", models[0]), ("b", models[1])], measures=[RBF], level=None)
    expected = [[rbf_sigma_squared(X) for X in layers] for layers in models]
    for found, sigma in zip(estimate.map.sigma_squared, expected, strict=True):
        np.testing.assert_allclose(found, sigma, rtol=1e-12)
    zscored = map_by_cka(*models, measure=CKA(kernel="rbf", normalize="zscore", bandwidth_multiplier=0.5))
    expected = [rbf_sigma_squared(oracle.zscored(X), bandwidth_multiplier=0.5) for X in models[0]]
    np.testing.assert_allclose(zscored.sigma_squared[0], expected, rtol=1e-12)


def test_the_median_of_many_samples_is_that_of_some() -> None:
    X = np.random.default_rng(0).normal(size=(MEDIAN_SAMPLES + 400, 2)).astype(np.float32)
    found = map_by_cka([X], [X], measure=RBF)
    assert found.sigma_samples == MEDIAN_SAMPLES
    # |x - y|^2 / 2 is chi-squared with two degrees of freedom, whose median is 2 ln 2.
    np.testing.assert_allclose(found.sigma_squared[0][0], 4 * np.log(2), rtol=0.02)
    np.testing.assert_allclose(found.values[0][0], 1, rtol=0, atol=1e-5)


def test_ten_models_at_once_are_their_pairs() -> None:
    rng = np.random.default_rng(0)
    models = [rng.normal(size=(2, 40, 6)) + 1 for _ in range(10)]
    names = [(f"model {i}", layers) for i, layers in enumerate(models)]
    together = estimate_cka(names, measures=[LINEAR, RBF])
    assert len(together) == 2 * 45
    pairs = [(measure, i, j) for measure in (LINEAR, RBF) for i in range(10) for j in range(i + 1, 10)]
    for (measure, i, j), estimate in zip(pairs, together, strict=True):
        expected = oracle.cka_map(models[i], models[j], measure)
        np.testing.assert_allclose(estimate.map.values, expected, rtol=0, atol=1e-12)


@debiased
@pytest.mark.parametrize("path", ["gram", "auto"])
def test_the_order_of_models_changes_nothing(measure: CKA, path: Any, models: list) -> None:
    third = [np.random.default_rng(1).normal(size=(67, 4))]
    first = sums_of(named([*models, third]), [measure], [(0, 1), (0, 2), (2, 1), (0, 0)], path=path)
    second = sums_of(named([third, *models[::-1]]), [measure], [(1, 2), (2, 0), (0, 1), (2, 2)], path=path)
    for here, there in (((0, 1), (1, 2)), ((0, 2), (2, 0)), ((2, 1), (0, 1)), ((0, 0), (2, 2))):
        a, b = first[measure, here], second[measure, there]
        expected, parts = cka_of(b, measure), b.per_sample
        if here == (0, 1):
            expected, parts = expected.T, parts.swapaxes(0, 1)
        np.testing.assert_allclose(cka_of(a, measure), expected, rtol=0, atol=1e-13)
        np.testing.assert_allclose(a.per_sample, parts, rtol=0, atol=1e-13 * np.abs(parts).max())


# ---- theorems ------------------------------------------------------------------------------------------------


@measures
@given(seed=seeds, n=st.integers(8, 40), d=st.integers(2, 20), power=st.floats(-12, 12), shift=st.floats(-100, 100))
@quick
def test_shift_rotation_and_scale_change_nothing(
    measure: CKA, seed: int, n: int, d: int, power: float, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    X, Y = related(rng, n, d, 7)
    moved = (X + shift * rng.normal(size=d)) * 10**power
    if measure.normalize == "raw":
        moved = moved @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    np.testing.assert_allclose(value(moved, Y, measure), value(X, Y, measure), rtol=0, atol=1e-9)


@measures
@given(seed=seeds, n=st.integers(8, 40), d=st.integers(1, 20), tile=st.integers(3, 50))
@quick
def test_the_order_of_samples_changes_nothing(measure: CKA, seed: int, n: int, d: int, tile: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = related(rng, n, d, 7)
    order = rng.permutation(n)
    np.testing.assert_allclose(value(X[order], Y[order], measure, tile=tile), value(X, Y, measure), rtol=0, atol=1e-10)


@pytest.mark.parametrize("measure", [m for m in MEASURES if m.normalize == "zscore"], ids=lambda measure: measure.title)
@given(seed=seeds, n=st.integers(8, 40), d=st.integers(1, 20))
@quick
def test_z_scores_have_no_units(measure: CKA, seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = related(rng, n, d, 7)
    scaled = X * 10 ** rng.uniform(-6, 6, size=d) * rng.choice([-1, 1], size=d)
    expected = value(X, Y, measure)
    np.testing.assert_allclose(value(scaled, Y, measure), expected, rtol=0, atol=1e-9)
    raw = dataclasses.replace(measure, normalize="raw")
    np.testing.assert_allclose(value(oracle.zscored(X), oracle.zscored(Y), raw), expected, rtol=0, atol=1e-9)
    constant = np.full((n, 2), 3.7)
    widened = np.column_stack([constant, scaled, constant])
    np.testing.assert_allclose(value(widened, Y, measure), expected, rtol=0, atol=1e-9)


# ---- how it is computed does not matter ------------------------------------------------------------------------


@debiased
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("shape", [(1, 9), (13, 13), (9, 2), (3, 17)])
def test_maps_of_many_layers_are_those_of_the_definitions(measure: CKA, per_sample: bool, shape: tuple) -> None:
    """Small products are made of more layers than there are, where that is faster."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 3))
    models = [[shared @ rng.normal(size=(3, 5)) + rng.normal(size=(40, 5)) for _ in range(size)] for size in shape]
    found = values(models, [measure], tile=16, per_sample=per_sample)[0]
    np.testing.assert_allclose(found, oracle.cka_map(*models, measure), rtol=0, atol=1e-12)


@debiased
@pytest.mark.parametrize("tile", [3, 7, 33, 66, 67, 68, 1000])
def test_tiles_change_nothing(measure: CKA, tile: int, models: list) -> None:
    found, whole = (
        sums_of(named(models), [measure], [(0, 1)], path="gram", tile=size)[measure, (0, 1)] for size in (tile, 67)
    )
    assert_same_sums(found, whole, tolerance=1e-12)
    for some, others in ((found.rows, whole.rows), (found.columns, whole.columns)):
        np.testing.assert_allclose([s.fourth for s in some], [s.fourth for s in others], rtol=1e-12)
        if measure.kernel == "rbf":
            np.testing.assert_allclose([s.sigma_squared for s in some], [s.sigma_squared for s in others], rtol=1e-12)
    for moments, others in zip(found.moments, whole.moments, strict=True):
        np.testing.assert_allclose(moments, others, rtol=0, atol=1e-12 * np.abs(others).max())


def assert_same_sums(found: Sums, expected: Sums, *, tolerance: float) -> None:
    """Inner products and per-sample parts."""
    for some, others in ((found.rows, expected.rows), (found.columns, expected.columns)):
        for layer, other in zip(some, others, strict=True):
            assert layer.name == other.name
            np.testing.assert_allclose(layer.inner, other.inner, rtol=tolerance)
            np.testing.assert_allclose(layer.diagonal, other.diagonal, rtol=tolerance)
            scale = np.abs(other.per_sample).max()
            np.testing.assert_allclose(layer.per_sample, other.per_sample, rtol=0, atol=tolerance * scale)
    for at in np.ndindex(expected.inner.shape):
        norm = np.sqrt(expected.rows[at[0]].inner * expected.columns[at[1]].inner)
        np.testing.assert_allclose(found.inner[at], expected.inner[at], rtol=0, atol=tolerance * norm)
        parts, others = found.per_sample[at], expected.per_sample[at]
        np.testing.assert_allclose(parts, others, rtol=0, atol=tolerance * norm)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)])
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
def test_both_paths_give_the_same(dtype: type, tolerance: float, normalize: Any, models: list) -> None:
    measure = CKA(normalize=normalize)
    given = named([[X.astype(dtype) for X in layers] for layers in models])
    gram, features = (
        sums_of(given, [measure], [(0, 1)], path=path, tile=20)[measure, (0, 1)] for path in ("gram", "features")
    )
    assert_same_sums(features, gram, tolerance=tolerance)
    for at in np.ndindex(gram.inner.shape):
        np.testing.assert_allclose(features.pair_variance(at), gram.pair_variance(at), rtol=10 * tolerance)
        psi, expected = (s.influence(at) for s in (features, gram))
        np.testing.assert_allclose(psi, expected, rtol=0, atol=100 * tolerance * np.abs(expected).max())


def test_fourth_moments_of_many_samples_are_those_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    given = named([[X, np.tanh(X)] for X in related(rng, 3 * MOMENT_SAMPLES, 6, 4)])
    of_some = [sums_of(given, [LINEAR], [(0, 1)], path=path)[LINEAR, (0, 1)] for path in ("gram", "features")]
    monkeypatch.setattr(engine_sums, "MOMENT_SAMPLES", 3 * MOMENT_SAMPLES)
    of_all = sums_of(given, [LINEAR], [(0, 1)], path="gram")[LINEAR, (0, 1)]
    for at in np.ndindex(2, 2):
        expected = of_all.pair_variance(at)
        for sums in of_some:
            np.testing.assert_allclose(sums.pair_variance(at), expected, rtol=0.1)
            assert sums.pair_variance(at) != expected


@debiased
def test_little_memory_reads_rows_for_every_tile(measure: CKA, models: list, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sums_of(named(models), [measure], [(0, 1)], path="gram", tile=20)[measure, (0, 1)]
    monkeypatch.setattr(engine_sums, "MEMORY", 1)
    found = sums_of(named(models), [measure], [(0, 1)], path="gram", tile=20)[measure, (0, 1)]
    assert_same_sums(found, expected, tolerance=1e-15)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("memory", [1, 3000, 10**9])
def test_little_memory_takes_more_passes(memory: int, per_sample: bool, models: list) -> None:
    layers = centred_layers([pair for model in named(models) for pair in model])
    steps: list[tuple[int, int]] = []
    with context.settings(progress=lambda _, done, total: steps.append((done, total))):
        sums = feature_sums(
            layers,
            [linear_gram(layer) for layer in layers],
            {(0, 1): (slice(0, 4), slice(4, 7))},
            per_sample=per_sample,
            memory=memory,
        )
    np.testing.assert_allclose(cka_of(sums[0, 1], LINEAR), oracle.cka_map(*models), rtol=0, atol=1e-12)
    # Seven layers with themselves and twelve pairs: as many passes where no two fit.
    passes = steps[-1][1]
    assert steps == [(done + 1, passes) for done in range(passes)]
    assert passes == {1: 19, 10**9: 1}.get(memory, passes)
    assert 1 <= passes <= 19
    if per_sample:
        expected = sums_of(named(models), [LINEAR], [(0, 1)], path="gram")[LINEAR, (0, 1)]
        assert_same_sums(sums[0, 1], expected, tolerance=1e-12)


@pytest.mark.parametrize(("n", "d", "path"), [(30, 40, "gram"), (2000, 4, "features")])
def test_the_path_is_chosen_by_the_number_of_samples(n: int, d: int, path: Any) -> None:
    rng = np.random.default_rng(0)
    given = named([[rng.normal(size=(n, d))], [rng.normal(size=(n, d))]])
    (found,), (same,) = (sums_of(given, [LINEAR], [(0, 1)], path=which).values() for which in ("auto", path))
    # The last digits tell which path it was.
    np.testing.assert_array_equal(found.per_sample, same.per_sample)
    (other,) = sums_of(given, [LINEAR], [(0, 1)], path="features" if path == "gram" else "gram").values()
    assert (found.per_sample != other.per_sample).any()


@debiased
def test_the_number_of_threads_changes_nothing(measure: CKA) -> None:
    rng = np.random.default_rng(0)  # large enough that torch splits the work of a tile
    models = [[rng.normal(size=(700, 40)) for _ in range(2)] for _ in range(2)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(values(models, [measure], per_sample=True))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("estimator", ["debiased", "biased"])
@pytest.mark.parametrize("multiplier", [0.1, 0.24, 0.26, 0.49, 0.51, 3.0, 100.0, 1e5])
def test_bandwidths_far_from_the_median_cost_no_digits(multiplier: float, estimator: Any) -> None:
    """K is nearly 0 or nearly 1 everywhere: float32 would lose what differs."""
    X, Y = related(np.random.default_rng(0), 150, 20, 30)
    measure = CKA(kernel="rbf", bandwidth_multiplier=multiplier, estimator=estimator)
    expected = value(X.astype(np.float32).astype(np.float64), Y.astype(np.float32).astype(np.float64), measure)
    assert value(X.astype(np.float32), Y.astype(np.float32), measure) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_mostly_copies_have_no_bandwidth(seed: int) -> None:
    """Distances of copies are 0 but for rounding, which is no bandwidth."""
    layers = np.random.default_rng(seed).normal(size=(2, 200, 32)).astype(np.float32)
    layers[:, 30:] = layers[:, :1]
    with pytest.raises(DegenerateLayerError, match="median distance of 0"):
        value(*layers, RBF)


def test_distances_that_float32_cannot_tell_are_told_in_float64() -> None:
    rng = np.random.default_rng(0)
    X, Y = (rng.normal(size=(60, 8)).astype(np.float32) for _ in range(2))
    for layer in (X, Y):
        layer[:50] = layer[0] + 1e-4 * rng.normal(size=(50, 8)).astype(np.float32)
    expected = oracle.cka(X.astype(np.float64), Y.astype(np.float64), RBF)
    assert value(X, Y, RBF) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("normalize", ["raw", "zscore"])
def test_layout_and_dtype_change_nothing(normalize: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-50, 50, size=(40, 9))
    Y = rng.normal(size=(40, 5)) + whole[:, :5] / 50
    chosen = [CKA(normalize=normalize), dataclasses.replace(RBF, normalize=normalize)]
    expected = [oracle.cka(whole, Y, measure) for measure in chosen]
    np.save(tmp_path / "X.npy", whole.astype(np.float32))
    every_second = np.repeat(np.repeat(whole, 2, axis=0), 2, axis=1).astype(np.float32)[::2, ::2]
    layouts = [
        np.load(tmp_path / "X.npy", mmap_mode="r"),
        np.asfortranarray(whole.astype(np.float64)),
        whole[::-1].astype(np.float32)[::-1],
        every_second,
        whole.astype(">f4"),
        *(whole.astype(dtype) for dtype in (np.float16, np.float32, np.float64, np.longdouble, np.int8, np.int64)),
    ]
    for X in layouts:
        found = values([[X], [Y]], chosen)[:, 0, 0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=str(X.dtype))
    for X in layouts:
        found = values([[X], [Y.astype(np.float32)]], chosen)[:, 0, 0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=str(X.dtype))


# ---- layers that cost digits -----------------------------------------------------------------------------------


@measures
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_range_of_float64_is_one(measure: CKA, scale: float) -> None:
    X, Y = related(np.random.default_rng(0), 20, 6, 5)
    match = r"layer 0 of model 1 has values too large or too small to square in float64, expected embeddings"
    with pytest.raises(DegenerateLayerError, match=match):
        value(X, scale * Y, measure)


# ---- what is read and made -------------------------------------------------------------------------------------


class Generated:
    """A layer that is no array: its rows are made when they are asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, n: int, d: int, *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.shape = n, d
        # Both layers have the slow waves in common.
        self.pace = np.arange(1, d + 1) / 7 + rng.uniform(0, 0.01, size=d)
        self.longest, self.n_read, self.precisions = 0, 0, set[str]()

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Array:
        chosen = np.arange(*rows.indices(self.shape[0])) if isinstance(rows, slice) else rows
        self.longest, self.n_read = max(self.longest, len(chosen)), self.n_read + len(chosen)
        self.precisions |= {each.matmul.fp32_precision for each in (torch.backends.cuda, torch.backends.mkldnn)}
        return (np.sin(chosen[:, None] % 997 * self.pace) + 3).astype(np.float32)


class LargestTensor(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made while it is on."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


def cka_by_features(X: Array, Y: Array) -> float:
    """Debiased linear CKA of a whole matrix in float64, in time linear in n."""
    x, y = (Z.astype(np.float64) - Z.mean(axis=0, dtype=np.float64) for Z in (X, Y))

    def product(a: Array, b: Array) -> float:
        n, k, m = len(a), (a**2).sum(axis=1), (b**2).sum(axis=1)
        return ((a.T @ b) ** 2).sum() - n / (n - 2) * k @ m + k.sum() * m.sum() / ((n - 1) * (n - 2))

    return product(x, y) / np.sqrt(product(x, x) * product(y, y))


def test_the_formula_by_features_is_the_definition() -> None:
    X, Y = related(np.random.default_rng(0), 40, 20, 10)
    np.testing.assert_allclose(cka_by_features(X, Y), oracle.cka(X, Y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_sample", [False, True])
def test_many_samples_are_read_block_by_block(per_sample: bool) -> None:
    n, d, e = 60_000, 16, 12
    with LargestTensor():
        value(Generated(10, d, seed=0), Generated(10, e, seed=1), per_sample=per_sample)  # what is imported at first
    X, Y = Generated(n, d, seed=0), Generated(n, e, seed=1)
    tracemalloc.start()
    try:
        with LargestTensor() as made:
            found = value(X, Y, per_sample=per_sample)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert X.longest <= BLOCK
    assert Y.longest <= BLOCK
    # Vectors over samples are made; n x d numbers are not, let alone n x n.
    assert made.numel == (2 * STRIP * (MOMENT_SAMPLES // 4) ** 2 if per_sample else n) < n * d
    assert peak < 4 * n * d
    assert found == pytest.approx(cka_by_features(X[0:n], Y[0:n]), abs=1e-6)


@debiased
def test_gram_matrices_are_never_whole(measure: CKA) -> None:
    n, d, e, tile = 4400, 12, 8, 128
    X, Y = Generated(n, d, seed=0), Generated(n, e, seed=1)
    with LargestTensor() as made:
        value(X, Y, measure, path="gram", tile=tile, per_sample=True)
    # The median distance is that of rows which are read at once.
    assert max(X.longest, Y.longest) <= (BLOCK if measure.kernel == "linear" else MEDIAN_SAMPLES) < n
    if measure.kernel == "linear":
        assert made.numel == max(2 * STRIP * tile**2, BLOCK * (d + 2))
    else:
        # The median is taken over all distances of some samples.
        assert made.numel <= MEDIAN_SAMPLES * (MEDIAN_SAMPLES - 1) / 2 < n**2 / 2


@measures
@pytest.mark.parametrize("path", ["gram", "auto"])
def test_a_device_with_room_for_all_rows_has_them_brought_over_once(
    measure: CKA, path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, d = 600, 4
    first, second = (Generated(n, d, seed=seed) for seed in (0, 1))
    expected = sums_of(named([[first], [second]]), [measure], [(0, 1)], tile=40, path=path)[measure, (0, 1)]
    for missing in (0, 1):
        X, Y = (Generated(n, d, seed=seed) for seed in (0, 1))
        room = 2 * n * d * 4 / grams.DEVICE_SHARE - missing
        monkeypatch.setattr(grams, "_free_memory", lambda device, room=room: room)
        found = sums_of(named([[X], [Y]]), [measure], [(0, 1)], tile=40, path=path)[measure, (0, 1)]
        assert_same_sums(found, expected, tolerance=1e-6)
        assert (X.n_read == n) == (not missing)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
def test_held_rows_change_nothing(dtype: type, normalize: Any, models: list, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, models = CKA(normalize=normalize), [[X.astype(dtype) for X in layers] for layers in models]
    models[0][1][:, 3] = 1  # a feature that does not vary
    copies = [[X.copy() for X in layers] for layers in models]
    expected = sums_of(named(models), [measure], [(0, 1)])[measure, (0, 1)]
    monkeypatch.setattr(grams, "_free_memory", lambda device: 2**40)
    found = sums_of(named(models), [measure], [(0, 1)])[measure, (0, 1)]
    assert_same_sums(found, expected, tolerance=1e-12)
    for X, copy in zip(itertools.chain(*models), itertools.chain(*copies), strict=True):
        np.testing.assert_array_equal(X, copy)
    models[1][0][5, 1] = np.nan
    with pytest.raises(
        DegenerateLayerError, match="layer 0 of model 1 has 1 NaN or infinite values, the first in row 5"
    ):
        sums_of(named(models), [measure], [(0, 1)])


# ---- the process around it -------------------------------------------------------------------------------------


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@debiased
def test_products_are_precise_whatever_the_process_allows(measure: CKA, precision: str) -> None:
    X = Generated(100, 5, seed=0)
    value(X, X, measure, path="gram")
    assert X.precisions == {"ieee"}
    assert torch.get_float32_matmul_precision() == precision


@pytest.fixture(params=["its operator", "another operator", "no operator", "no oneDNN"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What torch offers of oneDNN: the operator is private, so another version may lack it, or do something else."""

    def missing(*_: object) -> torch.Tensor:
        raise AttributeError

    def another(left: torch.Tensor, *_: object) -> torch.Tensor:
        return left

    if request.param == "no oneDNN":
        monkeypatch.setattr(grams, "_has_onednn", lambda: False)
    elif request.param != "its operator":
        monkeypatch.setattr(grams, "_without_copies", missing if request.param == "no operator" else another)
    grams._linear.cache_clear()
    yield
    grams._linear.cache_clear()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (13, 13, 32768), (300, 257, 770)])
def test_products_are_those_of_float64(shape: tuple[int, int, int], precision: str, onednn: None) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(rows, 2 * k)).astype(np.float32)[:, ::2] for rows in (m, n))
    bias = torch.from_numpy(rng.normal(size=n).astype(np.float32))
    expected = left.astype(np.float64) @ right.T.astype(np.float64)
    strided = torch.from_numpy(left), torch.from_numpy(right)
    whole = strided[0].contiguous(), strided[1].contiguous()
    with _full_precision():
        for sides in (whole, strided):
            for values in (inner_products(*sides), inner_products(*sides, bias=bias) - bias):
                assert values.dtype == torch.float32
                # bfloat16 would be off by 1e-3 of a root.
                np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5 * np.sqrt(k))


def test_precision_comes_back_after_an_error(precision: str) -> None:
    class Broken(Generated):
        def __getitem__(self, rows: Any) -> Array:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        value(Broken(100, 5, seed=0), Generated(100, 5, seed=0))
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("row", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_that_are_not_finite_are_found_in_any_block(row: int, dtype: type) -> None:
    X = np.random.default_rng(0).normal(size=(2 * BLOCK + 8, 3)).astype(dtype)
    Y = X.copy()
    Y[row, 1], Y[-1, 2] = np.nan, np.inf
    match = rf"layer 0 of model 1 has 2 NaN or infinite values, the first in row {row}, expected finite numbers"
    with pytest.raises(DegenerateLayerError, match=match):
        value(X, Y)


def test_layers_that_cannot_be_compared_are_named(models: list) -> None:
    names = [("bert", models[0]), ("electra", models[1])]
    match = "layer 2 of electra has 66 samples, expected the 67 of layer 0 of bert: embed the same texts"
    with pytest.raises(MisalignedSamplesError, match=match):
        estimate_cka([names[0], ("electra", [*models[1][:2], models[1][2][1:]])])
    with pytest.raises(DegenerateLayerError, match="layer 1 of electra is the same for all 67 samples"):
        estimate_cka([names[0], ("electra", [models[1][0], np.ones((67, 3))])])
    with pytest.raises(DataError, match=r"layer 0 of electra has shape \(67, 2, 2\), expected \(samples, features\)"):
        estimate_cka([names[0], ("electra", [np.ones((67, 2, 2))])])
    copies = np.repeat(np.eye(2), [60, 7], axis=0)
    with pytest.raises(DegenerateLayerError, match="layer 0 of electra has a median distance of 0 between samples"):
        estimate_cka([names[0], ("electra", [copies])], measures=[RBF])
    odd = np.zeros((67, 3))
    odd[9] = 1
    with pytest.raises(DegenerateLayerError, match="layer 0 of electra has a debiased HSIC with itself that is not"):
        estimate_cka([names[0], ("electra", [odd])])
