"""Numbers of one layer are their definitions, know the answers that are known, and have the errors that they say."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import entr

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity import diagnostics
from layerprobe.similarity.diagnostics import TEMPERATURE, infonce_influences, rank_influences
from layerprobe.similarity.inference import curve_uncertainty, mean_spread
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import CurveUncertainty, LayerDiagnostics
from tests.similarity import oracle

Array = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)
BIASED = CKA(estimator="biased")
SPECTRAL = ("effective_rank", "chance_cka", "intrinsic_dimension")


def diagnose(layer: Any) -> LayerDiagnostics:
    return diagnostics.diagnose(layer, name="layer 3 of bert-tiny", norm="none")


def values(found: LayerDiagnostics, *names: str) -> list[float]:
    return [getattr(found, name) for name in names]


def assert_same(found: LayerDiagnostics, expected: LayerDiagnostics) -> None:
    for name, value in dataclasses.asdict(expected).items():
        same = pytest.approx(value, rel=1e-10, abs=1e-14) if isinstance(value, float) else value
        assert getattr(found, name) == same, name


def layer_of(seed: int) -> Array:
    """More rows than features or fewer, some features larger, all shifted."""
    rng = np.random.default_rng(seed)
    n, d = rng.integers(6, 40), rng.integers(2, 40)
    return rng.normal(size=(n, d)) * rng.gamma(2, size=d) + rng.normal(size=d)


def rotation(rng: np.random.Generator, d: int) -> Array:
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


# ---- definitions ---------------------------------------------------------------------------------------------


@given(seed=seeds)
@quick
def test_every_number_is_its_definition(seed: int) -> None:
    X = layer_of(seed)
    n, d = X.shape
    pairs = list(itertools.combinations(range(n), 2))
    variances = X.var(axis=0)
    eigenvalues = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2
    p = eigenvalues[eigenvalues > 1e-20 * eigenvalues[0]] / eigenvalues.sum()
    H = np.eye(n) - 1 / n
    K = H @ X @ X.T @ H
    nearest = np.sort([[np.linalg.norm(x - y) for y in X] for x in X], axis=1)[:, 1:3]
    found = diagnose(X)
    assert (found.n_samples, found.n_features, found.dtype, found.norm) == (n, d, "float64", "none")
    assert (found.duplicates, found.constant_features) == (0, 0)
    expected = {
        "mean_norm": np.mean([np.linalg.norm(x) for x in X]),
        "mean_cosine": np.mean([X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j]) for i, j in pairs]),
        "top_dimension_share": variances.max() / variances.sum(),
        "top_three_share": np.sort(variances)[-3:].sum() / variances.sum(),
        "effective_rank": np.exp(-(p * np.log(p)).sum()),
        "chance_cka": np.trace(K) ** 2 / ((n - 1) * np.linalg.norm(K) ** 2),
        "intrinsic_dimension": n / np.log(nearest[:, 1] / nearest[:, 0]).sum(),
    }
    np.testing.assert_allclose(values(found, *expected), list(expected.values()), rtol=1e-8, atol=1e-12)


@given(seed=seeds, scale=st.floats(1e-6, 1e6), shift=st.floats(-100, 100))
@quick
def test_shift_scale_and_rotation_leave_the_spectrum_and_neighbours(seed: int, scale: float, shift: float) -> None:
    X, rng = layer_of(seed), np.random.default_rng(seed)
    moved = scale * (X + shift * rng.normal(size=X.shape[1])) @ rotation(rng, X.shape[1])
    np.testing.assert_allclose(values(diagnose(moved), *SPECTRAL), values(diagnose(X), *SPECTRAL), rtol=1e-6)


# ---- blocks, dtypes, files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, 7), (23, 40)])
@pytest.mark.parametrize("rows", [1, 7, 49])
def test_blocks_change_nothing(shape: tuple[int, int], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=shape) + 3
    X[20] = X[2]
    X[:, 4] = 1
    whole = diagnose(X)
    monkeypatch.setattr(diagnostics, "BLOCK", rows * shape[1])
    assert (whole.duplicates, whole.constant_features) == (1, 1)
    assert_same(diagnose(X), whole)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.uint16, np.int64])
def test_every_real_dtype_is_that_of_its_numbers(dtype: type) -> None:
    X = np.random.default_rng(0).integers(0, 100, size=(30, 12))
    found = diagnose(X.astype(dtype))
    assert found.dtype == np.dtype(dtype).name
    assert_same(dataclasses.replace(found, dtype="int64"), diagnose(X))


@pytest.mark.parametrize("shape", [(50, 7), (23, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_layer_is_not_written_to(shape: tuple[int, int], dtype: type) -> None:
    X = np.random.default_rng(0).normal(size=shape).astype(dtype)
    before = X.copy()
    X.setflags(write=False)
    diagnose(X)
    np.testing.assert_array_equal(X, before)


# ---- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, 5, 10])
def test_a_gaussian_of_few_dimensions_is_found_in_many(rank: int) -> None:
    rng = np.random.default_rng(0)
    found = diagnose(rng.normal(size=(1500, rank)) @ rotation(rng, 64)[:rank])
    np.testing.assert_allclose(found.effective_rank, rank, rtol=0.01)
    # Below the truth in high dimensions: neighbours are not near.
    np.testing.assert_allclose(found.intrinsic_dimension, rank, rtol=0.15)


def test_a_curved_surface_has_its_own_dimension() -> None:
    u, v = np.random.default_rng(0).uniform(0, 2, size=(2, 1500))
    found = diagnose(np.column_stack([np.sin(3 * u), np.cos(3 * u), np.sin(2 * v), np.cos(2 * v), u * v]))
    np.testing.assert_allclose(found.intrinsic_dimension, 2, rtol=0.1)
    assert found.effective_rank > 3


@pytest.mark.parametrize(("n", "d", "e"), [(40, 60, 30), (60, 10, 100)])
def test_chance_is_the_mean_of_biased_cka_over_permutations(n: int, d: int, e: int) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(n, d)) * rng.gamma(2, size=d), rng.normal(size=(n, e))
    shuffled = np.array([oracle.cka(X, rng.permutation(Y), BIASED) for _ in range(2000)])
    expected = np.sqrt(diagnose(X).chance_cka * diagnose(Y).chance_cka)
    assert abs(shuffled.mean() - expected) < 4 * shuffled.std() / np.sqrt(len(shuffled))
    assert shuffled.std() / np.sqrt(len(shuffled)) < 0.01 * expected


def test_chance_at_the_size_of_a_benchmark() -> None:
    """Biased CKA of independent Gaussians at n = 2758, d = 768 is 0.22: a quarter of the size has that as well."""
    X, Y = np.random.default_rng(0).normal(size=(2, 690, 192))
    np.testing.assert_allclose([diagnose(X).chance_cka, oracle.cka(X, Y, BIASED)], 0.218, atol=0.004)


# ---- copies, constants, zeros --------------------------------------------------------------------------------


def test_copies_are_counted_however_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "BLOCK", 50)
    X = np.random.default_rng(0).normal(size=(40, 5))
    X[[8, 30, 39]] = X[1]
    X[21] = X[20]
    X[22] = np.nextafter(X[20], 2)
    assert diagnose(X).duplicates == 4


def test_zero_is_minus_zero() -> None:
    X = np.random.default_rng(0).normal(size=(10, 3))
    X[2], X[5] = 0.0, -0.0
    assert diagnose(X).duplicates == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_do_not_move_the_intrinsic_dimension(dtype: type) -> None:
    """Nor do those whose bits differ, as the same tokens in batches of different size give them."""
    X = np.random.default_rng(0).normal(size=(200, 6)).astype(dtype)
    near = X[:40] * (1 + 2 * np.finfo(dtype).eps)
    found = diagnose(np.concatenate([X, X[:40], near]))
    assert found.duplicates == 40
    assert found.intrinsic_dimension == pytest.approx(diagnose(X).intrinsic_dimension, rel=1e-4)


def test_equal_distances_and_few_rows_have_no_intrinsic_dimension() -> None:
    assert diagnose(np.eye(10)).intrinsic_dimension is None
    two = np.repeat(np.random.default_rng(0).normal(size=(2, 6)), 10, axis=0)
    assert diagnose(two).intrinsic_dimension is None
    assert diagnose(two).duplicates == 18


def test_the_intrinsic_dimension_of_many_rows_is_that_of_some() -> None:
    X = np.random.default_rng(0).normal(size=(5000, 4))
    found = diagnose(X)
    assert found == diagnose(X)
    np.testing.assert_allclose(found.intrinsic_dimension, 4, rtol=0.1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_that_vary_by_rounding_are_constant(dtype: type) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 10))
    X[:, 3] = 7
    X[:, 8] = 5 * (1 + rng.integers(-2, 3, size=50) * np.finfo(dtype).eps)
    found = diagnose(X.astype(dtype))
    assert found.constant_features == 2
    assert diagnose(X[:, [0, 1, 2]].astype(dtype)).constant_features == 0


def test_rows_without_direction_are_left_out_of_the_cosine() -> None:
    X = np.random.default_rng(0).normal(size=(20, 5)) + 1
    padded = np.insert(X, [3, 11], 0.0, axis=0)
    assert diagnose(padded).mean_cosine == pytest.approx(diagnose(X).mean_cosine, abs=1e-14)
    assert diagnose(np.eye(1, 5) * np.array([[0.0], [0], [0], [1]])).mean_cosine == 0


# ---- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8])
def test_a_constant_layer_is_refused(value: float) -> None:
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert-tiny is the same for all 20 samples, expected"):
        diagnose(np.full((20, 3), value))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_in_all_blocks(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "BLOCK", 16)
    X = np.random.default_rng(0).normal(size=(30, 8))
    X[[13, 13, 27], [2, 3, 0]] = bad
    match = "layer 3 of bert-tiny has 3 NaN or infinite values, the first in row 13, expected finite"
    with pytest.raises(DegenerateLayerError, match=match):
        diagnose(X)


def correlated(n: int, d: int, *, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_t(6, size=(n, d)) * np.exp(-np.arange(d) / (d / 4)) @ rng.normal(size=(d, d)) + 3.0


def rank_uncertainty(
    layers: list[Array], *, level: float = LEVEL, groups: NDArray[np.intp] | None = None
) -> tuple[list[float], CurveUncertainty]:
    found = [rank_influences(layer) for layer in layers]
    ranks = [rank for rank, _ in found]
    return ranks, curve_uncertainty(ranks, [mean_spread(each, groups) for _, each in found], level=level)


def weighted_rank(rows: Array, weights: Array) -> float:
    """The effective rank where a sample counts as often as its weight says."""
    weights = weights / weights.sum()
    centred = rows - weights @ rows
    eigenvalues = np.linalg.eigvalsh((centred * weights[:, None]).T @ centred)
    shares = np.maximum(eigenvalues, 0.0) / eigenvalues.sum()
    return float(np.exp(entr(shares).sum()))


@pytest.mark.parametrize(("n", "d"), [(60, 8), (12, 40), (30, 30)])
def test_an_influence_is_the_derivative_by_the_weight_of_a_sample(n: int, d: int) -> None:
    """Of a sample that makes up the share e more, the others as much less."""
    rows = correlated(n, d)
    rank, influences = rank_influences(rows)
    assert rank == pytest.approx(diagnose(rows).effective_rank)
    assert influences.mean() == pytest.approx(0.0, abs=1e-9)
    step = 1e-6
    for sample in range(0, n, 5):
        ends = [weighted_rank(rows, np.full(n, (1 - e) / n) + e * (np.arange(n) == sample)) for e in (step, -step)]
        assert influences[sample] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-5)


def test_a_layer_is_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = correlated(101, 7)
    rank, influences = rank_influences(rows)
    monkeypatch.setattr("layerprobe.similarity.diagnostics.BLOCK", 7 * 10)
    in_blocks = rank_influences(rows)
    assert in_blocks[0] == pytest.approx(rank)
    np.testing.assert_allclose(in_blocks[1], influences, atol=1e-9)


def test_units_do_not_matter() -> None:
    rows = correlated(50, 9)
    for changed in (rows * 1e-3, rows + 100.0, rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(9, 9)))[0]):
        rank, influences = rank_influences(changed)
        assert rank == pytest.approx(rank_influences(rows)[0])
        np.testing.assert_allclose(influences, rank_influences(rows)[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("n", "d", "wide"), [(500, 32, 1.1), (120, 90, 1.4)])
def test_errors_are_those_of_other_samples(n: int, d: int, wide: float) -> None:
    """Ranks of 150 samples vary as the errors say, and together as they say; a little less where samples are few."""
    rng = np.random.default_rng(0)
    here, there = (rng.normal(size=(d, d)) * np.exp(-np.arange(d) / (d / 5)) for _ in range(2))
    ranks, found = [], []
    for seed in range(150):
        states = np.random.default_rng(seed).standard_t(8, size=(n, d))
        values, uncertainty = rank_uncertainty([states @ here, states @ (here + 0.3 * there)], level=0.95)
        ranks.append(values)
        found.append(np.array(uncertainty.covariance))
    true, told = np.cov(np.array(ranks).T), np.mean(found, axis=0)
    ratios = np.sqrt(np.diag(told) / np.diag(true))
    assert (ratios > 0.88).all()
    assert (ratios < wide).all()
    together = [each[0, 1] / np.sqrt(each[0, 0] * each[1, 1]) for each in (told, true)]
    assert together[0] == pytest.approx(together[1], abs=0.12)


def test_texts_of_one_document_count_once() -> None:
    """Four copies of every text are no more than one of each, if they are said to be of one group."""
    rows = correlated(50, 6)
    copied, groups = np.repeat(rows, 4, axis=0), np.repeat(np.arange(50), 4)
    once, together = rank_uncertainty([rows], level=0.95), rank_uncertainty([copied], level=0.95, groups=groups)
    assert together[0] == pytest.approx(once[0])
    assert together[1].standard_errors == pytest.approx(once[1].standard_errors)
    apart = rank_uncertainty([copied], level=0.95)[1].standard_errors
    assert apart == pytest.approx([error / 2 for error in once[1].standard_errors], rel=0.02)


def views_of(seed: int, *, noise: float = 0.5) -> Array:
    """More texts than features or fewer; views are a text and noise."""
    rng = np.random.default_rng(seed)
    q, n, d = rng.integers(2, 5), rng.integers(3, 20), rng.integers(3, 20)
    return rng.normal(size=(n, d)) + 1 + noise * rng.normal(size=(q, n, d))


def infonce(views: Array, **settings: Any) -> float:
    return infonce_influences(views, **settings)[0]


def unit(x: Array) -> Array:
    return x / math.sqrt(sum(value**2 for value in x))


# ---- definitions ---------------------------------------------------------------------------------------------


@quick
@given(seed=seeds)
def test_infonce_is_a_classification_of_the_other_view(seed: int) -> None:
    views = views_of(seed)
    n = views.shape[1]
    found = 0.0
    for x, y in ((views[0], views[1]), (views[1], views[0])):
        for i in range(n):
            weights = [math.exp(unit(x[i]) @ unit(other) / TEMPERATURE) for other in y]
            found += math.log(weights[i] / sum(weights)) / (2 * n)
    assert infonce(views, competing=n) == pytest.approx(math.log(n) + found, abs=1e-9)


def test_the_number_of_texts_does_not_change_what_infonce_is_of() -> None:
    """The mean over samples of 64, 128, 256 and 512 texts is that of 256 competing ones."""
    rng = np.random.default_rng(0)
    found = {}
    for n in (64, 128, 256, 512):
        texts = rng.standard_normal((40, 1, n, 16))
        samples = texts + 0.7 * rng.standard_normal((40, 2, n, 16))
        found[n] = np.mean([infonce(views, competing=256) for views in samples])
    np.testing.assert_allclose(list(found.values()), found[256], atol=0.08)
    own = np.mean([infonce(views[:, :64], competing=64) for views in samples])
    assert abs(own - found[256]) > 0.3  # of as many as there are, it is another number


def test_more_texts_than_compete_are_divided_at_random() -> None:
    views = views_of(3)[:, :12]
    value, influences = infonce_influences(views, competing=5)
    order = np.random.default_rng(0).permutation(views.shape[1])
    parts = np.array_split(order, -(-len(order) // 5))
    expected = np.average([infonce(views[:, rows], competing=5) for rows in parts], weights=list(map(len, parts)))
    assert value == pytest.approx(expected)
    assert influences.sum() == pytest.approx(0, abs=1e-9)


@quick
@given(seed=seeds)
def test_an_influence_on_infonce_is_what_leaving_out_a_text_takes_away(seed: int) -> None:
    views = views_of(seed)
    n = views.shape[1]
    found, influences = infonce_influences(views)
    assert found == infonce(views)
    left = np.array([infonce(np.delete(views, text, axis=1)) for text in range(n)])
    np.testing.assert_allclose(influences, (n - 1) * (left.mean() - left), atol=1e-8)


def test_copies_of_a_text_have_finite_influences() -> None:
    views = np.stack([np.repeat(np.eye(3), 4, axis=0)] * 2)
    found, influences = infonce_influences(views)
    # of 512 competing texts a quarter of the 11 others of 12 are copies
    assert found == pytest.approx(math.log(512 / (1 + 511 * 3 / 11)), abs=0.01)
    assert np.isfinite(influences).all()


def test_errors_of_infonce_are_those_of_other_texts() -> None:
    """InfoNCE of 300 samples varies as the errors say, and two layers together as they say."""
    values, told = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        texts = rng.standard_t(8, size=(150, 12))
        layers = [texts + noise * rng.standard_normal((2, 150, 12)) for noise in (0.5, 1.0)]
        found = [infonce_influences(layer) for layer in layers]
        values.append([value for value, _ in found])
        told.append(curve_uncertainty(values[-1], [mean_spread(each) for _, each in found], level=0.95).covariance)
    true, mean = np.cov(np.array(values).T), np.mean(told, axis=0)
    np.testing.assert_allclose(np.sqrt(np.diag(mean)), np.sqrt(np.diag(true)), rtol=0.12)
    together = [each[0, 1] / np.sqrt(each[0, 0] * each[1, 1]) for each in (mean, true)]
    assert together[0] == pytest.approx(together[1], abs=0.15)


# ---- known answers and what they do not depend on ------------------------------------------------------------


def test_known_answers() -> None:
    assert infonce(np.stack([np.eye(30)] * 2), competing=30) == pytest.approx(math.log(30), abs=0.01)
    assert infonce(np.random.default_rng(0).normal(size=(2, 200, 100))) < 0.1


@quick
@given(seed=seeds)
def test_rotations_and_lengths_do_not_matter(seed: int) -> None:
    views = views_of(seed)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(views.shape[2],) * 2))[0]
    scale = rng.gamma(2, size=(*views.shape[:2], 1)) + 0.1
    assert infonce(scale * views @ turn) == pytest.approx(infonce(views), rel=1e-6, abs=1e-9)


# ---- bad input -----------------------------------------------------------------------------------------------


def test_rows_without_a_direction_are_named() -> None:
    views = np.ones((2, 4, 3))
    views[1, 2] = 0
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert is zero in row 2"):
        infonce(views, name="layer 3 of bert")
    views[1, 2] = np.nan
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert"):
        infonce(views, name="layer 3 of bert")


def test_too_few_views_are_refused() -> None:
    with pytest.raises(DataError, match="expected at least two views of two texts of layer 1"):
        infonce(np.ones((1, 4, 3)), name="layer 1")
