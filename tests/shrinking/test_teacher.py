"""Agreement and its task against plain formulas."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from layerprobe.errors import DataError
from layerprobe.finetuning.losses import PreparedItems
from layerprobe.shrinking.teacher import LikeTeacher, Taught, agreement, agreement_by_text, shared_neighbours
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences

RNG = np.random.default_rng(0)
OURS, THEIRS = RNG.normal(size=(30, 5)), RNG.normal(size=(30, 8))


def cosines(embeddings: np.ndarray) -> np.ndarray:
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return unit @ unit.T


def test_agreement_is_the_correlation_of_similarities() -> None:
    a, b = cosines(OURS), cosines(THEIRS)
    for i, found in enumerate(agreement_by_text(OURS, THEIRS)):
        others = [j for j in range(len(a)) if j != i]
        assert found == pytest.approx(pearsonr(a[i, others], b[i, others]).statistic)
    assert agreement(OURS, OURS @ np.linalg.qr(RNG.normal(size=(5, 5)))[0] * 3) == pytest.approx(1)


def test_neighbours_are_those_with_the_highest_cosines() -> None:
    a, b = cosines(OURS), cosines(THEIRS)
    for i, found in enumerate(shared_neighbours(OURS, THEIRS)):
        first = [set([j for j in np.argsort(-each[i]) if j != i][:10]) for each in (a, b)]
        assert found == len(first[0] & first[1]) / 10


def test_they_are_means_over_texts_so_that_items_have_influences() -> None:
    scored = evaluate_outputs("teacher", OURS, THEIRS).metrics
    by_text = agreement_by_text(OURS, THEIRS)
    assert scored["agreement"] == pytest.approx(100 * by_text.mean())
    np.testing.assert_allclose(item_influences("teacher", OURS, THEIRS), 100 * (by_text - by_text.mean()))


@pytest.mark.parametrize(
    ("bad", "said"), [(OURS[:3], "at least four texts"), (np.zeros((5, 2)), "an embedding is zero")]
)
def test_what_has_no_agreement(bad: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        agreement(bad, bad)


def test_items_hold_texts_and_embeddings() -> None:
    items = Taught.of(["a", "b", "c"], np.eye(3, 2, dtype=np.float32))
    assert len(items) == 3
    np.testing.assert_array_equal(items.take([2, 0]).gold, [[0, 0], [1, 0]])
    assert items.take([0]).join(items.take([1, 2])) == items
    assert items.prompted("x: ").texts == ("x: a", "x: b", "x: c")
    with pytest.raises(DataError, match="a finite embedding for each of 3 texts"):
        Taught.of(["a", "b", "c"], np.full((3, 2), np.nan, dtype=np.float32)).check(None, labels=(), split="train")  # type: ignore[arg-type]


def test_the_loss_is_its_formula() -> None:
    rows = np.array([4, 1, 7])
    teacher = THEIRS.astype(np.float32)
    items = PreparedItems(texts=None, sides=(), tokens=np.ones(30, dtype=np.int64), gold=teacher, targets=teacher)  # type: ignore[arg-type]
    kept = torch.tensor(RNG.normal(size=(3, 8)), dtype=torch.float32)
    loss = LikeTeacher(width=8, n_labels=0).example_loss(kept, items, rows).item()
    own, want = kept.numpy(), teacher[rows]
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (own, want)]
    expected = np.mean(1 - (unit[0] * unit[1]).sum(1)) + 10 * np.mean((cosines(own) - cosines(want)) ** 2)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert LikeTeacher(width=8, n_labels=0).example_loss(3 * torch.tensor(want), items, rows).item() < 1e-6
