"""Rankings and what they are worth: by sorting, by hand, and by scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import ndcg_score

from layerprobe.errors import DegenerateLayerError
from layerprobe.kinds import retrieval as ranking
from layerprobe.kinds.retrieval import closest_documents, float32_rows, ndcg, recall, reciprocal_rank

# Whole numbers: products are exact, so equal scores are equal in any order of summation.
WHOLE = st.integers(-2, 2).map(np.float32)


def ranked(scores: np.ndarray, own: int) -> list[int]:
    """All documents but the query itself, the highest score first, then the earlier document."""
    return sorted((i for i in range(len(scores)) if i != own), key=lambda i: (-scores[i], i))


@st.composite
def rankings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    n_queries, n_texts, n_documents = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(2, 12))
    texts = draw(arrays.arrays(np.float32, (n_queries + n_texts, 3), elements=WHOLE))
    documents = draw(arrays.arrays(np.int64, n_documents, elements=st.integers(n_queries, n_queries + n_texts - 1)))
    own = draw(arrays.arrays(np.int64, n_queries, elements=st.integers(-1, n_documents - 1)))
    return texts, np.arange(n_queries), documents, own


@settings(deadline=None)
@given(rankings(), st.integers(1, 12), st.sampled_from([1, 13, 2**24]))
def test_the_closest_are_the_first_of_a_sorted_list(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], listed: int, block: int
) -> None:
    texts, queries, documents, excluded = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "BLOCK", block)
        outputs = closest_documents(texts, queries, documents, excluded, name="x", listed=listed, units=False)
    for query, closest in enumerate(outputs):
        scores = texts[documents] @ texts[query]
        order = ranked(scores, excluded[query])[: len(closest)]
        assert closest[:, 0].tolist() == order
        assert closest[:, 1].tolist() == scores[order].tolist()


def test_copies_of_a_text_are_equal_whatever_the_width() -> None:
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(16, 37)).astype(np.float32)
    documents = 5 + np.arange(1001) % 11
    outputs = closest_documents(texts, np.arange(5), documents, np.full(5, -1), name="x", listed=1001)
    for closest in outputs[:, :, 0]:
        first = closest.tolist().index(4)
        assert closest[first : first + 91].tolist() == list(range(4, 1001, 11))


# ---- measures -----------------------------------------------------------------------------------------


def test_by_hand() -> None:
    # Relevant documents of gains 3, 1 and 2 at ranks 2, 3 and 40.
    ranks, gains = np.array([2, 3, 40]), np.array([3.0, 1.0, 2.0])
    expected = (3 / math.log2(3) + 1 / 2) / (3 + 2 / math.log2(3) + 1 / 2)
    assert ndcg(ranks, gains) == pytest.approx(expected)
    assert ndcg(ranks, gains, cutoff=2) == pytest.approx((3 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert (reciprocal_rank(ranks), reciprocal_rank(ranks, 1)) == (0.5, 0)
    assert recall(ranks) == pytest.approx(2 / 3)


def test_the_best_order_has_all_and_a_late_one_nothing() -> None:
    gains = np.array([1.0, 5.0, 2.0])
    assert ndcg(np.array([3, 1, 2]), gains) == 1
    assert ndcg(np.array([11, 12, 13]), gains) == 0
    many = np.arange(1, 31)
    assert ndcg(many, np.ones(30)) == 1
    assert recall(many) == pytest.approx(1 / 3)


@settings(deadline=None)
@given(st.permutations(range(30)), st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=30, max_size=30))
def test_ndcg_is_that_of_scikit_learn(order: list[int], gains: list[float]) -> None:
    truth = np.array(gains)
    if not truth.any():
        return
    ranks, relevant = 1 + np.argsort(order), np.flatnonzero(truth)
    scores = -ranks.astype(float)
    expected = ndcg_score(truth[None], scores[None], k=10)
    assert ndcg(ranks[relevant], truth[relevant]) == pytest.approx(expected)


# ---- rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 3])
def test_rows_are_units_or_as_they_are(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "ROWS", n_rows)
    layer = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    rows = np.array([8, 0, 0, 3, 7])
    np.testing.assert_array_equal(float32_rows(layer, rows, units=False, name="layer 1"), layer[rows])
    expected = layer[rows] / np.linalg.norm(layer[rows], axis=1, keepdims=True)
    np.testing.assert_allclose(float32_rows(layer, rows, units=True, name="layer 1"), expected, rtol=1e-6)


def test_a_row_without_a_direction_is_named() -> None:
    layer = np.array([[1, 1], [0, 0], [np.nan, 1]], np.float32)
    assert float32_rows(layer, np.array([1]), units=False, name="layer 1").tolist() == [[0, 0]]
    with pytest.raises(DegenerateLayerError, match="layer 1 of bert is zero in row 1"):
        float32_rows(layer, np.array([0, 1]), units=True, name="layer 1 of bert")
    with pytest.raises(DegenerateLayerError, match="layer 1 of bert has 1 NaN or infinite values"):
        float32_rows(layer, np.array([2]), units=False, name="layer 1 of bert")
