import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.tasks.cells import MAX_CHARACTERS, TableLog, class_names, detect_range, label_cell, plain, scale
from layerprobe.tasks.splitting import drawn_from, resplit, split_by_ratio, with_all_splits
from layerprobe.tasks.values import Examples, Task, TextFile
from tests.toy_task import toy_task


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 1], (0, 1)),
        ([0.2, 0.9], (0, 1)),
        ([0, 5], (0, 5)),
        ([1, 5], (1, 5)),
        ([1, 4.8], (0, 5)),
        ([1.1, 5], (0, 5)),
        ([0.02, 3.94], (0, 4)),
        ([0.3, 9.8], (0, 10)),
        ([3, 97], (0, 100)),
    ],
)
def test_the_range_follows_from_minimum_and_maximum(scores, expected):
    assert detect_range(scores) == expected


@given(st.floats(0, 5))
def test_scaled_scores_lie_between_0_and_1(score):
    assert 0 <= scale(score, (0, 5)) <= 1


words = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(words, words), min_size=1), st.integers(0, 5))
def test_a_split_has_every_pair_once_and_keeps_copies_together(pairs, seed):
    parts = split_by_ratio(pairs, (0.6, 0.2, 0.2), seed=seed)
    assert sorted(i for part in parts for i in part) == list(range(len(pairs)))
    assert all(part == sorted(part) for part in parts)
    seen = [{frozenset(pairs[i]) for i in part} for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen))
    assert parts == split_by_ratio(pairs, (0.6, 0.2, 0.2), seed=seed)


def test_split_sizes_follow_the_ratios():
    pairs = [(str(i), "x") for i in range(1000)]
    assert [len(part) for part in split_by_ratio(pairs, (8, 1, 1), seed=0)] == [800, 100, 100]
    assert split_by_ratio(pairs, (8, 1, 1), seed=0) != split_by_ratio(pairs, (8, 1, 1), seed=1)


@pytest.mark.parametrize(("n", "classes"), [(231, 77), (60, 2), (300, 150)])
def test_a_draw_has_every_label_to_train_on_and_two_in_each_split(n, classes):
    pairs, mended = [(str(i), "") for i in range(n)], 0
    for seed in range(30):
        labels = random.Random(-seed - 1).sample([str(i % classes) for i in range(n)], n)
        whole = {"train": list(zip(pairs, labels, strict=True))}
        filled, notes = with_all_splits(whole, pairs, (8, 1, 1), seed=seed, unit="text", labels=labels)
        parts = [filled[role] for role in ("train", "validation", "test")]
        assert {label for _, label in parts[0]} == set(labels)
        assert all(len({label for _, label in part}) > 1 for part in parts)
        drawn = [[pairs[i] for i in part] for part in split_by_ratio(pairs, (8, 1, 1), seed=seed)]
        assert sorted(row for part in parts for row in part) == sorted(whole["train"])
        assert ("moved" in notes[0]) == ([[pair for pair, _ in part] for part in parts] != drawn)
        mended += "moved" in notes[0]
    assert mended > 0


def numbered(n):
    first, second = (tuple(f"{which} {i}" for i in range(n)) for which in ("first", "second"))
    return Examples(first=first, second=second, targets=tuple(map(float, range(n))))


def test_fewer_examples_are_drawn_in_their_order():
    task = Task(name="t", kind="sts", train=numbered(50), validation=numbered(10), test=numbered(20))
    drawn = drawn_from(task, (30, 10, 5))
    assert [len(split) for split in (drawn.train, drawn.validation, drawn.test)] == [30, 10, 5]
    assert drawn.validation == task.validation
    for split in (drawn.train, drawn.test):
        numbers = [int(target) for target in split.targets]
        assert numbers == sorted(set(numbers))
        assert numbers != list(range(len(numbers))), "the first ones, not a draw"
        assert split.first == tuple(f"first {i}" for i in numbers)
        assert split.second == tuple(f"second {i}" for i in numbers)
    assert drawn_from(task, (30, 10, 5)) == drawn != drawn_from(task, (30, 10, 5), seed=1)
    assert drawn.notes == ("drawn at random: 30 training, 10 validation and 5 test examples",)


