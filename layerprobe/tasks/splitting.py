"""Splits of a task: from parsed examples, at random, without overlaps, and folds. Knows neither files nor models.

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
from dataclasses import dataclass, replace
from operator import index
from typing import Any, TypeVar

import numpy as np

from layerprobe.errors import DataError, TaskError, option
from layerprobe.metrics.names import Split
from layerprobe.names import counted, plural
from layerprobe.stats.crossed import joined
from layerprobe.tasks.cells import check_range, class_names, parse_score, plain, scale, spelled_alike
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import RATIOS, Examples, Items, Task, check_task

SPLITS = ("train", "validation", "test")
MIN_EXAMPLES = 4
"""Smallest number of examples of a split."""
_SHOWN = 5
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
    shuffled = _grouped(frozenset(map(plain, pair)) for pair in pairs)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A text or a pair of texts with its target, as in its source."""

    first: str
    second: str | None
    """Second text; None for single texts."""
    cell: str
    """Cell of the score or label."""
    place: str
    """File and line."""
    score: float = 0.0
    """Score on the scale of the source, if targets are scores."""
    label: str = ""
    """Label, if targets are classes."""

    @property
    def pair(self) -> tuple[str, str]:
        """Both texts, or the text and an empty one."""
        return self.first, self.second or ""


def parsed(kind: str, role: str, rows: Sequence[Example], *, skip_empty: bool = False) -> list[Example]:
    """Return the rows with their scores or labels; raise TaskError, with the place, for an invalid one.

    Rows with a label for "none", such as -1, are left out if `skip_empty`.
    """
    rules = KINDS[kind]
    if not rules.labelled:
        return [replace(row, score=parse_score(row.cell, row.place)) for row in rows]
    labelled = [replace(row, label=rules.read_label(row.cell, row.place)) for row in rows]
    missing = [row for row in labelled if not row.label]
    if missing and not skip_empty:
        raise TaskError(
            f"{len(missing)} of {counted(len(rows), 'label')} of the {role} data are missing "
            f"(first: {missing[0].place}): label or drop them, give another file, or skip them with "
            f"{option('skip_empty', True)}"
        )
    return [row for row in labelled if row.label]


def task_of(
    name: str,
    kind: str,
    splits: Mapping[str, list[Example]],
    *,
    ratios: Sequence[float],
    seed: int,
    score_range: tuple[float, float] | None,
    notes: Sequence[str],
    warnings: Sequence[str],
) -> Task:
    """Return a task from parsed rows; missing splits are drawn from the train split.

    Scores are scaled to 0 .. 1; labels are numbered as in the train split.
    """
    unit, whole = KINDS[kind].unit, splits["train"]
    pairs = bool(whole) and whole[0].second is not None
    copies = "duplicates, including swapped pairs," if pairs else "duplicates"
    one_piece = len(splits) == 1
    keys = [row.pair for row in whole]
    targets = [row.label for row in whole] if KINDS[kind].labelled else []
    before = splits
    splits, drawn = with_all_splits(before, keys, ratios, seed=seed, unit=unit, together=copies, labels=targets)
    for role in SPLITS:
        at_random = bool(drawn) and (role == "train" or role not in before)
        _check_split(kind, role, splits[role], seed=seed if at_random else None, rare=_rare(whole) if drawn else "")
    labels: tuple[str, ...] = ()
    if KINDS[kind].labelled:
        rows = [row for role in SPLITS for row in splits[role]]
        alike = spelled_alike(Counter(row.label for row in rows))
        labels, scale_note = _classes(kind, splits, alike)
        warnings = (*warnings, *alike)
    else:
        score_range, scale_note = _score_range(kind, [row for role in SPLITS for row in splits[role]], score_range)
    number = {label: i for i, label in enumerate(labels)}
    train, validation, test = (_examples(splits[role], number, score_range) for role in SPLITS)
    return Task(
        name=name,
        kind=kind,
        train=train,
        validation=validation,
        test=test,
        labels=labels,
        score_range=score_range,
        one_piece=one_piece,
        notes=(*notes, *drawn, scale_note),
        warnings=tuple(warnings),
    )


