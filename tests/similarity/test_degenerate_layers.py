"""Where a similarity is not defined, a message says so: no NaN, no epsilon."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse

from layerprobe.comparison.compare import compare
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.probing.run import probe
from layerprobe.similarity.checks import as_array
from layerprobe.similarity.cka import cka_interval, estimate_cka, linear_cka
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.measures import CKA, Procrustes
from layerprobe.similarity.values import Measure
from tests.similarity.definitions import rbf_cka

cka_measures = pytest.mark.parametrize("cka", [linear_cka, rbf_cka])
estimators = pytest.mark.parametrize("estimator", ["biased", "debiased"])
ROW = np.random.default_rng(0).normal(size=64)


@pytest.fixture(name="X")
def layer() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(20, 64))


@cka_measures
@estimators
@pytest.mark.parametrize("value", [0.0, 0.1, 1e8])
def test_a_constant_layer_is_refused(cka: Callable, estimator: str, value: float, X: np.ndarray) -> None:
    with pytest.raises(DegenerateLayerError, match="Y is the same for all 20 samples, expected embeddings that vary"):
        cka(X, np.full((20, 3), value), estimator=estimator)


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


@cka_measures
def test_different_numbers_of_rows_are_refused(cka: Callable, X: np.ndarray) -> None:
    with pytest.raises(MisalignedSamplesError, match=r"Y has 19 samples, expected the 20 of .*X: embed the same texts"):
        cka(X, X[1:])


@cka_measures
@pytest.mark.parametrize("shape", [(20,), (20, 4, 16), (20, 0), ()])
def test_what_is_no_matrix_is_refused(cka: Callable, shape: tuple[int, ...], X: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"Y has shape \(.*\), expected \(samples, features\): pool tokens"):
        cka(X, np.ones(shape))


@cka_measures
@pytest.mark.parametrize("dtype", [complex, str, bool, object])
def test_what_is_no_real_number_is_refused(cka: Callable, dtype: type, X: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"X has dtype .*, expected real numbers: convert it"):
        cka(X.astype(dtype), X)


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


@pytest.mark.parametrize("measure", [CKA(), Procrustes()], ids=lambda measure: measure.name)
def test_an_array_without_features_is_refused(measure: Measure, X: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"has shape \(20,\), expected \(samples, layers, features\)"):
        compare(X[:, 0], X[:, 0], measure=measure)


def test_one_odd_row_has_no_debiased_self_similarity(X: np.ndarray) -> None:
    """All but one row equal: K_ij = a_i + a_j off the diagonal, which U-centring takes to zero."""
    odd = np.tile(ROW, (20, 1))
    odd[4] += 1
    with pytest.raises(DegenerateLayerError, match="X has a debiased HSIC with itself that is not positive, expected"):
        linear_cka(odd, X)
    assert 0 < linear_cka(odd, X, estimator="biased") < 1


@estimators
def test_mostly_equal_rows_have_no_bandwidth(estimator: str, X: np.ndarray) -> None:
    X[:16] = X[0]
    match = "X has a median distance of 0 between samples, expected most samples to differ: remove duplicate"
    with pytest.raises(DegenerateLayerError, match=match):
        rbf_cka(X, X, estimator=estimator)


def test_a_bandwidth_that_isolates_all_rows_is_refused(X: np.ndarray) -> None:
    with pytest.raises(DegenerateLayerError, match=r"X has a debiased HSIC .* or with another bandwidth"):
        rbf_cka(X, X, bandwidth_multiplier=1e-3)


def test_a_constant_layer_of_a_model_says_how_to_go_on_without_it():
    with pytest.raises(DegenerateLayerError, match=r"before it: --keep-blocks '1,2,3'\), or change the pooling"):
        linear_cka(np.ones((20, 3)), np.random.default_rng(0).normal(size=(20, 3)))
