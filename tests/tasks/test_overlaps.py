"""Items that stand in two splits, of every kind of task: found, counted and left out of the earlier split."""

import dataclasses
import logging

import numpy as np
import pytest

from layerprobe.errors import DataError, TaskError
from layerprobe.kinds.triplets import Triplets
from layerprobe.stats.crossed import item_covariance
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.splitting import PAIRS, checked_task, folds_of, spoilt_items, without_overlaps
from layerprobe.tasks.values import Examples, Task
from tests.toy_questions import toy_questions
from tests.toy_task import LABELS, TOY_KINDS, toy_items


def leaky(kind: str) -> Task:
    """A task whose train split has 4 test and 3 validation items, and whose validation split has 5 test items."""

    def items(n: int, seed: int):
        return toy_questions(n, seed) if kind == "question answering" else toy_items(kind, n, seed)

    test, own, train = items(24, 1), items(24, 2), items(60, 3)
    if kind == "question answering":
        test, own, train = (
            dataclasses.replace(each, questions=tuple(f"{name} {i}: {q}" for i, q in enumerate(each.questions)))
            for name, each in (("test", test), ("own", own), ("train", train))
        )
    before = Task(name="t", kind=kind, train=train, validation=own, test=test, labels=LABELS.get(kind, ()))
    apart = without_overlaps(before)  # toys of few letters have items in common by chance
    return dataclasses.replace(
        apart,
        train=apart.train.join(test.take(range(4))).join(apart.validation.take(range(3))),
        validation=apart.validation.join(test.take(range(5))),
        warnings=(),
    )


@pytest.mark.parametrize("kind", [*TOY_KINDS, "question answering"])
def test_no_item_of_any_kind_stands_in_two_splits(kind: str) -> None:
    task = leaky(kind)
    assert spoilt_items(task) == 4 + 3 + 5
    apart = without_overlaps(task)
    for split, later in PAIRS:
        assert not set(apart.split(split).alike) & set(apart.split(later).alike)
    assert apart.test == task.test
    lost = [len(task.split(split)) - len(apart.split(split)) for split in ("train", "validation")]
    assert lost == [7, 5]
    assert [warning.split()[2] for warning in apart.warnings] == ["5", "4", "3"]
    assert spoilt_items(apart) == 0
    assert without_overlaps(apart) is apart
    kept = without_overlaps(dataclasses.replace(task, keep_overlaps=True))
    assert (kept.train, kept.validation) == (task.train, task.validation)
    assert all(warning.endswith("and kept: scores are unreliable") for warning in kept.warnings)
    assert kept.digest == task.digest


def test_a_task_made_by_hand_is_checked_and_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = leaky("sts")
    with caplog.at_level(logging.WARNING):
        apart = checked_task(task)
    assert apart == without_overlaps(task)
    assert caplog.messages == list(apart.warnings)
    kept = dataclasses.replace(task, keep_overlaps=True)
    assert checked_task(kept) is kept
    with pytest.raises(DataError, match="expected a Task, got the text 'stsb'"):
        checked_task("stsb")


def pairs(n: int, word: str) -> Examples:
    numbers = range(n)
    return Examples(
        first=tuple(f"{word} {i}" for i in numbers),
        second=tuple(f"another {word} {i}" for i in numbers),
        targets=tuple(i % 2 / 1 for i in numbers),
    )


def test_pairs_turned_round_spaced_otherwise_or_in_capitals_are_the_same() -> None:
    test = pairs(8, "test")
    assert test.second is not None
    odd = Examples(
        first=tuple(f" {text.upper()}" for text in test.second),
        second=tuple(text.replace(" ", "  ") for text in test.first),
        targets=(0.25,) * 8,
    )
    task = Task(name="t", kind="sts", train=pairs(20, "train").join(odd), validation=pairs(8, "own"), test=test)
    assert without_overlaps(task).train == pairs(20, "train")


def test_a_triplet_with_another_negative_is_the_same() -> None:
    def triplets(word: str, negative: str) -> Triplets:
        anchors, positives = (tuple(f"{word} {name} {i}" for i in range(8)) for name in ("anchor", "positive"))
        return Triplets(anchors=anchors, positives=positives, negatives=tuple(f"{negative} {i}" for i in range(8)))

    train = triplets("train", "no").join(triplets("test", "other"))
    task = Task(name="t", kind="triplets", train=train, validation=triplets("own", "no"), test=triplets("test", "no"))
    assert without_overlaps(task).train == triplets("train", "no")


def test_a_class_that_is_only_learnt_from_test_items_is_an_error() -> None:
    def texts(word: str, targets: tuple[float, ...]) -> Examples:
        return Examples(first=tuple(f"{word} {i}" for i in range(len(targets))), second=None, targets=targets)

    test, train = texts("test", (0.0, 1.0, 2.0, 2.0)), texts("train", (0.0, 1.0) * 4)
    task = Task(
        name="t",
        kind="classification",
        train=train.join(test.take([2, 3])),
        validation=texts("own", (0.0, 1.0) * 3),
        test=test,
        labels=("a", "b", "c"),
    )
    with pytest.raises(TaskError, match=r"the train split has 8 texts and none of class 'c', expected .* --keep-overl"):
        without_overlaps(task)


def test_folds_keep_copies_together_whatever_their_capitals() -> None:
    some = pairs(30, "pair")
    assert some.second is not None
    copies = Examples(first=tuple(map(str.title, some.second)), second=some.first, targets=some.targets)
    task = Task(name="t", kind="sts", train=some, validation=copies, test=pairs(8, "test"))
    for fold in folds_of(task, 3):
        assert not set(fold.train.alike) & set(fold.validation.alike)


@pytest.mark.parametrize("single", [True, False])
def test_copies_within_a_split_count_once_in_errors(single: bool) -> None:
    once = pairs(40, "pair")
    once = dataclasses.replace(once, second=None) if single else once
    twice = once.join(dataclasses.replace(once, first=tuple(map(str.upper, once.first))))
    psi = np.random.default_rng(0).normal(size=40)
    psi -= psi.mean()
    alone, copied = item_covariance(psi), item_covariance(np.tile(psi, 2), links_of(twice))
    np.testing.assert_allclose(copied, alone, rtol=0.03)  # but for G / (G - 1)
    assert item_covariance(np.tile(psi, 2)) < 0.6 * alone
