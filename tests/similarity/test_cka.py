"""CKA: theorems, second formulas, values from outside, curves, and layers of which it is not defined.

Where a similarity is not defined, a message says so: no NaN, no epsilon. The values from outside are oracles in long
double, and the definition of unbiased HSIC written out.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from layerprobe.comparison.compare import compare
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.probing.run import probe
from layerprobe.similarity import diagnostics
from layerprobe.similarity.checks import as_array
from layerprobe.similarity.cka import cka_interval, estimate_cka, linear_cka, sums_of
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.maps import similarity_curve
from layerprobe.similarity.measures import CKA, Procrustes
from layerprobe.similarity.values import SimilarityMap
from tests.similarity.oracle import (
    brute_force_hsic,
    hsic,
    linear_gram,
    rbf_cka,
    rbf_gram,
    rbf_sigma_squared,
    squared_distances,
)

Array = NDArray[np.float64]
ESTIMATORS = ["biased", "debiased"]
cka_measures = pytest.mark.parametrize("cka", [linear_cka, rbf_cka])
estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)


def layers(seed: int) -> tuple[Array, Array, np.random.Generator]:
    """Two related layers of random size, and the source of chance for what comes next."""
    rng = np.random.default_rng(seed)
    n, d, e = rng.integers(8, 40), *rng.integers(2, 20, size=2)
    X = rng.normal(size=(n, d)) + rng.normal(size=d)
    return X, np.tanh(X @ rng.normal(size=(d, e))) + rng.normal(size=(n, e)), rng


@cka_measures
@estimators
@given(seed=seeds)
@quick
def test_a_layer_is_wholly_like_itself_and_never_more(cka: Callable[..., float], estimator: str, seed: int) -> None:
    X, Y, _ = layers(seed)
    np.testing.assert_allclose(cka(X, X, estimator=estimator), 1.0, rtol=0, atol=1e-12)
    lowest = 0 if estimator == "biased" else -1
    assert lowest - 1e-12 <= cka(X, Y, estimator=estimator) <= 1 + 1e-12


@given(seed=seeds)
@quick
def test_biased_linear_cka_is_its_feature_space_formula(seed: int) -> None:
    """CKA = |Y^T X|^2 / (|X^T X| |Y^T Y|), columns centred: Kornblith et al. 2019, section 3."""
    X, Y, _ = layers(seed)
    x, y = X - X.mean(0), Y - Y.mean(0)
    expected = np.linalg.norm(y.T @ x) ** 2 / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y)
    np.testing.assert_allclose(linear_cka(X, Y, estimator="biased"), expected, rtol=0, atol=1e-12)


def test_debiased_value_of_independent_layers_is_zero_on_average() -> None:
    rng = np.random.default_rng(0)
    pairs = [rng.normal(size=(2, 20, 30)) for _ in range(300)]
    debiased = np.array([linear_cka(*pair) for pair in pairs])
    assert abs(debiased.mean()) < 4 * debiased.std() / np.sqrt(len(pairs))
    assert (debiased < 0).any()
    assert np.mean([linear_cka(*pair, estimator="biased") for pair in pairs[:20]]) > 0.5


def test_rows_equal_up_to_rounding_are_at_distance_zero() -> None:
    X = np.random.default_rng(0).normal(size=(20, 768)) + 100
    X[7] = X[3] * (1 + 1e-15)
    X[8] = X[3] * (1 - 1e-15)
    distances = diagnostics.squared_distances(X - X.mean(axis=0))
    assert distances[3, 7] == distances[3, 8] == distances[7, 8] == 0
    np.testing.assert_array_equal(distances.diagonal(), 0)
    assert distances.min() == 0


REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
CASES = [
    "A_200x32_vs_200x48_correlated",
    "B_200x32_vs_200x48_independent",
    "C_60x512_vs_60x512_independent_n_lt_d",
    "D_300x64_outlier_dims",
]
TOLERANCE = 1e-10

# Unbiased HSIC and debiased CKA of RandomState(42): X = randn(9, 3) + 1, Y = randn(9, 4) - 2, in long double,
# from the mean over ordered 4-tuples of distinct rows. The stored Gaussian kernel is exp(-d^2 / 4), not the median's.
BRUTE_LINEAR, BRUTE_RBF, BRUTE_CKA = -0.5459985076382087, -0.010233794143087544, -0.4177111849177997


@pytest.fixture(scope="module")
def oracles() -> dict[str, Any]:
    path = REFERENCE / "cka_canonical.json"
    if not path.exists():
        pytest.skip(f"the reference values are not in {REFERENCE.name}/ beside the repository")
    return json.loads(path.read_text())


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[0])
def case(request: pytest.FixtureRequest, oracles: dict[str, Any]) -> tuple[Any, Any, dict[str, float]]:
    with np.load(REFERENCE / f"{request.param}.npz") as arrays:
        return arrays["X"], arrays["Y"], oracles[request.param]


@pytest.fixture
def nine_rows() -> tuple[Any, Any]:
    rng = np.random.RandomState(42)
    return rng.randn(9, 3) + 1, rng.randn(9, 4) - 2


def test_cka_is_that_of_the_oracle(case: Any) -> None:
    X, Y, oracle = case
    values = [linear_cka(X, Y, estimator="biased"), linear_cka(X, Y), rbf_cka(X, Y, estimator="biased"), rbf_cka(X, Y)]
    names = ["linear_biased", "linear_debiased", "rbf_biased exp(-d2/(2 sigma2))", "rbf_debiased"]
    np.testing.assert_allclose(values, [oracle[name] for name in names], rtol=0, atol=TOLERANCE)


def test_hsic_is_that_of_the_oracle(case: Any) -> None:
    X, Y, oracle = case
    K, L = linear_gram(X), linear_gram(Y)
    np.testing.assert_allclose(hsic(K, L, estimator="biased"), oracle["hsic0_xy_linear"], rtol=TOLERANCE)
    np.testing.assert_allclose(hsic(K, L, estimator="debiased"), oracle["hsic1_xy_linear"], rtol=TOLERANCE)


def test_bandwidth_is_that_of_the_oracle(case: Any) -> None:
    X, Y, oracle = case
    np.testing.assert_allclose(rbf_sigma_squared(X), oracle["sigma2_x = median_{i<j} d2"], rtol=TOLERANCE)
    np.testing.assert_allclose(rbf_sigma_squared(Y), oracle["sigma2_y"], rtol=TOLERANCE)


def test_float32_input_is_within_its_own_rounding(case: Any) -> None:
    X, Y, oracle = case
    x, y = X.astype(np.float32), Y.astype(np.float32)
    linear = [linear_cka(x, y), linear_cka(x, y, estimator="biased")]
    np.testing.assert_allclose(linear, [oracle["linear_debiased"], oracle["linear_biased"]], rtol=0, atol=2e-6)
    rbf = [rbf_cka(x, y), rbf_cka(x, y, estimator="biased")]
    expected = [oracle["rbf_debiased"], oracle["rbf_biased exp(-d2/(2 sigma2))"]]
    np.testing.assert_allclose(rbf, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("path", ["gram", "features"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, TOLERANCE), (np.float32, 2e-6)])
def test_both_paths_give_the_oracle(case: Any, path: Any, per_sample: bool, dtype: type, tolerance: float) -> None:
    X, Y, oracle = case
    measures = [CKA(), CKA(estimator="biased")]
    models = [[("X", X.astype(dtype))], [("Y", Y.astype(dtype))]]
    found = sums_of(models, measures, [(0, 1)], path=path, per_sample=per_sample, tile=37)
    values = [s.cka(m.estimator).item() for (m, _), s in found.items()]
    expected = [oracle["linear_debiased"], oracle["linear_biased"]]
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def test_stored_nine_row_values_are_those_of_the_reference(oracles: dict[str, Any]) -> None:
    (stored,) = (value for name, value in oracles.items() if name.startswith("brute_n9"))
    expected = stored["hsic1_bruteforce_4tuples"], stored["hsic1_rbf_bruteforce"], stored["debiased_cka"]
    assert expected == (BRUTE_LINEAR, BRUTE_RBF, BRUTE_CKA)


def test_nine_rows_give_the_stored_values(nine_rows: Any) -> None:
    X, Y = nine_rows
    values = [
        hsic(linear_gram(X), linear_gram(Y), estimator="debiased"),
        hsic(np.exp(-squared_distances(X) / 4), np.exp(-squared_distances(Y) / 4), estimator="debiased"),
        linear_cka(X, Y),
    ]
    np.testing.assert_allclose(values, [BRUTE_LINEAR, BRUTE_RBF, BRUTE_CKA], rtol=0, atol=1e-12)


@pytest.mark.parametrize("gram", [linear_gram, rbf_gram])
def test_debiased_hsic_is_its_definition(gram: Any, nine_rows: Any) -> None:
    K, L = map(gram, nine_rows)
    np.testing.assert_allclose(hsic(K, L, estimator="debiased"), brute_force_hsic(K, L), rtol=0, atol=1e-12)


N = 30


def map_of(*rows: tuple[float, ...]) -> SimilarityMap:
    return SimilarityMap(measure=CKA(), values=rows, n_samples=N)


def test_same_index_is_the_diagonal() -> None:
    curve = similarity_curve(map_of((0.9, 0.1), (0.2, -0.3)))
    assert curve.values == (0.9, -0.3)
    assert curve.reference_layers == (0, 1)
    assert curve.alignment == "same-index"


def test_relative_depth_takes_halves_up() -> None:
    values = tuple(tuple(layer + other / 10 for other in range(5)) for layer in range(9))
    curve = similarity_curve(map_of(*values), alignment="relative-depth")
    assert curve.reference_layers == (0, 1, 1, 2, 2, 3, 3, 4, 4)
    assert curve.values == tuple(values[layer][other] for layer, other in enumerate(curve.reference_layers))


@given(n=st.integers(0, 40), m=st.integers(0, 40))
def test_relative_depth_ends_where_the_reference_ends(n: int, m: int) -> None:
    partners = similarity_curve(map_of(*[(0.5,) * (m + 1)] * (n + 1)), alignment="relative-depth").reference_layers
    assert len(partners) == n + 1
    assert partners[0] == 0
    if n:
        assert partners[-1] == m
    if n == m:
        assert partners == tuple(range(n + 1))
    assert sorted(partners) == list(partners)


def test_best_match_takes_the_largest_and_the_earlier_of_equals() -> None:
    curve = similarity_curve(map_of((0.1, 0.4, 0.4), (-0.3, -0.2, -0.5)), alignment="best-match")
    assert curve.reference_layers == (1, 1)
    assert curve.values == (0.4, -0.2)


def test_an_unknown_alignment_is_refused() -> None:
    with pytest.raises(DataError, match=r"alignment is 'auto', expected one of 'same-index', 'relative-depth', 'be"):
        similarity_curve(map_of((1.0,)), alignment="auto")


ROW = np.random.default_rng(0).normal(size=64)


@pytest.fixture(name="X")
def layer() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(20, 64))


@cka_measures
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_equal_up_to_rounding_are_refused(cka: Callable, dtype: type, X: np.ndarray) -> None:
    """As the first token before the first block, computed in batches of different size."""
    ulps = np.random.default_rng(2).integers(-2, 3, size=(20, 64)) * np.finfo(dtype).eps
    with pytest.raises(DegenerateLayerError, match="X is the same for all 20 samples"):
        cka((ROW * (1 + ulps)).astype(dtype), X)


@cka_measures
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_of_sums_over_features_is_no_variance(cka: Callable, dtype: type, X: np.ndarray) -> None:
    """A feature near zero inherits the absolute error of the large ones it was computed from."""
    errors = np.random.default_rng(2).integers(-2, 3, size=(20, 64)) * np.finfo(dtype).eps
    row = np.where(np.arange(64) % 2, ROW, 1e-6)
    with pytest.raises(DegenerateLayerError, match="X is the same for all 20 samples"):
        cka((row + errors).astype(dtype), X)


@cka_measures
@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 1e4), (np.float64, 1e9)])
def test_a_large_constant_feature_does_not_hide_the_others(
    cka: Callable, dtype: type, offset: float, X: np.ndarray
) -> None:
    with_outlier = np.column_stack([X, np.full(20, offset)])
    assert cka(with_outlier.astype(dtype), X) == pytest.approx(1, abs=1e-6)


@cka_measures
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_small_and_large_numbers_are_not_degenerate(cka: Callable, scale: float, X: np.ndarray) -> None:
    assert cka(scale * X, X) == pytest.approx(1, abs=1e-12)


@cka_measures
@estimators
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_fewer_than_four_samples_are_refused(cka: Callable, estimator: str, n: int, X: np.ndarray) -> None:
    with pytest.raises(DegenerateLayerError, match=rf"X has {n} samples, expected at least 4: compare .* more texts"):
        cka(X[:n], X[:n], estimator=estimator)


NESTED = [torch.ones(3, 2), torch.ones(4, 2)]


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("list", lambda X: [[1.0, 2.0], [3.0]] * (len(X) // 2)),
        ("csr_array", sparse.csr_array),
        ("coo_matrix", sparse.coo_matrix),
        ("Tensor", lambda X: torch.tensor(X).to_sparse()),
        ("Tensor", lambda X: torch.empty(X.shape, device="meta")),
        ("Tensor", lambda X: torch.nested.nested_tensor(NESTED)),
        ("NestedTensor", lambda X: torch.nested.nested_tensor(NESTED, layout=torch.jagged)),
        ("dict", lambda X: {"layer 0": X}),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_no_array_is_one_line_however_layers_are_given(what: str, make: Callable, X: np.ndarray) -> None:
    odd = make(X)
    calls: list[Callable[[], object]] = [
        lambda: linear_cka(odd, X),
        lambda: cka_interval(X, odd),
        lambda: estimate_cka([("a", [odd]), ("b", [X])]),
        lambda: diagnose(odd, name="a", norm="none"),
        lambda: probe(X[:, None], odd),
        lambda: probe(X[:, None], X[:, 0], groups=odd),
    ]
    if what not in ("list", "dict"):  # which may be layers
        calls += [
            lambda: compare([odd], [X]),
            lambda: compare([X], [odd], measure=Procrustes()),
            lambda: probe([odd], X[:, 0]),
        ]
        calls += [lambda: compare(odd, X)]
    for call in calls:
        with pytest.raises(DataError, match=rf"is a {what}, not an array of numbers: expected rows of equal length"):
            call()


def test_short_floating_point_numbers_of_torch_are_read() -> None:
    X = torch.arange(12.0).reshape(6, 2) ** 2 % 7
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float16):
        assert as_array(X.to(dtype), name="X").dtype == (np.float16 if dtype == torch.float16 else np.float32)
        assert linear_cka(X.to(dtype), X) == pytest.approx(1, abs=1e-6)


def test_a_measure_by_its_name_is_one_line(X: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"expected settings as CKA\(\.\.\.\), got 'cka'"):
        cka_interval(X, X, measure="cka")


def test_masked_values_are_refused_however_layers_are_given(X: np.ndarray) -> None:
    masked = np.ma.masked_greater(X, X.max() - 1e-9)
    calls: list[Callable[[], object]] = [
        lambda: linear_cka(masked, X),
        lambda: estimate_cka([("a", [masked]), ("b", [X])]),
        lambda: compare([masked], [X]),
        lambda: compare([masked], [X], measure=Procrustes()),
        lambda: diagnose(masked, name="a", norm="none"),
    ]
    for call in calls:
        with pytest.raises(DataError, match="has masked values: remove these rows from all arrays"):
            call()


def test_arrays_are_compared_where_float64_is(X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.comparison.compare.resolve_device", lambda device: torch.device("mps"))
    assert compare(X, X).values[0][0] == pytest.approx(1)


def test_a_bandwidth_that_isolates_all_rows_is_refused(X: np.ndarray) -> None:
    with pytest.raises(DegenerateLayerError, match=r"X has a debiased HSIC .* or with another bandwidth"):
        rbf_cka(X, X, bandwidth_multiplier=1e-3)


def test_a_constant_layer_of_a_model_says_how_to_go_on_without_it():
    with pytest.raises(DegenerateLayerError, match=r"before it: --keep-blocks '1,2,3'\), or change the pooling"):
        linear_cka(np.ones((20, 3)), np.random.default_rng(0).normal(size=(20, 3)))
