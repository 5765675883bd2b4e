"""Values of ugly layers are those of the definitions in float64, and the same by every way to them."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.similarity.cka import cka_interval, estimate_cka, linear_cka
from layerprobe.similarity.grams import FEW_SAMPLES
from layerprobe.similarity.measures import CKA
from tests.few import few
from tests.similarity import oracle
from tests.similarity.oracle import LINEAR, MEASURES, RBF, rbf_cka

Layer = NDArray[np.floating]

EXACT = 1e-10
"""Few samples, or rows of lengths far apart."""
ROUNDED = 1e-7
"""Many samples, of which float32 loses digits that average out."""

DTYPES = [np.float16, np.float32, np.float64]
raw = pytest.mark.parametrize(
    "measure", [m for m in MEASURES if m.normalize == "raw"], ids=lambda measure: measure.title
)


def related(n: int, d: int, *, seed: int = 0) -> tuple[Layer, Layer]:
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, 4))
    X, Y = (factors @ rng.normal(size=(4, width)) + rng.normal(size=(n, width)) for width in (d, d + 3))
    return X, Y


def longer(X: Layer, times: float, rows: slice = slice(1, 2)) -> Layer:
    scale = np.ones((len(X), 1))
    scale[rows] = times
    return scale * X


UGLY = {
    "one long row": lambda X, Y: (longer(X, 1000), Y),
    "one long row in both": lambda X, Y: (longer(X, 1000), longer(Y, 1000)),
    "long rows": lambda X, Y: (longer(X, 30, slice(0, len(X) // 20 + 1)), Y),
    "one large feature": lambda X, Y: (X * np.where(np.arange(X.shape[1]) == 0, 1000, 1), Y),
    "offset": lambda X, Y: (X + 1e4, Y - 1e4),
    "small and large": lambda X, Y: (X * 1e-20, Y * 1e20),
    "near copies": lambda X, Y: (np.repeat(X, 2, axis=0)[: len(X)] + 1e-3 * X, Y),
    "fifth powers": lambda X, Y: (X**5 / 100, Y**5 / 100),
}


@raw
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ugly", UGLY)
@pytest.mark.parametrize(
    ("n", "d", "tolerance"),
    few(
        [(7, 4, EXACT), (60, 8, EXACT), (FEW_SAMPLES + 8, 40, ROUNDED), (900, 40, ROUNDED)], lambda case: case[0] < 900
    ),
)
def test_ugly_layers_have_the_value_of_float64(
    ugly: str, measure: CKA, dtype: type, n: int, d: int, tolerance: float
) -> None:
    if dtype == np.float16 and ugly in ("offset", "small and large"):
        pytest.skip("float16 cannot hold such numbers")
    X, Y = (layer.astype(dtype) for layer in UGLY[ugly](*related(n, d)))
    cka = rbf_cka if measure.kernel == "rbf" else linear_cka
    found = cka(X, Y, estimator=measure.estimator)
    np.testing.assert_allclose(found, oracle.cka(X, Y, measure), rtol=0, atol=tolerance)


@pytest.mark.parametrize("measure", [LINEAR, RBF], ids=lambda measure: measure.title)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ugly", "n"), list(itertools.product(["one long row", "fifth powers"], [7, 60, FEW_SAMPLES])))
def test_few_samples_have_the_same_digits_by_every_way(ugly: str, measure: CKA, dtype: type, n: int) -> None:
    X, Y = (layer.astype(dtype) for layer in UGLY[ugly](*related(n, 8)))
    value = (rbf_cka if measure.kernel == "rbf" else linear_cka)(X, Y)
    (of_map,) = estimate_cka([("a", [X[:, :3], X]), ("b", [Y[:, :5], Y, Y[:, 1:]])], measures=[measure])
    assert cka_interval(X, Y, measure=measure).value == value
    np.testing.assert_allclose(of_map.map.values[1][1], value, rtol=0, atol=1e-13)
    (without,) = estimate_cka([("a", [X]), ("b", [Y])], measures=[measure], level=None)
    np.testing.assert_allclose(without.map.values[0][0], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("measure", [LINEAR, RBF], ids=lambda measure: measure.title)
def test_many_samples_have_the_same_digits_with_and_without_an_interval(measure: CKA) -> None:
    X, Y = (layer.astype(np.float32) for layer in related(FEW_SAMPLES + 100, 16))
    value = (rbf_cka if measure.kernel == "rbf" else linear_cka)(X, Y)
    assert cka_interval(X, Y, measure=measure).value == value
    (of_map,) = estimate_cka([("a", [X[:, :3], X]), ("b", [Y[:, :5], Y])], measures=[measure])
    np.testing.assert_allclose(of_map.map.values[1][1], value, rtol=0, atol=ROUNDED)
