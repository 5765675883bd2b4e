"""Random splits that keep equal pairs together, and draws of fewer examples. Knows neither files nor the Hub."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeVar

from layerprobe.errors import DataError, TaskError
from layerprobe.names import counted
from layerprobe.tasks.texts import plain
from layerprobe.tasks.values import Items, Task

SPLITS = ("train", "validation", "test")
Whole = TypeVar("Whole", bound=Items | list[Any])


def split_by_ratio(pairs: Sequence[tuple[str, ...]], ratios: Sequence[float], *, seed: int) -> list[list[int]]:
    """Return which pairs go to which split, in their order.

    Copies of a pair and the swapped pair land in one split, so that no pair is trained on and tested on.

    Args:
        pairs: First and second sentences.
        ratios: One positive share a split; their sum counts as the whole.
        seed: Of the shuffle.

    Examples:
        >>> split_by_ratio([("a", "b"), ("b", "a")], (0.5, 0.5), seed=0)
        [[0, 1], []]
    """
    check_ratios(ratios)
    groups: dict[frozenset[str], list[int]] = {}
    for i, pair in enumerate(pairs):
        groups.setdefault(frozenset(map(plain, pair)), []).append(i)
    shuffled = list(groups.values())
    random.Random(index(seed)).shuffle(shuffled)
    splits: list[list[int]] = [[] for _ in ratios]
    sizes = [round(len(pairs) * ratio / sum(ratios)) for ratio in ratios]
    split = 0
    for group in shuffled:
        while split < len(sizes) - 1 and len(splits[split]) >= sizes[split]:
            split += 1
        splits[split].extend(group)
    return [sorted(indices) for indices in splits]


def with_all_splits(
    splits: Mapping[str, Whole],
    keys: Iterable[tuple[str, ...]],
    ratios: Sequence[float],
    *,
    seed: int,
    unit: str,
    together: str = "",
    labels: Sequence[str] = (),
) -> tuple[dict[str, Whole], list[str]]:
    """Return splits with those that are missing drawn from the train split, and a note of that.

    Training items whose keys are alike, see `split_by_ratio`, stay together, as the note says. Where they have labels
    and a draw leaves train without one, or another split with one alone, as few items as possible are exchanged.
    """
    drawn = [role for role in SPLITS if role == "train" or role not in splits]
    if drawn == ["train"]:
        return dict(splits), []
    train = splits["train"]
    shares = [ratio for role, ratio in zip(SPLITS, ratios, strict=True) if role in drawn]
    pairs = list(keys)
    split = split_by_ratio(pairs, shares, seed=seed)
    rows_of = _exchanged(split, pairs, labels) if labels else split
    parts: list[Any] = [train.take(rows) if isinstance(train, Items) else [train[i] for i in rows] for rows in rows_of]
    sizes = ", ".join(f"{len(part):,} {role}" for role, part in zip(drawn, parts, strict=True))
    note = f"split {counted(len(train), unit)} at random with seed {seed} into {sizes}"
    if rows_of != split:
        moved = sum(len({*after} - {*before}) for before, after in zip(split, rows_of, strict=True))
        note += f", {moved} of them exchanged so that train has every label and each split two"
    filled = {**splits, **dict(zip(drawn, parts, strict=True))}
    return filled, [f"{note}; {together} are in one split" if together else note]


def _exchanged(parts: list[list[int]], pairs: Sequence[tuple[str, ...]], labels: Sequence[str]) -> list[list[int]]:
    """Return splits of which the first, train, has every label and the others two, as far as exchanges make it so.

    What has copies is not exchanged.
    """
    counts = Counter(labels[i] for i in parts[0])
    if set(labels) == counts.keys() and all(len({labels[i] for i in part}) != 1 for part in parts[1:]):
        return parts
    train, *others = map(set, parts)
    keys = [frozenset(map(plain, pair)) for pair in pairs]
    copies = Counter(keys)
    single = [i for i, key in enumerate(keys) if copies[key] == 1]
    begin = 0

    def is_spare(i: int) -> bool:
        return i in train and counts[labels[i]] > 1

    def exchange(row: int, other: set[int]) -> None:
        nonlocal begin
        # what is in train as the only one of its label stays so: with many labels all would be looked at again
        while begin < len(single) and not is_spare(single[begin]):
            begin += 1
        rows = (single[place] for place in range(begin, len(single)))
        if (spare := next((i for i in rows if labels[i] != labels[row] and is_spare(i)), None)) is not None:
            train.symmetric_difference_update((row, spare))
            other.symmetric_difference_update((row, spare))
            counts.update({labels[row]: 1, labels[spare]: -1})

    for other in others:
        for row in sorted(other.intersection(single)):
            if not counts[labels[row]]:
                exchange(row, other)
        if len({labels[i] for i in other}) == 1:
            for row in sorted(other.intersection(single))[:1]:
                exchange(row, other)
                begin = 0
    return [sorted(part) for part in (train, *others)]


def drawn_from(task: Task, sizes: tuple[int, int, int], *, seed: int = 0) -> Task:
    """Return a task with at most so many training, validation and test examples, drawn at random and in their order."""
    if min(sizes) < 1:
        raise DataError(f"expected at least one example of each split, got {sizes}")
    train, validation, test = (
        _drawn(split, size, seed) for split, size in zip((task.train, task.validation, task.test), sizes, strict=True)
    )
    note = f"drawn at random: {len(train)} training, {len(validation)} validation and {len(test)} test examples"
    return replace(task, train=train, validation=validation, test=test, notes=(*task.notes, note))


def resplit(task: Task, *, train: int, validation: int, seed: int = 0) -> Task:
    """Return a task with other splits of all its examples: so many to train and to choose by, and all the rest to test.

    Examples that are copies of each other, or the same pair swapped, land in one split, which can then
    have a few more, see `split_by_ratio`.
    """
    whole = task.split("all")
    pairs = [(item[0], item[-1]) for item in zip(*whole.sides, strict=True)]
    rest = len(pairs) - train - validation
    if min(train, validation, rest) < 1:
        raise DataError(
            f"expected at least one example of each split, got {train} to train, {validation} to choose by and {rest} "
            f"of {len(pairs)} left to test"
        )
    parts = [whole.take(rows) for rows in split_by_ratio(pairs, (train, validation, rest), seed=seed)]
    note = "{} training, {} validation and {} test examples, which are all others".format(*map(len, parts))
    return replace(
        task, train=parts[0], validation=parts[1], test=parts[2], notes=(*task.notes, f"split again at random: {note}")
    )


def _drawn(examples: Items, size: int, seed: int) -> Items:
    if size >= len(examples):
        return examples
    return examples.take(sorted(random.Random(seed).sample(range(len(examples)), size)))


def check_ratios(ratios: Sequence[float]) -> None:
    """Raise TaskError unless every ratio is a positive number."""
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise TaskError(f"expected positive split ratios, got {','.join(map(str, ratios))}")
