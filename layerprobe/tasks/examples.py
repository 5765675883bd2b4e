"""Rows of tables -> checked splits of a task. Knows texts, scores and labels with their places, not files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.errors import TaskError
from layerprobe.names import counted
from layerprobe.tasks.columns import Columns, plain_name, task_columns
from layerprobe.tasks.kind import KINDS, LABEL_COLUMNS, detect_kind
from layerprobe.tasks.labels import class_names, label_cell
from layerprobe.tasks.scores import check_range, parse_score, scale
from layerprobe.tasks.splitting import SPLITS, with_all_splits
from layerprobe.tasks.tables import Table
from layerprobe.tasks.texts import Cleaner, LeftOut
from layerprobe.tasks.values import Examples, Task

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a table that have all their cells."""

    rows: tuple[Row, ...]
    """In order."""
    empty: LeftOut
    """Why others are not among them."""
    warnings: tuple[str, ...]
    """What was changed in them."""
    notes: tuple[str, ...]
    """How the table was understood."""
    columns: tuple[str, ...] | None
    """Where texts and target are, by which the other splits are read too."""
    target: int
    """Where the target is."""
    target_name: str | None
    """What its column is called; None in a table without a header."""


def read_rows(table: Table, columns: Columns | None, kind: str | None) -> Rows:
    """Return the rows of a table; raise TaskError if the columns are not known.

    A row whose texts and target are all empty is no row, as a blank line is none; the warnings count these.
    """
    table, places = task_columns(table, columns, kind)
    *texts, target = places
    cleaner, rows, empty, blank = Cleaner(), [], LeftOut(table.name, table.unit), 0
    for i, row in enumerate(table.rows):
        cells = {text: cleaner.clean(row[text]) for text in texts} | {target: row[target]}
        if missing := [column for column, cell in cells.items() if not cell.strip()]:
            blank += len(missing) == len(cells)
            for column in missing if len(missing) < len(cells) else ():
                empty.add(f"in {table.column(column)}", table.numbers[i])
            continue
        first, *second = (cells[text] for text in texts)
        rows.append(Row(first=first, second=second[0] if second else None, cell=row[target], place=table.place(i)))
    left_out = f"{table.name}: left out {counted(blank, 'row')} without texts and {table.column(target)}"
    notes = (left_out,) if blank else ()
    changed = cleaner.warnings(table.name, "pair" if len(texts) == 2 else "text")
    names = tuple(table.header[i] if table.header else str(i) for i in places) if table.inferred else None
    return Rows(
        rows=tuple(rows),
        empty=empty,
        warnings=(*notes, *changed),
        notes=table.notes,
        columns=names,
        target=target,
        target_name=None if table.header is None else table.header[target],
    )


def headless_as(table: Table, train: Rows) -> Table:
    """Return the table of another split, headless where the train table is and the first row has one of its targets."""
    if train.target_name is not None or train.target >= table.width:
        return table
    targets = {row.cell.strip() for row in train.rows}
    return replace(table, headless=table.headless or table.rows[0][train.target].strip() in targets)


def kind_of(train: Rows) -> str:
    """Return the kind of task that the train split belongs to; what does not fit in another split is then an error.

    Many whole numbers are classes or values: TaskError where no name of their column says which.
    """
    rows, cells = train.rows, {label_cell(row.cell) for row in train.rows}
    pairs = any(row.second is not None for row in rows)
    kind = KINDS[detect_kind((row.cell for row in rows), pairs=pairs)]
    named = train.target_name is not None and plain_name(train.target_name) in {*kind.target_columns} - {*LABEL_COLUMNS}
    if cells and not (pairs or kind.labelled or named) and all(cell.lstrip("+-").isdecimal() for cell in cells):
        raise TaskError(
            f"the {len(cells)} different whole numbers of the target could be classes or values: say which, with "
            f"--kind classification or --kind {kind.name} (kind=)"
        )
    return kind.name


def parsed(kind: str, role: str, rows: Sequence[Row], *, skip_empty: bool = False) -> list[Row]:
    """Return the rows with their scores or labels; raise TaskError, with the place, where one is not as expected.

    Rows whose label says that there is none, as -1 does, are left out where `skip_empty`.
    """
    rules = KINDS[kind]
    if not rules.labelled:
        return [replace(row, score=parse_score(row.cell, row.place)) for row in rows]
    labelled = [replace(row, label=rules.read_label(row.cell, row.place)) for row in rows]
    missing = [row for row in labelled if not row.label]
    if missing and not skip_empty:
        raise TaskError(
            f"{len(missing)} of {counted(len(rows), 'label')} of the {role} data are missing "
            f"(first: {missing[0].place}): label or drop them, give another file, or go on without them with "
            "--skip-empty (skip_empty=True)"
        )
    return [row for row in labelled if row.label]


