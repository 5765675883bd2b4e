"""Curves that are read from maps of layers against layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.similarity.maps import similarity_curve
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import SimilarityMap

N = 30


def map_of(*rows: tuple[float, ...]) -> SimilarityMap:
    return SimilarityMap(measure=CKA(), values=rows, n_samples=N)


# ---- what cannot be compared --------------------------------------------------------------------------


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
