"""Rows of tables -> checked splits of a task. Knows texts, scores and labels with their places, not files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.errors import TaskError
from layerprobe.tasks.columns import Columns, task_columns
from layerprobe.tasks.kinds.kind import KINDS, detect_kind
from layerprobe.tasks.labels import class_names
from layerprobe.tasks.scores import check_range, detect_range, parse_score, scale
from layerprobe.tasks.splitting import split_by_ratio
from layerprobe.tasks.tables import Table
from layerprobe.tasks.texts import Cleaner, count
from layerprobe.tasks.values import Examples, Task

SPLITS = ("train", "validation", "test")
MIN_EXAMPLES = 4
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An example as the source has it."""

    first: str
    second: str | None
    """None for single texts."""
    cell: str
    """The cell of the score or label."""
    place: str
    """File and line."""
    score: float = 0.0
    """On the scale of the source, where targets are scores."""
    label: str = ""
    """Where targets are classes."""

    @property
    def pair(self) -> tuple[str, str]:
        """Both texts, or the text and nothing."""
        return self.first, self.second or ""


def read_rows(table: Table, columns: Columns | None, kind: str | None) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows whose texts are not empty, and what was changed in plain words.

    Raises:
        TaskError: If a column is missing or the layout is not known.
    """
    table, (*texts, target) = task_columns(table, columns, kind)
    cleaner, rows = Cleaner(), []
    for i, row in enumerate(table.rows):
        first, *second = (cleaner.clean(row[text]) for text in texts)
        if cleaner.keeps(first, *second):
            rows.append(Row(first=first, second=second[0] if second else None, cell=row[target], place=table.place(i)))
    return rows, cleaner.warnings(table.name, _unit(len(texts) == 2))


def kind_of(splits: Mapping[str, Sequence[Row]]) -> str:
    """Return the kind of task that the train split belongs to; what does not fit in another split is then an error."""
    rows = splits["train"]
    return detect_kind((row.cell for row in rows), pairs=any(row.second is not None for row in rows))


def parsed(kind: str, role: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their scores or labels.

    Raises:
        TaskError: If a score or a label is missing or is not what the kind has; names the place.
    """
    rules = KINDS[kind]
    if not rules.labelled:
        return [replace(row, score=parse_score(row.cell, row.place)) for row in rows]
    labelled = [replace(row, label=rules.read_label(row.cell, row.place)) for row in rows]
    missing = [row for row in labelled if not row.label]
    if missing:
        raise TaskError(
            f"{len(missing)} of {count(len(rows), 'label')} of the {role} data are missing "
            f"(first: {missing[0].place}): label or drop them, or give another file"
        )
    return labelled


def with_all_splits(
    splits: Mapping[str, list[Row]], ratios: Mapping[str, float], seed: int
) -> tuple[dict[str, list[Row]], list[str]]:
    """Draw the splits that are missing from the train split."""
    drawn = [role for role in SPLITS if role == "train" or role not in splits]
    if drawn == ["train"]:
        return dict(splits), []
    train = splits["train"]
    parts = split_by_ratio([row.pair for row in train], [ratios[role] for role in drawn], seed=seed)
    filled = dict(splits) | {role: [train[i] for i in part] for role, part in zip(drawn, parts, strict=True)}
    shares = ", ".join(f"{len(filled[role])} {role}" for role in drawn)
    pairs = bool(train) and train[0].second is not None
    equal = "copies of a pair, turned round or not, are in one split" if pairs else "copies of a text are in one split"
    return filled, [f"split {len(train)} {_unit(pairs)}s at random with seed {seed} into {shares}; {equal}"]


def check_split(kind: str, role: str, rows: Sequence[Row]) -> None:
    """Check that a split has enough examples, and not all of one score or label.

    Raises:
        TaskError: If not.
    """
    unit, labelled = KINDS[kind].unit, KINDS[kind].labelled
    if len(rows) < MIN_EXAMPLES:
        advice = f"give more {unit}s, or another file with --{role}" if role != "train" else f"give more {unit}s"
        raise TaskError(f"the {role} split has {len(rows)} {unit}s, expected at least {MIN_EXAMPLES}: {advice}")
    if len({row.label if labelled else row.score for row in rows}) == 1:
        what, value = ("labels", repr(rows[0].label[:40])) if labelled else ("scores", f"{rows[0].score:g}")
        raise TaskError(
            f"all {len(rows)} {what} of the {role} split are {value} (from {rows[0].place}): expected "
            f"{'at least two classes' if labelled else 'different scores'}; is this split without labels?"
        )