def task_of(
    name: str,
    kind: str,
    splits: Mapping[str, list[Row]],
    *,
    ratios: Sequence[float],
    seed: int,
    score_range: tuple[float, float] | None,
    notes: Sequence[str],
    warnings: Sequence[str],
) -> Task:
    """Return a task of parsed rows, whose missing splits are drawn from the train split.

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
        labels, scale_note = _classes(kind, splits)
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


def _rare(rows: Sequence[Row]) -> str:
    """Return a warning of few distinct texts in many rows, as where columns are swapped; none otherwise."""
    distinct = len({row.pair for row in rows})
    if distinct >= len(rows) / 2:
        return ""
    texts = "the same text," if distinct == 1 else f"{distinct} different texts, such as"
    return f" (all {len(rows)} rows have {texts} {rows[0].first[:40]!r})"


def _check_split(kind: str, role: str, rows: Sequence[Row], *, seed: int | None, rare: str = "") -> None:
    """Raise TaskError if a split, which was drawn with the seed if there is one, is too small or of one target."""
    unit, labelled = KINDS[kind].unit, KINDS[kind].labelled
    if len(rows) < MIN_EXAMPLES:
        advice = f"give more {unit}s, or another file with --{role}" if role != "train" else f"give more {unit}s"
        raise TaskError(f"the {role} split has {len(rows)} {unit}s, expected at least {MIN_EXAMPLES}{rare}: {advice}")
    if len({row.label if labelled else row.score for row in rows}) == 1:
        what, value = ("labels", repr(rows[0].label[:40])) if labelled else ("scores", f"{rows[0].score:g}")
        drawn = f"it was drawn with seed {seed}, --split-seed (seed=) chooses another; " if seed is not None else ""
        raise TaskError(
            f"all {len(rows)} {what} of the {role} split are {value} (from {rows[0].place}): expected "
            f"{'at least two classes' if labelled else 'different scores'}; {drawn}is this split without labels?"
        )


def _classes(kind: str, splits: Mapping[str, Sequence[Row]]) -> tuple[tuple[str, ...], str]:
    """Return the labels of the train split in their order, and a note of how often each is there."""
    train, *others = (splits[role] for role in SPLITS)
    counts = Counter(row.label for row in train)
    labels = KINDS[kind].classes or class_names(counts)
    if len(labels) > max(2, len(train) // 2):
        raise TaskError(
            f"the train split has {len(labels)} different labels for {len(train)} examples "
            f"(such as {', '.join(repr(label[:40]) for label in labels[:_SHOWN])}): expected classes; "
            "name the column of the label with --columns"
        )
    trained = set(labels)
    for role, rows in zip(SPLITS[1:], others, strict=True):
        if unknown := [row for row in rows if row.label not in trained]:
            names = list(dict.fromkeys(row.label for row in unknown))[:_SHOWN]
            raise TaskError(
                f"{counted(len(unknown), 'label')} of the {role} split {'is' if len(unknown) == 1 else 'are'} not in "
                f"the train split: {', '.join(repr(name[:40]) for name in names)} (first: {unknown[0].place}); "
                f"the train split has {', '.join(label[:40] for label in labels[:20])}"
            )
    classes = ", ".join(f"{counts[label]} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more classes" if len(labels) > 20 else ""
    return labels, f"read as {kind}; labels of the train split: {classes}{more}"


def _score_range(
    kind: str, rows: Sequence[Row], score_range: tuple[float, float] | None
) -> tuple[tuple[float, float], str]:
    low, high = (
        KINDS[kind].score_range([row.score for row in rows]) if score_range is None else check_range(score_range)
    )
    for row in rows:
        if not low <= row.score <= high:
            raise TaskError(f"{row.place}: expected a score from {low:g} to {high:g}, got {row.score:g}")
    source = "a range detected from the data" if score_range is None else "the range that was given"
    read = "" if KINDS[kind].pairs else f"read as {kind}; "
    return (low, high), f"{read}scaled scores from {low:g} .. {high:g} to 0 .. 1, {source}"


def _examples(rows: Sequence[Row], number: Mapping[str, int], score_range: tuple[float, float] | None) -> Examples:
    return Examples(
        first=tuple(row.first for row in rows),
        second=tuple(row.second for row in rows if row.second is not None) or None,
        targets=tuple(
            float(number[row.label]) if score_range is None else scale(row.score, score_range) for row in rows
        ),
    )
