"""Cosine scores of pairs, and their correlation with gold."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.metrics.scores import cosine_scores, pearson, spearman

correlations = pytest.mark.parametrize("correlation", [spearman, pearson])


@given(seed=st.integers(0, 2**32 - 1))
def test_cosine_is_that_of_each_row(seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 7, 5))
    expected = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(cosine_scores(x, y), expected, rtol=0, atol=6e-13)
    np.testing.assert_allclose(cosine_scores(2 * x, 1e-20 * y), expected, rtol=0, atol=6e-13)
    np.testing.assert_allclose(cosine_scores(x, -x), -1)


def test_cosine_is_float64_and_does_not_overflow() -> None:
    x = np.full((3, 8), 60000, dtype=np.float16)
    scores = cosine_scores(x, x)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, 1, rtol=0, atol=1e-15)


def test_cosine_refuses_what_has_no_direction() -> None:
    x = np.ones((3, 2))
    with pytest.raises(DegenerateLayerError, match="second is zero in row 1, expected embeddings with a direction"):
        cosine_scores(x, [[1, 2], [0, 0], [3, 4]])
    with pytest.raises(DegenerateLayerError, match="first has 1 NaN or infinite values, the first in row 2"):
        cosine_scores([[1, 2], [0, 1], [3, np.nan]], x)
    with pytest.raises(MisalignedSamplesError, match="second has 2 samples, expected the 3 of first"):
        cosine_scores(x, x[:2])
    with pytest.raises(DataError, match="second has 1 features, expected the 2 of first: use one layer for both"):
        cosine_scores(x, x[:, :1])
    with pytest.raises(DataError, match=r"first has shape \(2,\), expected \(samples, features\)"):
        cosine_scores(x[0], x)


@given(seed=st.integers(0, 2**32 - 1))
def test_correlations_are_their_formulas(seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 12)).round(1)
    np.testing.assert_allclose(pearson(x, y), np.corrcoef(x, y)[0, 1], rtol=0, atol=1e-12)
    ranks = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
    np.testing.assert_allclose(spearman(x, y), ranks, rtol=0, atol=1e-12)


@correlations
def test_a_constant_has_no_correlation(correlation: Callable) -> None:
    with pytest.raises(DataError, match=r"y is 0.5 for all 4 pairs, expected scores that differ: .* leave out a layer"):
        correlation([1, 2, 3, 4], [0.5] * 4)
    with pytest.raises(DataError, match="x is 1 for all 4 pairs"):
        correlation(1 - np.array([0, 1, 2, 3]) * 1e-15, [1, 2, 3, 4])
    with pytest.raises(DataError, match="x is 0 for all 3 pairs"):
        correlation([0, 0, 0], [1, 2, 3])


@correlations
def test_nearly_constant_scores_still_correlate(correlation: Callable) -> None:
    """Cosines of an anisotropic layer lie within a hair of 1."""
    assert correlation(1 - np.array([4, 3, 2, 1]) * 1e-8, [1, 2, 3, 4]) == pytest.approx(1)


@correlations
def test_correlations_refuse_what_is_no_series(correlation: Callable) -> None:
    with pytest.raises(DataError, match=r"x has shape \(2, 2\), expected a vector of at least two scores"):
        correlation(np.eye(2), [1, 2])
    with pytest.raises(DataError, match=r"x has shape \(1,\), expected a vector of at least two scores"):
        correlation([1], [1])
    with pytest.raises(MisalignedSamplesError, match="y has 2 samples, expected the 3 of x"):
        correlation([1, 2, 3], [1, 2])
    with pytest.raises(DataError, match="y has NaN or infinite values, expected finite scores"):
        correlation([1, 2, 3], [1, np.nan, 2])


def test_pairs_of_the_same_text_tie() -> None:
    """Their cosines are 1 up to rounding, which differs from text to text; ranks do not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 384)).astype(np.float32)
    y = np.where(np.arange(400)[:, None] < 150, x, x + rng.normal(size=x.shape)).astype(np.float32)
    gold = rng.random(400) + (np.arange(400) < 150)
    scores = cosine_scores(x, y)
    assert (scores[:150] == 1).all()
    assert (scores[150:] < 1).all()
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x.astype(float), y.astype(float))]
    exact = np.where(np.arange(400) < 150, 1.0, (units[0] * units[1]).sum(axis=1))
    np.testing.assert_allclose(spearman(scores, gold), spearmanr(exact, gold).statistic, rtol=0, atol=1e-15)