def scored_task(
    name: str,
    kind: str,
    splits: Mapping[str, Sequence[Row]],
    score_range: tuple[float, float] | None,
    notes: Sequence[str],
) -> Task:
    """Return a task whose scores are scaled to 0 .. 1.

    Raises:
        TaskError: If a score is out of the range, or fits no usual range.
    """
    score_range, scaling = _score_range([row for role in SPLITS for row in splits[role]], score_range)
    train, validation, test = (
        _examples(splits[role], [scale(row.score, score_range) for row in splits[role]]) for role in SPLITS
    )
    return Task(
        name=name,
        kind=kind,
        train=train,
        validation=validation,
        test=test,
        score_range=score_range,
        notes=(*notes, scaling),
    )


def labelled_task(name: str, kind: str, splits: Mapping[str, Sequence[Row]], notes: Sequence[str]) -> Task:
    """Return a task whose labels are numbered; the classes are those of the train split.

    Raises:
        TaskError: If there are too many classes, or another split has a label that the train split lacks.
    """
    counts = Counter(row.label for row in splits["train"])
    labels = KINDS[kind].classes or class_names(counts)
    if len(labels) > max(2, len(splits["train"]) // 2):
        raise TaskError(
            f"the train split has {len(labels)} different labels for {len(splits['train'])} examples "
            f"(such as {', '.join(repr(label[:40]) for label in labels[:_SHOWN])}): expected classes; "
            "name the column of the label with --columns"
        )
    number = {label: i for i, label in enumerate(labels)}
    for role in SPLITS[1:]:
        _check_known(role, splits[role], number)
    train, validation, test = (
        _examples(splits[role], [float(number[row.label]) for row in splits[role]]) for role in SPLITS
    )
    classes = ", ".join(f"{counts[label]} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more classes" if len(labels) > 20 else ""
    return Task(
        name=name,
        kind=kind,
        train=train,
        validation=validation,
        test=test,
        labels=labels,
        notes=(*notes, f"read as {kind}; labels of the train split: {classes}{more}"),
    )


def overlap_warnings(task: Task) -> tuple[str, ...]:
    """Say how many texts of the test split are in the train split too."""
    seen, texts = set(task.train.texts), task.test.texts
    n_seen = sum(text in seen for text in texts)
    if not n_seen:
        return ()
    said = f"{n_seen:,} of {len(texts):,} texts of the test split are in the train split too"
    if task.test.second is None:
        return (said,)
    pairs = {frozenset(pair) for pair in _pairs(task.train)}
    return (f"{said} ({count(sum(frozenset(pair) in pairs for pair in _pairs(task.test)), 'whole pair')})",)


def _pairs(examples: Examples) -> list[tuple[str, str]]:
    return list(zip(examples.first, examples.second or (), strict=True))


def _check_known(role: str, rows: Sequence[Row], known: Mapping[str, int]) -> None:
    unknown = [row for row in rows if row.label not in known]
    if unknown:
        names = ", ".join(repr(label[:40]) for label in list(dict.fromkeys(row.label for row in unknown))[:_SHOWN])
        verb = "is" if len(unknown) == 1 else "are"
        raise TaskError(
            f"{count(len(unknown), 'label')} of the {role} split {verb} not in the train split: {names} "
            f"(first: {unknown[0].place}); the train split has {', '.join(label[:40] for label in list(known)[:20])}"
        )


def _score_range(rows: Sequence[Row], given: tuple[float, float] | None) -> tuple[tuple[float, float], str]:
    if given is None:
        low, high = detect_range([row.score for row in rows])
        return (low, high), f"scaled scores from {low:g} .. {high:g} to 0 .. 1, a range detected from the data"
    low, high = check_range(given)
    for row in rows:
        if not low <= row.score <= high:
            raise TaskError(f"{row.place}: expected a score from {low:g} to {high:g}, got {row.score:g}")
    return (low, high), f"scaled scores from {low:g} .. {high:g} to 0 .. 1, the range that was given"


def _examples(rows: Sequence[Row], targets: Sequence[float]) -> Examples:
    second = tuple(row.second for row in rows if row.second is not None)
    return Examples(first=tuple(row.first for row in rows), second=second or None, targets=tuple(targets))


def _unit(pairs: bool) -> str:
    return "pair" if pairs else "text"