def test_all_that_is_left_is_test():
    pairs = [numbered(50), Examples(first=("first 3", "x"), second=("second 3", "y"), targets=(9.0, 8.0)), numbered(0)]
    task = Task(name="t", kind="sts", train=pairs[0], validation=pairs[1], test=pairs[2])
    parts = [getattr(resplit(task, train=20, validation=10), name) for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [20, 11, 21], "expected the copy of a pair beside it"
    pooled = [
        (first, second, target)
        for part in parts
        for first, second, target in zip(part.first, part.second, part.targets, strict=True)
    ]
    before = [
        (first, second, target)
        for part in pairs
        for first, second, target in zip(part.first, part.second, part.targets, strict=True)
    ]
    assert sorted(pooled) == sorted(before)
    (holding,) = [part for part in parts if "first 3" in part.first]
    assert holding.first.count("first 3") == 2, "expected copies of a pair in one split"
    assert resplit(task, train=20, validation=10) == resplit(task, train=20, validation=10)
    assert resplit(task, train=20, validation=10, seed=1).train != parts[0]
    with pytest.raises(DataError, match="42 training, 10 validation and 0 test examples, of 52"):
        resplit(task, train=42, validation=10)


def test_single_texts_are_drawn_and_no_split_is_left_empty():
    single = Examples(first=("a", "b", "c"), second=None, targets=(0.0, 1.0, 0.0))
    task = Task(name="t", kind="classification", train=single, validation=single, test=single, labels=("no", "yes"))
    assert len(drawn_from(task, (2, 2, 2)).train) == 2
    with pytest.raises(DataError, match="expected at least one example of each split"):
        drawn_from(task, (2, 2, 0))


def test_labels_that_are_written_otherwise_are_other_labels():
    labels = ["1_1", "11", "1E2", "100", "01", "1", "9007199254740993", "9007199254740992", "-3", "0"]
    assert [label_cell(label) for label in labels] == labels
    assert [label_cell(f"{label}.00") for label in labels[1::2]] == labels[1::2]
    assert (label_cell("-3.0"), label_cell("-0"), label_cell("+7"), label_cell("1" * 5000)) == (
        "-3",
        "0",
        "7",
        "1" * 5000,
    )
    assert class_names(["1", "01", "1E2", "100", "2"]) == ("01", "1", "2", "100", "1E2")


def test_a_copy_with_accents_written_apart_is_a_copy():
    composed, apart = "Élève à Noël", unicodedata.normalize("NFD", "élève à noël")
    assert plain(composed) == plain(apart)
    assert split_by_ratio([(composed, "x"), ("x", apart)], (0.5, 0.5), seed=0) == [[0, 1], []]


def test_cleaning_is_counted():
    cleaner = TableLog("f.csv")
    assert cleaner.clean("tab\tline\nreturn\r keep") == "tab\tline\nreturn\r keep"
    assert cleaner.clean("a\x00b\x85c\ud800d") == "a b c d"
    assert len(cleaner.clean("x" * (MAX_CHARACTERS + 1))) == MAX_CHARACTERS
    assert cleaner.warnings == (
        "f.csv: replaced control characters by spaces in 1 text",
        "f.csv: cut 1 text to 100,000 characters",
    )
    assert TableLog().warnings == ()


def test_data_show_how_much_they_are_and_not_all_their_texts() -> None:
    task = toy_task(train=1200, validation=32, test=40)
    assert repr(task) == "<Task toy: sts; 1,200 train, 32 validation, 40 test>"
    assert repr(task.train) == "<Examples: 1,200 pairs>"
    assert repr(TextFile(name="a.txt", texts=("a", "b"))) == "<TextFile a.txt: 2 texts>"
