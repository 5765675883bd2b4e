"""The null is that of shuffled arrays, rejects as often as it says, and knows the means that are known."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.checks import LEVEL
from layerprobe.context import settings
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.similarity import permutation
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.engine.passes import CPU_TILE
from layerprobe.similarity.measures.cka import CKA, RBFCKA
from layerprobe.similarity.measures.rsa import RSA
from layerprobe.similarity.permutation import _kept, permutation_null, shuffled_maps
from layerprobe.similarity.values import PermutationNull, SimilarityMap
from tests.similarity.definitions import linear_gram, rbf_gram
from tests.similarity.oracle import map_by_cka

Array = NDArray[Any]
Layers = list[Array]

MEASURES = [
    dataclasses.replace(kernel, estimator=estimator, normalize=normalize)
    for kernel, estimator, normalize in itertools.product(
        (CKA(), RBFCKA(bandwidth_multiplier=0.7)), ("debiased", "biased"), ("raw", "zscore")
    )
]


def title(measure: CKA) -> str:
    return measure.title


def independent(seed: int, *, n: int = 20, widths: tuple[int, ...] = (6, 4)) -> tuple[Layers, Layers]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)) for d in widths], [rng.normal(size=(n, d)) for d in widths]


def dependent(seed: int) -> tuple[Layers, Layers]:
    model, _ = independent(seed, n=40)
    rng = np.random.default_rng(seed + 1)
    return model, [model[0] + rng.normal(size=model[0].shape) / 4, np.hstack(model)]


def map_of(model: Layers, reference: Layers, measure: CKA) -> SimilarityMap:
    return map_by_cka(model, reference, measure=measure)


def null_of(
    model: Layers,
    reference: Layers,
    measure: CKA = MEASURES[0],
    *,
    permutations: int = 39,
    level: float = LEVEL,
    seed: int = 0,
) -> PermutationNull:
    values = map_of(model, reference, measure).values
    return permutation_null(
        model, reference, values, measure=measure, permutations=permutations, level=level, seed=seed
    )


# ---- definitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_shuffled_maps_are_maps_of_shuffled_arrays(measure: CKA) -> None:
    model, reference = independent(0, n=23, widths=(5, 3, 7))
    rng = np.random.default_rng(3)
    orders = [rng.permutation(23) for _ in range(5)]
    expected = [map_of(model, [layer[order] for layer in reference], measure).values for order in orders]
    found = shuffled_maps(model, reference, measure=measure, permutations=5, seed=3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", [MEASURES[0], MEASURES[5]], ids=title)
def test_more_samples_than_a_tile_are_shuffled_as_a_whole(measure: CKA) -> None:
    model, reference = independent(0, n=CPU_TILE + 100)
    order = np.random.default_rng(0).permutation(CPU_TILE + 100)
    expected = map_of(model, [layer[order] for layer in reference], measure).values
    found = shuffled_maps(model, reference, measure=measure, permutations=1)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("data", [independent, dependent])
def test_a_null_is_its_definition(data: Callable[[int], tuple[Layers, Layers]]) -> None:
    model, reference = data(0)
    values = np.array(map_of(model, reference, MEASURES[0]).values)
    null = null_of(model, reference, level=0.9)
    maps = shuffled_maps(model, reference, measure=MEASURES[0], permutations=39)
    rank = 36  # 0.9 x 40
    threshold = np.sort([*maps, values], axis=0)[rank - 1]
    np.testing.assert_array_equal(null.threshold, threshold)
    np.testing.assert_allclose(null.p_values, (1 + (maps >= values).sum(axis=0)) / 40)
    np.testing.assert_allclose(null.calibrated, np.maximum((values - threshold) / (1 - threshold), 0))
    largest = maps.max(axis=(1, 2))
    assert null.maximum_threshold == np.sort([*largest, values.max()])[rank - 1]
    assert null.maximum_p_value == (1 + (largest >= values.max()).sum()) / 40
    assert (null.permutations, null.level) == (39, 0.9)


@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_batches_change_nothing(measure: CKA, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = independent(0, n=30, widths=(6, 40, 5))
    kept = null_of(model, reference, measure)
    nulls = []
    for memory, of_grams in ((permutation.CPU_MEMORY, 8 * 30 * 30), (permutation.CPU_MEMORY, 0), (1, 0)):
        monkeypatch.setattr(permutation, "CPU_MEMORY", memory)
        monkeypatch.setattr(permutation, "CPU_KEPT", of_grams)
        nulls.append(null_of(model, reference, measure))
    for null in nulls:
        for name, value in dataclasses.asdict(kept).items():
            np.testing.assert_allclose(getattr(null, name), value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", [MEASURES[0], MEASURES[5]], ids=title)
def test_kept_matrices_of_many_samples_lose_no_more_than_float32(measure: CKA, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = ([layer.astype(np.float32) for layer in layers] for layers in independent(0, n=CPU_TILE + 100))
    model += [layer + reference[0][:, :4] for layer in model[1:]]
    kept = shuffled_maps(model, reference, measure=measure, permutations=3)
    monkeypatch.setattr(permutation, "CPU_KEPT", 0)
    again = shuffled_maps(model, reference, measure=measure, permutations=3)
    wide = [[layer.astype(np.float64) for layer in layers] for layers in (model, reference)]
    expected = shuffled_maps(*wide, measure=measure, permutations=3)
    for found in (kept, again):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_matrices_are_kept_where_that_is_cheaper() -> None:
    def layers(n: int, d: int) -> Any:
        return [SimpleNamespace(shape=(n, d), dtype=np.dtype(np.float32))] * 2

    def kept(n: int, d: int, measure: CKA = MEASURES[0]) -> bool:
        return _kept(layers(n, d), layers(n, d), measure, device="cpu") > 0

    assert kept(2**14, 768)
    assert not kept(2**14 + 1, 768)
    assert not kept(2**14, 16)
    assert kept(2**14, 16, RBFCKA())


def test_a_seed_decides() -> None:
    model, reference = independent(0)
    assert null_of(model, reference, seed=1) == null_of(model, reference, seed=1)
    assert null_of(model, reference, seed=1).threshold != null_of(model, reference, seed=2).threshold


# ---- statistics ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nulls_of_independent_layers() -> list[PermutationNull]:
    return [null_of(*independent(seed), permutations=39) for seed in range(100)]


@pytest.mark.slow
def test_independent_layers_are_seldom_told_from_chance(nulls_of_independent_layers: list[PermutationNull]) -> None:
    cells = np.array([null.p_values for null in nulls_of_independent_layers])
    largest = np.array([null.maximum_p_value for null in nulls_of_independent_layers])
    for p_values in (cells[:, 0, 0], cells[:, 1, 1], largest):
        assert 1 <= (p_values <= 0.05).sum() <= 10
        assert 35 <= (p_values <= 0.5).sum() <= 65
    # What looking at four pairs would do without the maximum.
    assert (cells.min(axis=(1, 2)) <= 0.05).sum() > 10


def test_a_calibrated_value_is_positive_if_and_only_if_p_is_small(
    nulls_of_independent_layers: list[PermutationNull],
) -> None:
    for null in nulls_of_independent_layers:
        calibrated = np.array(null.calibrated)
        np.testing.assert_array_equal(calibrated > 0, np.array(null.p_values) <= 0.05)
        assert (calibrated >= 0).all()
        assert (calibrated < 1).all()


def test_the_maximum_is_no_surer_than_the_surest_pair(nulls_of_independent_layers: list[PermutationNull]) -> None:
    for null in nulls_of_independent_layers:
        assert null.maximum_p_value >= np.min(null.p_values)
        assert null.maximum_threshold >= np.max(null.threshold)


@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_dependent_layers_have_the_smallest_p(measure: CKA) -> None:
    null = null_of(*dependent(0), measure, permutations=19)
    assert null.p_values[0] == (0.05, 0.05)
    assert null.maximum_p_value == 0.05
    assert 0 < null.calibrated[0][0] < 1


@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_the_mean_is_the_one_over_all_permutations(measure: CKA) -> None:
    model, reference = independent(1, n=24, widths=(30, 3))
    maps = shuffled_maps(model, reference, measure=measure, permutations=400)
    expected = np.zeros((2, 2))
    if measure.estimator == "biased":
        chance = [[chance_of(layer, measure) for layer in layers] for layers in (model, reference)]
        expected = np.sqrt(np.outer(*chance))
    errors = maps.std(axis=0, ddof=1) / math.sqrt(len(maps))
    assert (np.abs(maps.mean(axis=0) - expected) < 4 * errors).all()


def chance_of(layer: Array, measure: CKA) -> float:
    n = len(layer)
    if measure.normalize == "zscore":
        layer = layer / layer.std(axis=0)
    gram = linear_gram(layer) if measure.kernel == "linear" else rbf_gram(layer, bandwidth_multiplier=0.7)
    centring = np.eye(n) - 1 / n
    centred = centring @ gram @ centring
    chance = float(np.trace(centred) ** 2 / ((n - 1) * np.linalg.norm(centred) ** 2))
    if measure.kernel == "linear":
        assert diagnose(layer, name="a layer", norm="none").chance_cka == pytest.approx(chance)
    return chance


# ---- what is known -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_a_layer_and_itself_stay_the_same(measure: CKA, dtype: type[np.floating]) -> None:
    model = [layer.astype(dtype) for layer in independent(0, n=40)[0]]
    null = null_of(model, model, measure)
    np.testing.assert_allclose(np.diag(null.calibrated), 1, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.diag(null.p_values), 1 / 40)


def test_an_order_that_changes_nothing_counts_as_similar() -> None:
    # Of 5 samples, about one order of 120 is the first again; products in float32 then differ in the last digits.
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    rng = np.random.default_rng(0)
    same = sum(np.array_equal(rng.permutation(5), np.arange(5)) for _ in range(999))
    assert same > 2
    null = null_of([X], [X], permutations=999)
    assert null.p_values[0][0] == pytest.approx((1 + same) / 1000)


def test_memory_maps_are_arrays(tmp_path: Path) -> None:
    model, reference = dependent(0)
    mapped = []
    for name, layers in (("model", model), ("reference", reference)):
        for i, layer in enumerate(layers):
            np.save(tmp_path / f"{name}-{i}.npy", layer)
        mapped.append([np.load(tmp_path / f"{name}-{i}.npy", mmap_mode="r") for i in range(len(layers))])
    assert null_of(mapped[0], mapped[1]) == null_of(model, reference)


def test_progress_counts_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = independent(0)
    reports = []

    def report(task: str, done: float, total: float) -> None:
        reports.append(done)
        assert total == 7

    monkeypatch.setattr(permutation, "CPU_MEMORY", 1)
    with settings(progress=report):
        shuffled_maps(model, reference, measure=MEASURES[4], permutations=7)
    assert reports == sorted(reports)
    assert reports[-1] == 7
    reports.clear()
    monkeypatch.setattr(permutation, "CPU_KEPT", 0)
    with settings(progress=report):
        shuffled_maps(model, reference, measure=MEASURES[4], permutations=7)
    assert reports == [1, 2, 3, 4, 5, 6, 7]


# ---- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "permutations", "needed"), [(0.95, 0, 19), (0.95, -1, 19), (0.95, 18, 19), (0.9, 8, 9), (0.5, 0, 1)]
)
def test_too_few_permutations_for_the_level(level: float, permutations: int, needed: int) -> None:
    model, reference = independent(0)
    with pytest.raises(DataError, match=f"at least {needed} permutations at level {level}, got {permutations}"):
        null_of(model, reference, permutations=permutations, level=level)
    assert null_of(*dependent(0), permutations=needed, level=level).p_values[0][0] == pytest.approx(1 - level)


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, math.nan])
def test_a_level_lies_between_0_and_1(level: float) -> None:
    with pytest.raises(DataError, match="confidence level between 0 and 1"):
        null_of(*independent(0), level=level)


def test_only_cka_has_a_null() -> None:
    model, reference = independent(0)
    measure = RSA()
    with pytest.raises(DataError, match="expected permutations for cka alone, got 200 for RSA"):
        permutation_null(model, reference, np.zeros((2, 2)), measure=measure)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 3)), r"\(2, 2\) finite values, .* got 6 finite ones in an array of shape \(2, 3\)"),
        (np.full((2, 2), np.nan), r"\(2, 2\) finite values, .* got 0 finite ones"),
    ],
)
def test_values_are_those_of_the_layers(values: Array, message: str) -> None:
    model, reference = independent(0)
    with pytest.raises(DataError, match=message):
        permutation_null(model, reference, values, measure=MEASURES[0])


def test_layers_that_cannot_be_compared_are_named() -> None:
    model, reference = independent(0)
    values = np.zeros((2, 2))
    with pytest.raises(DataError, match="the reference has no layers"):
        permutation_null(model, [], np.zeros((2, 0)), measure=MEASURES[0])
    with pytest.raises(DataError, match=r"layer 1 of the reference has shape \(20,\)"):
        permutation_null(model, [reference[0], reference[1][:, 0]], values, measure=MEASURES[0])
    with pytest.raises(DegenerateLayerError, match="layer 1 of the reference is the same for all 20 samples"):
        permutation_null(model, [reference[0], np.ones((20, 3))], values, measure=MEASURES[0])
    with pytest.raises(MisalignedSamplesError, match="layer 0 of the reference has 19 samples, expected the 20"):
        permutation_null(model, [layer[1:] for layer in reference], values, measure=MEASURES[0])
