"""Checked splits of a task from rows of tables. Knows texts, scores and labels with their places, not files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.errors import TaskError, option
from layerprobe.names import counted
from layerprobe.tasks.cells import check_range, class_names, label_cell, parse_score, scale, spelled_alike
from layerprobe.tasks.kind import KINDS, LABEL_COLUMNS, detect_kind
from layerprobe.tasks.rows import Row, plain_name
from layerprobe.tasks.splitting import MIN_EXAMPLES, SPLITS, with_all_splits
from layerprobe.tasks.values import Examples, Task

_SHOWN = 5


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


def example_of(row: Row) -> Example:
    """Return the example of a row: one text or two, and the target."""
    first, *second, cell = row.texts()
    return Example(first=first, second=second[0] if second else None, cell=cell, place=row.place)


def kind_of(rows: Sequence[Example], column: str) -> str:
    """Return the kind of task that rows belong to.

    Many whole numbers are classes or values: TaskError if the name of their column does not decide.
    """
    cells, pairs = {label_cell(row.cell) for row in rows}, any(row.second is not None for row in rows)
    kind = KINDS[detect_kind((row.cell for row in rows), pairs=pairs)]
    named = plain_name(column) in {*kind.target_columns} - {*LABEL_COLUMNS}
    if cells and not (pairs or kind.labelled or named) and all(cell.lstrip("+-").isdecimal() for cell in cells):
        labelled = next(one for one in KINDS.usable().values() if one.labelled and not (one.pairs or one.loader))
        raise TaskError(
            f"the {len(cells)} different whole numbers of the target could be classes or values: say which, with "
            f"{option('kind', labelled.name)} or {option('kind', kind.name)}"
        )
    return kind.name


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