def _rare(rows: Sequence[Example]) -> str:
    """Return a warning about few distinct texts in many rows, as with swapped columns; empty otherwise."""
    distinct = len({row.pair for row in rows})
    if distinct >= len(rows) / 2:
        return ""
    texts = "the same text," if distinct == 1 else f"{distinct} different texts, such as"
    return f" (all {len(rows)} rows have {texts} {rows[0].first[:40]!r})"


def _check_split(kind: str, role: str, rows: Sequence[Example], *, seed: int | None, rare: str = "") -> None:
    """Raise TaskError if a split (drawn with the seed, if any) is too small or has only one target."""
    unit, labelled = KINDS[kind].unit, KINDS[kind].labelled
    if len(rows) < MIN_EXAMPLES:
        advice = f"give more {unit}s, or another file with --{role}" if role != "train" else f"give more {unit}s"
        raise TaskError(f"the {role} split has {len(rows)} {unit}s, expected at least {MIN_EXAMPLES}{rare}: {advice}")
    if len({row.label if labelled else row.score for row in rows}) == 1:
        what, value = ("labels", repr(rows[0].label[:40])) if labelled else ("scores", f"{rows[0].score:g}")
        drawn = f"it was drawn with seed {seed}, {option('split_seed')} chooses another; " if seed is not None else ""
        raise TaskError(
            f"all {len(rows)} {what} of the {role} split are {value} (from {rows[0].place}): expected "
            f"{'at least two classes' if labelled else 'different scores'}; {drawn}is this split without labels?"
        )


def _classes(kind: str, splits: Mapping[str, Sequence[Example]], alike: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the labels of the train split in order, and a note with their counts."""
    train, *others = (splits[role] for role in SPLITS)
    counts = Counter(row.label for row in train)
    labels = KINDS[kind].classes or class_names(counts)
    if len(labels) > max(2, len(train) // 2):
        raise TaskError(
            f"the train split has {len(labels)} different labels for {len(train)} examples "
            f"(such as {', '.join(repr(label[:40]) for label in labels[:_SHOWN])}): expected classes; "
            f"name the column of the label with {option('columns')}"
        )
    trained = set(labels)
    for role, rows in zip(SPLITS[1:], others, strict=True):
        if unknown := [row for row in rows if row.label not in trained]:
            names = list(dict.fromkeys(row.label for row in unknown))[:_SHOWN]
            raise TaskError(
                f"{counted(len(unknown), 'label')} of the {role} split {'is' if len(unknown) == 1 else 'are'} not in "
                f"the train split: {', '.join(repr(name[:40]) for name in names)} (first: {unknown[0].place}); "
                f"the train split has {'; '.join((', '.join(label[:40] for label in labels[:20]), *alike))}"
            )
    classes = ", ".join(f"{counts[label]} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more classes" if len(labels) > 20 else ""
    return labels, f"read as {kind}; labels of the train split: {classes}{more}"


def _score_range(
    kind: str, rows: Sequence[Example], score_range: tuple[float, float] | None
) -> tuple[tuple[float, float], str]:
    low, high = (
        KINDS[kind].score_range([row.score for row in rows]) if score_range is None else check_range(score_range)
    )
    for row in rows:
        if not low <= row.score <= high:
            raise TaskError(f"{row.place}: expected a score from {low:g} to {high:g}, got {row.score:g}")
    source = "a range detected from the data" if score_range is None else "the given range"
    return (low, high), f"read as {kind}; scaled scores from {low:g} .. {high:g} to 0 .. 1, {source}"


def _examples(rows: Sequence[Example], number: Mapping[str, int], score_range: tuple[float, float] | None) -> Examples:
    return Examples(
        first=tuple(row.first for row in rows),
        second=tuple(row.second for row in rows if row.second is not None) or None,
        targets=tuple(
            float(number[row.label]) if score_range is None else scale(row.score, score_range) for row in rows
        ),
    )


logger = logging.getLogger(__name__)

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
