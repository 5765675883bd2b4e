"""Splits of a task: random splits, overlaps between splits, and folds. Knows neither files nor models.

Copies of an item, including swapped pairs, are kept together when splits are drawn. A score is unreliable if a scored
item was trained on or used to choose: the same pair, swapped or not, the same text, sentence, document or
image, query, question with its context, or anchor with its positive, whatever their targets, see `Items.alike`. The
later split keeps it: test before validation before train. Single texts of pairs, which splits share by design (three
quarters of the texts of SICK, a tenth of those of STS-B), are harmless by themselves and counted, see `Items.parts`.
"""

import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeVar

import numpy as np

from layerprobe.errors import DataError, TaskError, option
from layerprobe.metrics.names import Split
from layerprobe.names import counted, plural
from layerprobe.stats.crossed import joined
from layerprobe.tasks.cells import plain
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Items, Task, check_task

SPLITS = ("train", "validation", "test")
MIN_EXAMPLES = 4
"""Smallest number of examples of a split."""
Whole = TypeVar("Whole", bound=Items | list[Any])


def split_by_ratio(pairs: Sequence[tuple[str, ...]], ratios: Sequence[float], *, seed: int) -> list[list[int]]:
    """Return the numbers of the pairs of each split, in order.

    Copies of a pair, swapped or not, are in one split, so that no pair is both trained on and tested on.

    Args:
        pairs: First and second sentences.
        ratios: One positive share per split; their sum is the whole.
        seed: Seed of the shuffle.

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
    """Return all splits, missing ones drawn from the train split, and a note.

    Training items with equal keys, see `split_by_ratio`, stay together, as the note says. If items have labels and a
    draw leaves train without one, or another split with only one, items are moved.
    """
    drawn = [role for role in SPLITS if role == "train" or role not in splits]
    if drawn == ["train"]:
        return dict(splits), []
    train = splits["train"]
    shares = [ratio for role, ratio in zip(SPLITS, ratios, strict=True) if role in drawn]
    pairs = list(keys)
    split = split_by_ratio(pairs, shares, seed=seed)
    rows_of = _with_every_label(split, pairs, labels) if labels else split
    parts: list[Any] = [train.take(rows) if isinstance(train, Items) else [train[i] for i in rows] for rows in rows_of]
    sizes = ", ".join(f"{len(part):,} {role}" for role, part in zip(drawn, parts, strict=True))
    note = f"split {counted(len(train), unit)} at random with seed {seed} into {sizes}"
    if rows_of != split:
        moved = sum(len({*after} - {*before}) for before, after in zip(split, rows_of, strict=True))
        note += f", {moved} of them moved so that train has every label and each split two"
    filled = {**splits, **dict(zip(drawn, parts, strict=True))}
    return filled, [f"{note}; {together} are in one split" if together else note]


def _with_every_label(
    parts: list[list[int]], pairs: Sequence[tuple[str, ...]], labels: Sequence[str]
) -> list[list[int]]:
    """Return splits with every label in the first one, train, and two labels in the others, as far as possible.

    Items without copies are moved.
    """
    train, *others = map(list, parts)
    counts = Counter(labels[row] for row in train)
    keys = [frozenset(map(plain, pair)) for pair in pairs]
    copies = Counter(keys)

    def move(row: int, begin: list[int], end: list[int]) -> None:
        begin.remove(row)
        end.append(row)

    for other in others:
        for row in tuple(other):
            if not counts[labels[row]] and copies[keys[row]] == 1:
                move(row, other, train)
                counts[labels[row]] += 1
        present = {labels[row] for row in other}
        spare = (row for row in train if copies[keys[row]] == 1 and counts[labels[row]] > 1)
        different = [row for row in spare if labels[row] not in present]
        if len(present) == 1 and different:
            move(different[0], train, other)
            counts[labels[different[0]]] -= 1
    return [sorted(part) for part in (train, *others)]


def drawn_from(task: Task, sizes: tuple[int, int, int], *, seed: int = 0) -> Task:
    """Return a task with at most so many training, validation and test examples, drawn at random, in order."""
    if min(sizes) < 1:
        raise DataError(f"expected at least one example of each split, got {sizes}")
    train, validation, test = (
        split if size >= len(split) else split.take(sorted(random.Random(seed).sample(range(len(split)), size)))
        for split, size in zip((task.train, task.validation, task.test), sizes, strict=True)
    )
    note = f"drawn at random: {len(train)} training, {len(validation)} validation and {len(test)} test examples"
    return replace(task, train=train, validation=validation, test=test, notes=(*task.notes, note))


def resplit(task: Task, *, train: int, validation: int, seed: int = 0) -> Task:
    """Return a task with new splits of all its examples: training, validation, and the rest for test.

    Copies of an example, including swapped pairs, are in one split, which can then
    have a few more, see `split_by_ratio`.
    """
    whole = task.split("all")
    pairs = [(item[0], item[-1]) for item in zip(*whole.sides, strict=True)]
    rest = len(pairs) - train - validation
    if min(train, validation, rest) < 1:
        raise DataError(
            f"expected at least one example of each split, got {train} training, {validation} validation and {rest} "
            f"test examples, of {len(pairs)}"
        )
    parts = [whole.take(rows) for rows in split_by_ratio(pairs, (train, validation, rest), seed=seed)]
    note = "{} training, {} validation and {} test examples (all others)".format(*map(len, parts))
    return replace(
        task, train=parts[0], validation=parts[1], test=parts[2], notes=(*task.notes, f"split again at random: {note}")
    )


def check_ratios(ratios: Sequence[float]) -> None:
    """Raise TaskError unless every ratio is a positive number."""
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise TaskError(f"expected positive split ratios, got {','.join(map(str, ratios))}")


# ---- items in two splits ------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

RATIOS = (0.8, 0.1, 0.1)
PAIRS: tuple[tuple[Split, Split], ...] = (("validation", "test"), ("train", "test"), ("train", "validation"))
"""Pairs of a split and a later one, which keeps common items."""


def checked_task(task: object) -> Task:
    """Return a task without items in two splits, unless these are kept; log the number left out."""
    check_task(task)
    assert isinstance(task, Task)
    if task.keep_overlaps:
        return task
    apart = without_overlaps(task)
    for warning in apart.warnings[len(task.warnings) :]:
        logger.warning("%s", warning)
    return apart


def without_overlaps(task: Task, *, ratios: Sequence[float] = RATIOS, seed: int = 0) -> Task:
    """Return a task without items that are also in a later split, with warnings that count them.

    If too few validation items are left, the split is drawn from the train split, by the ratios and the seed, like a
    missing one. A task that keeps overlaps only gets the warnings.
    """
    unit, items = KINDS[task.kind].unit, {split: task.split(split) for split in ("train", "validation", "test")}
    warnings = []
    for split, later in PAIRS:
        others = set(items[later].alike)
        rows = [row for row, key in enumerate(items[split].alike) if key not in others]
        if n := len(items[split]) - len(rows):
            these = f"{n:,} of {counted(len(items[split]), unit)} of the {split} split"
            where = f"{'is' if n == 1 else 'are'} also in the {later} split"
            if task.keep_overlaps:
                warnings.append(f"{these} {where} and kept: scores are unreliable")
            else:
                hint = "" if warnings else f"; {option('keep_overlaps', True)} keeps such {plural(unit)}"
                warnings.append(f"left out {these} that {where}{hint}")
                items[split] = items[split].take(rows)
    if not warnings or task.keep_overlaps:
        return replace(task, warnings=(*task.warnings, *warnings)) if warnings else task
    if len(items["validation"]) < len(task.validation) and _too_few(items["validation"]):
        del items["validation"]
        items, drawn = with_all_splits(items, items["train"].alike, ratios, seed=seed, unit=unit)
        warnings.append(f"too few validation items are left: {drawn[0]}")
    for split in ("train", "validation"):
        _check_left(task, split, items[split])
    return replace(task, train=items["train"], validation=items["validation"], warnings=(*task.warnings, *warnings))


def spoilt_items(task: Task) -> int:
    """Return the number of training and validation items that are also in a later split."""
    test, choosing = set(task.test.alike), set(task.validation.alike)
    return sum(key in test for key in task.validation.alike) + sum(key in test | choosing for key in task.train.alike)


def about_splits(task: Task) -> tuple[str, ...]:
    """Return the warnings of a task that are irrelevant if no split is trained on."""
    return with_counts(without_overlaps(replace(task, warnings=()))).warnings


def with_counts(task: Task) -> Task:
    """Return a task with warnings about single texts of pairs that its splits share, and advice."""
    warnings, unit = [], KINDS[task.kind].unit
    for split, later in PAIRS:
        (name, ours), (_, theirs) = task.split(later).parts, task.split(split).parts
        if n := len(set(ours) & set(theirs)):
            of = f"{n:,} of {counted(len(set(ours)), name)} of the {later} split"
            other = "" if task.keep_overlaps else f" in other {plural(unit)},"
            warnings.append(f"{of} are also in the {split} split,{other} and stay there")
    if warnings:
        warnings[0] += f": scores on new {plural(name)} may be lower; to measure those, give splits that share none"
    return replace(task, warnings=(*task.warnings, *warnings)) if warnings else task


def _too_few(items: Items) -> bool:
    return len(items) < MIN_EXAMPLES or items.one_target


def _check_left(task: Task, split: Split, left: Items) -> None:
    """Raise TaskError if a split without overlaps has too few items, or no longer all classes."""
    before, lost = task.split(split), ""
    if task.labels and isinstance(left, Examples) and isinstance(before, Examples) and split == "train":
        lost = next((task.labels[int(target)] for target in {*before.targets} - {*left.targets}), "")
    if _too_few(left) or lost:
        has = f"{len(left)} {plural(KINDS[task.kind].unit)}" + (f" and none of class {lost[:40]!r}" if lost else "")
        raise TaskError(
            f"without items of other splits, the {split} split has {has}, expected at least {MIN_EXAMPLES} with "
            f"different targets: give another {split} file, or keep all with {option('keep_overlaps', True)}"
        )


# ---- folds --------------------------------------------------------------------------------------------


LARGEST = 0.5
"""Largest share of a fold for examples linked by shared texts; beyond it, only equal pairs stay together."""


def folds_of(task: Task, n_folds: int, *, seed: int = 0) -> tuple[Task, ...]:
    """Return one task per fold of the training and validation examples: one fold to validate, the others to train.

    All have the same test split. Examples that share a text are in one fold, so that no text is both trained on and
    validated on; if that makes one too large, only copies of an example are kept together. The folds have similar
    sizes, and every pooled example validates once.
    """
    pool = task.train.join(task.validation)
    if n_folds < 2:
        raise DataError(f"expected at least two folds, got {n_folds}")
    if len(pool) < 2 * n_folds:
        raise DataError(f"expected at least two examples for each of {n_folds} folds, got {len(pool)}")
    fold_of = _assigned(pool, n_folds, seed)
    return tuple(
        replace(
            task,
            name=f"{task.name}, fold {fold + 1} of {n_folds}",
            train=pool.take(np.flatnonzero(fold_of != fold).tolist()),
            validation=pool.take(np.flatnonzero(fold_of == fold).tolist()),
        )
        for fold in range(n_folds)
    )


def _assigned(pool: Items, n_folds: int, seed: int) -> np.ndarray:
    """Return the fold of every example: groups in a random order, each to the fold with the fewest examples."""
    links = links_of(pool)
    groups = _grouped(range(len(pool)) if links is None else joined(*links.sides).tolist())
    if max(map(len, groups)) > LARGEST * len(pool) / n_folds:
        groups = _grouped(pool.alike)
    random.Random(seed).shuffle(groups)
    groups.sort(key=len, reverse=True)  # stable: the order among groups of a size is random
    sizes, fold_of = [0] * n_folds, np.zeros(len(pool), dtype=np.intp)
    for group in groups:
        fold = min(range(n_folds), key=sizes.__getitem__)
        fold_of[group] = fold
        sizes[fold] += len(group)
    return fold_of


def _grouped(keys: Iterable[object]) -> list[list[int]]:
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    return list(groups.values())
