"""Maps of layers against layers, and the curves that are read from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.similarity.maps import similarity_curve
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import SimilarityMap
from tests.similarity.definitions import rbf_cka, rbf_sigma_squared
from tests.similarity.oracle import map_by_cka

N = 30


@pytest.fixture
def model() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(N, 8)) + layer for layer in range(4)]


@pytest.fixture
def reference(model: list[np.ndarray]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [X[:, :5] + rng.normal(size=(N, 5)) for X in model[:3]]


def map_of(*rows: tuple[float, ...]) -> SimilarityMap:
    return SimilarityMap(measure=CKA(), values=rows, n_samples=N)


@pytest.mark.parametrize("estimator", ["biased", "debiased"])
def test_rbf_map_is_the_pairwise_calls(model: list, reference: list, estimator: str) -> None:
    result = map_by_cka(model, reference, measure=CKA(kernel="rbf", estimator=estimator, bandwidth_multiplier=0.5))
    expected = [[rbf_cka(X, Y, bandwidth_multiplier=0.5, estimator=estimator) for Y in reference] for X in model]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-14)
    assert result.measure == CKA(kernel="rbf", estimator=estimator, bandwidth_multiplier=0.5)
    assert result.sigma_samples == N
    assert result.sigma_squared is not None
    bandwidths = [[rbf_sigma_squared(X, bandwidth_multiplier=0.5) for X in layers] for layers in (model, reference)]
    np.testing.assert_allclose(result.sigma_squared[0], bandwidths[0])
    np.testing.assert_allclose(result.sigma_squared[1], bandwidths[1])


def test_layers_may_come_from_iterators(model: list, reference: list) -> None:
    assert map_by_cka(iter(model), (Y for Y in reference)) == map_by_cka(model, reference)


# ---- what cannot be compared --------------------------------------------------------------------------


def test_unknown_options_are_refused() -> None:
    with pytest.raises(DataError, match=r"kernel is 'cosine', expected one of 'linear', 'rbf'"):
        CKA(kernel="cosine")
    with pytest.raises(DataError, match=r"estimator is 'unbiased', expected one of 'debiased', 'biased'"):
        CKA(estimator="unbiased")
    for multiplier in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match=r"bandwidth_multiplier is .*, expected a positive finite number"):
            CKA(kernel="rbf", bandwidth_multiplier=multiplier)


# ---- curves -------------------------------------------------------------------------------------------


def test_same_index_is_the_diagonal() -> None:
    curve = similarity_curve(map_of((0.9, 0.1), (0.2, -0.3)))
    assert curve.values == (0.9, -0.3)
    assert curve.reference_layers == (0, 1)
    assert curve.alignment == "same-index"


def test_same_index_needs_equal_depth() -> None:
    with pytest.raises(DataError, match=r"3 layers and the reference 2, expected equally many .*relative-depth"):
        similarity_curve(map_of((0.9, 0.1), (0.2, 0.3), (0.4, 0.5)))


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
