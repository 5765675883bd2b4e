"""Values from outside: oracles in long double, and the definition of unbiased HSIC written out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.similarity.cka import linear_cka, sums_of
from layerprobe.similarity.measures import CKA
from tests.similarity.definitions import hsic, linear_gram, rbf_cka, rbf_gram, rbf_sigma_squared, squared_distances
from tests.similarity.oracle import brute_force_hsic, map_by_cka

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


def test_outlier_dimensions_keep_their_negative_value(oracles: dict[str, Any]) -> None:
    with np.load(REFERENCE / f"{CASES[3]}.npz") as arrays:
        X, Y = arrays["X"], arrays["Y"]
    value = map_by_cka([X], [Y]).values[0][0]
    assert value < 0
    np.testing.assert_allclose(value, oracles[CASES[3]]["linear_debiased"], rtol=0, atol=TOLERANCE)


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
