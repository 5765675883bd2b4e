"""Rows of data: files, folders of splits, data sets of the Hub and values in memory, by their columns.

Every kind of task reads its data here: it names its columns (a `ColumnLayout`) and makes an item of each `Row`, see
`read_rows`. Columns have usual names or are requested; nothing is concluded from their cells.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from layerprobe.errors import TaskError, option
from layerprobe.files.inputs import from_home
from layerprobe.names import counted
from layerprobe.tasks.cells import TableLog, UnusableRowError, check_left_out, is_number
from layerprobe.tasks.formats import (
    DELIMITERS,
    SUFFIXES,
    Format,
    Grid,
    Readers,
    check_format,
    other_delimiter,
    read_grid,
    with_points,
)
from layerprobe.tasks.kind import KINDS, LABEL_COLUMNS
from layerprobe.tasks.sources import grid_of, grids_of, hub_grids, is_on_hub, split_files
from layerprobe.tasks.values import RATIOS, TaskSettings

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Input of a kind's loader: data, name and settings of a task."""

    data: Mapping[str, object]
    """Files, names of data sets, or data in memory, by split, train first. Missing splits are found beside it or
    drawn."""
    name: str
    """Name of the task."""
    settings: TaskSettings
    """Settings for reading the data."""
    ratios: tuple[float, float, float] = RATIOS
    """Shares of train, validation and test, if splits are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """The columns whose cells make an item: their names in messages, each with its usual names, see `plain_name`."""

    columns: Mapping[str, tuple[str, ...]]
    """Columns that are required."""
    further: str = ""
    """First word of the names of any number of further columns, such as negative."""
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that may be missing, and are never requested: their cells are then None."""
    target: bool = False
    """Whether the last column is a score or label, so that a table without header has the columns in this order."""
    lists: bool = False
    """Whether cells may be lists, mappings or bytes."""
    requestable: bool = True
    """Whether a user can request the columns; if not, they need their usual names."""

    def __str__(self) -> str:
        return ",".join(self.columns) + (f", and optionally {self.further}s" if self.further else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the data: its cells in the columns of a `ColumnLayout`."""

    values: tuple[Any, ...]
    """Cells of the required, the optional and the further columns, in this order."""
    columns: tuple[str, ...]
    """Names of the columns in the data, for messages."""
    place: str
    """File and line."""
    log: TableLog
    """Counts changes in texts."""

    def texts(self, *, without: int | None = None) -> tuple[str, ...]:
        """Return all cells, or all but one, as cleaned texts.

        Raises:
            TaskError: If a cell is a list, a mapping or bytes.
            UnusableRowError: If a text is empty.
        """
        texts, empty = list[str](), list[str]()
        for i, (name, value) in enumerate(zip(self.columns, self.values, strict=True)):
            if i == without:
                continue
            if not isinstance(value, str):
                raise TaskError(f"{self.place}: expected a text or a number in {name}, got {str(value)[:40]}")
            texts.append(self.log.clean(value))
            if not texts[-1].strip():
                empty.append(name)
        if empty:
            raise UnusableRowError(f"with an empty {' and '.join(empty)}")
        return tuple(texts)


def read_rows(
    source: TaskSource,
    layouts: Sequence[ColumnLayout],
    item_of: Callable[[Row], ItemT],
    *,
    item: str,
    readers: Readers | None = None,
) -> tuple[dict[str, list[ItemT]], list[str], list[str]]:
    """Return the items of the rows of each split, train first, with notes and warnings.

    The source is a file by its ending (CSV, TSV, TXT, JSONL, Parquet), a folder of splits, the name of a data set, a
    DataFrame, a `Dataset`, columns, or rows. Its columns are those of the settings, in the order of a layout, or those
    of the first layout whose usual names it has. A header is a first row with such a name, or with a requested one.

    Args:
        source: The data and the settings for reading them.
        layouts: The columns of an item, in one or several ways.
        item_of: Function from a row to its item; it raises UnusableRowError if there is none.
        item: Name of an item.
        readers: Readers of files that are not tables, by ending: they return a `Grid`, one row per item.

    Raises:
        TaskError: If a file cannot be read, a column is missing, or rows cannot be used and may not be skipped.
    """
    grids, notes = _grids(source, readers)
    roles = sorted(grids, key=lambda role: role != "train")
    placed = (find_columns(grids[role], source.settings.columns, layouts, is_first=role == "train") for role in roles)
    read, more, warnings = items_of(placed, item_of, item=item, skip=source.settings.skipped)
    return dict(zip(roles, read, strict=True)), [*notes, *more], warnings


def items_of(
    grids: Iterable[tuple[Grid, Sequence[int | None]]],
    item_of: Callable[[Row], ItemT],
    *,
    item: str,
    skip: Collection[str],
) -> tuple[list[list[ItemT]], list[str], list[str]]:
    """Return the items of the rows of each grid, with notes and warnings; TaskError for unusable rows.

    Rows with only empty cells are ignored like blank lines; a warning counts them.

    Args:
        grids: Grids with the places of the columns whose cells make an item, None for a missing one; each is requested
            after the one before was read.
        item_of: Function from a row to its item; it raises UnusableRowError if there is none.
        item: Name of an item.
        skip: The active arguments that leave unusable rows out.
    """
    read = list[list[ItemT]]()
    logs = list[TableLog]()
    notes, warnings, changed = list[str](), list[str](), list[str]()
    for grid, places in grids:
        log = TableLog(grid.name, grid.unit)
        items = list[ItemT]()
        blank = 0
        names = tuple("" if place is None else grid.column(place) for place in places)
        for i, row in enumerate(grid.rows):
            values = tuple(None if place is None else row[place] for place in places)
            if not any(value.strip() if isinstance(value, str) else value is not None for value in values):
                blank += 1
                continue
            try:
                items.append(item_of(Row(values=values, columns=names, place=grid.place(i), log=log)))
            except UnusableRowError as error:
                log.leave_out(str(error), error.name or grid.numbers[i], error.skip)
        if blank:
            changed.append(f"{grid.name}: left out {counted(blank, 'row')} without {' and '.join(filter(None, names))}")
        changed += log.warnings
        read.append(items)
        logs.append(log)
        notes += grid.notes
        warnings += grid.warnings
    return read, notes, [*warnings, *check_left_out(logs, skip=skip, item=item), *changed]


def _grids(source: TaskSource, readers: Readers | None) -> tuple[dict[str, Grid], list[str]]:
    """Return grids by split, and notes on their origin; given data takes precedence over files found."""
    format, name = source.settings.format, source.name
    data = source.data["train"]
    others = {
        role: _grid(other, format, f"{name} {role}", readers) for role, other in source.data.items() if role != "train"
    }
    if isinstance(data, Grid):
        return {"train": data}, []
    if not isinstance(data, (str, Path)):
        return {**read_alike(grids_of(data, name), format, name), **others}, []
    if is_on_hub(data):
        return {**read_alike(hub_grids(str(data)), Format() if others else format, name), **others}, []
    suffixes = (*readers, ".jsonl", ".parquet") if readers else SUFFIXES
    files, notes = split_files(from_home(data), others, suffixes=suffixes)
    return {role: read_grid(file, format, readers) for role, file in files.items()} | others, notes


def _grid(data: object, format: Format, name: str, readers: Readers | None) -> Grid:
    if isinstance(data, (str, Path)):
        return read_grid(from_home(data), format, readers)
    return read_alike({name: grid_of(data, name)}, format, name)[name]


def read_alike(grids: Mapping[str, Grid], format: Format, name: str) -> dict[str, Grid]:
    """Return grids from memory or the Hub, with points instead of decimal commas."""
    check_format(name, format, ("decimal",))
    return {role: with_points(grid, format.decimal) for role, grid in grids.items()}


Columns = str | Sequence[str | int]

# Lower case, without spaces, underscores and hyphens.
SENTENCE_NAMES = (
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("first", "second"),
    ("s1", "s2"),
    ("#1string", "#2string"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("word1", "word2"),
    ("sent1", "sent2"),
    ("text", "textpair"),
    ("question", "sentence"),
)
TEXT_NAMES = ("text", "texts", "sentence", "sentences")
ID_NAMES = ("id", "queryid", "corpusid", "documentid", "docid", "passageid", "qid", "pid")
TITLE_NAMES = ("title",)
QUERY_NAMES = ("query", "queries", "question", "questions", "anchor")
DOCUMENT_NAMES = ("document", "documents", "passage", "passages", "answer", "positive", "context")
NEGATIVE_NAMES = ("negative", "negative1")
RELEVANCE_NAMES = ("relevance", "score", "label", "gain", "rel")
_TEXT_LAYOUTS = [
    *(ColumnLayout(columns={"first": (first,), "second": (second,)}) for first, second in SENTENCE_NAMES),
    ColumnLayout(columns={"text": TEXT_NAMES}),
]
_HEADER_NAMES = {
    *(*TEXT_NAMES, *ID_NAMES, *TITLE_NAMES, *QUERY_NAMES, *DOCUMENT_NAMES, *NEGATIVE_NAMES, *RELEVANCE_NAMES),
    *(*LABEL_COLUMNS, *(name for names in SENTENCE_NAMES for name in names)),
}
"""Names that show that a first row is a header."""
_COLUMNS, _CELLS = 40, 8
"""Largest numbers of column names, and of cells of a first row, in an error message."""


def layouts_of(kind: str | None) -> list[ColumnLayout]:
    """Return the layouts of texts or pairs with a target, of one kind or of all."""
    kinds = [kind for kind in KINDS.usable().values() if not kind.loader] if kind is None else [KINDS[kind]]
    layouts = list[ColumnLayout]()
    for texts in _TEXT_LAYOUTS:
        pairs = len(texts.columns) == 2
        targets = tuple(name for kind in kinds if kind.pairs == pairs for name in kind.target_columns)
        labelled = not pairs if kind is None else KINDS[kind].labelled
        if targets:
            layouts.append(
                ColumnLayout(columns={**texts.columns, "label" if labelled else "score": targets}, target=True)
            )
    return layouts


def find_columns(
    grid: Grid, asked: Columns | None, layouts: Sequence[ColumnLayout], *, is_first: bool = True
) -> tuple[Grid, tuple[int | None, ...]]:
    """Return a grid without its header row, and the places of the columns of a layout; None for a missing one.

    Args:
        grid: The cells.
        asked: Requested columns, in the order of a layout: names, or indices from 0.
        layouts: Possible layouts; without requested columns, the first one whose usual names are found.
        is_first: Whether these are the data whose first row must be certain to be a header or none.

    Raises:
        TaskError: If columns are missing or twice, or cells are neither text nor number.
    """
    titles = dict.fromkeys(map(str, layouts))
    if asked is not None:
        names = column_names(asked)
        fitting = (
            layout
            for layout in layouts
            if len(names) == len(layout.columns) or (layout.further and len(names) > len(layout.columns))
        )
        layout = next(fitting, None)
        if layout is None or len(set(names)) < len(names):
            raise TaskError(f"expected different columns as {', or as '.join(titles)}, got {','.join(names)!r}")
        grid = with_named_header(grid, names)
        places: list[int | None] = [place_of(grid, name) for name in names]
        optional = [_named(grid.header or (), usual) for usual in layout.optional.values()]
        places[len(layout.columns) : len(layout.columns)] = optional
        return _checked(grid, layout, tuple(places), is_first=is_first)
    grid = with_named_header(grid)
    for layout in layouts:
        if (by_name := _usual_places(grid, layout)) is not None:
            if layout.target and len(titles) > 1:
                grid = _with_unused(grid, layout, [place for place in by_name if place is not None])
            return _checked(grid, layout, by_name, is_first=False)
    for layout in layouts:
        if layout.target and grid.header is None and grid.width == len(layout.columns):
            numbers = any(all(is_number(row[i]) for row in grid.rows) for i in range(grid.width - 1))
            if numbers or _delimiter_in_all(grid) or (is_first and _may_be_header(grid, grid.width - 1)):
                break
            *texts, target = map(grid.column, range(grid.width))
            if is_first:
                grid = replace(grid, used=f"texts in {' and '.join(texts)}, target in {target}")
            return _checked(grid, layout, tuple(range(grid.width)), is_first=False)
    raise _unknown_columns(grid, layouts[0] if layouts[0].target else layouts[-1])


def text_columns(grid: Grid, asked: Columns | None, further: Sequence[str] = ()) -> tuple[Grid, tuple[int, ...]]:
    """Return a grid without its header row, and the places of its texts; raise TaskError if unknown.

    Args:
        grid: The cells.
        asked: Requested columns; by default those with usual names, or all but the last of a table of two or three
            columns without header, which has a score or label there.
        further: Names of other columns, which show that there is a header.
    """
    names = [] if asked is None else column_names(asked)
    grid = with_named_header(grid, [*names, *further])
    if asked is not None:
        places = tuple(place_of(grid, name) for name in names)
    elif grid.width == 1 and not _has_other_delimiter(grid):
        places = (0,)
    elif (named := next(filter(None, (_usual_places(grid, layout) for layout in _TEXT_LAYOUTS)), None)) is not None:
        places = tuple(place for place in named if place is not None)
    elif grid.header is None and grid.width in (2, 3):
        places = tuple(range(grid.width - 1))
        grid = replace(grid, used=f"texts in {' and '.join(map(grid.column, places))}")
    else:
        raise _unknown_columns(grid, ColumnLayout(columns={"the texts": ()}))
    grid.check_cells(places)
    return grid, places


def with_named_header(grid: Grid, asked: Sequence[str] = ()) -> Grid:
    """Return a grid with its first row as header if that has a usual or a requested name, which no other row has.

    0, 1, 2 and so on are the usual names of pandas.
    """
    if grid.header is not None or grid.headless:
        return grid
    first, *others = grid.rows
    if len(first) > 1 and first == tuple(map(str, range(len(first)))):
        return grid.with_header()
    for place, cell in enumerate(first):
        if isinstance(cell, str) and (
            (plain_name(cell) in _HEADER_NAMES and all(row[place] != cell for row in others))
            or (cell.strip() in asked and not _is_index(cell.strip()))
        ):
            return grid.with_header()
    return grid


def _usual_places(grid: Grid, layout: ColumnLayout) -> tuple[int | None, ...] | None:
    """Return the places of the columns of a layout by their usual names; None if a required one is missing."""
    header = grid.header or ()
    places = [_named(header, names) for names in layout.columns.values()]
    if not header or None in places:
        return None
    plain = [plain_name(name) for name in header]
    further = [i for i, name in enumerate(plain) if layout.further and name.startswith(layout.further)]
    every = (*places, *(_named(header, names) for names in layout.optional.values()), *further)
    for place in every:
        if place is not None and plain.count(plain[place]) > 1:
            raise _twice(grid, header[place])
    return every


def column_names(asked: Columns) -> list[str]:
    """Return requested columns: names, or indices from 0."""
    items: Iterable[str | int] = asked.split(",") if isinstance(asked, str) else asked
    return [str(item).strip() for item in items]


def place_of(grid: Grid, column: str) -> int:
    """Return the place of a column, by its name or index from 0; raise TaskError if it is missing."""
    if grid.header is not None and column in grid.header:
        if grid.header.count(column) > 1:
            raise _twice(grid, column)
        return grid.header.index(column)
    if _is_index(column) and int(column) < grid.width:
        return int(column)
    raise TaskError(f"{grid.name} has no column {column!r}; it has {_shown_columns(grid)}")


def plain_name(name: str) -> str:
    """Return a name in lower case, without spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _shown_columns(grid: Grid) -> str:
    """Return the names of the columns, or the first row, for messages."""
    if grid.width == 0:
        return "no columns"
    if grid.header is not None:
        names = ", ".join(_short(name) or "(no name)" for name in grid.header[:_COLUMNS])
        more = f" and {len(grid.header) - _COLUMNS} more" if len(grid.header) > _COLUMNS else ""
        return f"the columns {names}{more}"
    first = grid.rows[0]
    cells = ", ".join(f"{i}: {_short(cell)!r}" for i, cell in enumerate(first[:_CELLS]))
    more = f" and {len(first) - _CELLS} more" if len(first) > _CELLS else ""
    return f"no header and the first row {cells}{more}"


def _unknown_columns(grid: Grid, layout: ColumnLayout) -> TaskError:
    """Return the error for a table without the usual names of a layout: its columns, and an option to choose them."""
    names, has = ",".join(layout.columns), _shown_columns(grid)
    if not layout.requestable:
        return TaskError(f"{grid.name}: expected the columns {names}; it has {has}")
    start = f"{grid.name}: cannot tell which columns are {names}; it has {has}"
    first = grid.header or grid.rows[0]
    if (delimiter := other_delimiter(first) or _delimiter_in_all(grid)) is not None:
        name = option("format", f"delimiter={delimiter}")
        return TaskError(f"{start}: if a {delimiter} separates the fields, choose {name}")
    header = grid.header or ()
    if layout.target and _named(header, QUERY_NAMES) is not None and _named(header, DOCUMENT_NAMES) is not None:
        kinds = ["retrieval"]
        if any(plain_name(name).startswith(NEGATIVE_NAMES) for name in header):
            kinds.append("triplets")
        choose = " or ".join(option("kind", kind) for kind in kinds)
        return TaskError(f"{grid.name}: it has {has}, which suggest another kind of task: choose {choose}")
    advice = f"name {names} by column or index from 0"
    if len(first) >= len(layout.columns):
        places = list(range(len(layout.columns)))
        if layout.target:
            places[-1] = len(first) - 1
        numbered = grid.header is None and not _may_be_header(grid, places[-1])
        cells = [str(cell) for cell in first]
        chosen = [cells[place].strip() for place in places]
        numbered = numbered or any("," in cell or not cell or is_number(cell) for cell in chosen)
        example = ",".join(map(str, places) if numbered else chosen)
        advice += f", for example {option('columns', example)}"
    return TaskError(f"{start}: {advice}")


def _checked(
    grid: Grid, layout: ColumnLayout, places: tuple[int | None, ...], *, is_first: bool
) -> tuple[Grid, tuple[int | None, ...]]:
    present = [place for place in places if place is not None]
    if not layout.lists:
        grid.check_cells(present)
    if is_first and layout.target and grid.header is None and _may_be_header(grid, present[-1]):
        raise TaskError(
            f"{grid.name}: the first row could be a header, with {_short(grid.rows[0][present[-1]])!r} as the name of "
            f"the target: choose {option('format', 'header=yes')} or {option('format', 'header=no')}"
        )
    return grid, places


def _may_be_header(grid: Grid, target: int) -> bool:
    """Return whether the first target is no number, and no other row has it."""
    if grid.headless or target in grid.nested:
        return False
    first, *others = (row[target] for row in grid.rows)
    return not is_number(first) and bool(others) and first not in others


def _with_unused(grid: Grid, layout: ColumnLayout, places: Sequence[int]) -> Grid:
    """Return a grid with a note on columns that could be the target, too, by their names."""
    *texts, target = map(grid.column, places)
    (*_, usual) = layout.columns.values()
    names = [plain_name(name) for name in grid.header or ()]
    also = [grid.column(i) for i, name in enumerate(names) if i not in places and name in usual]
    if not also:
        return grid
    return replace(grid, used=f"texts in {' and '.join(texts)}, target in {target}, {' and '.join(also)} not used")


def _has_other_delimiter(grid: Grid) -> bool:
    """Return whether the first row of a single column is a header with another delimiter."""
    (cell,) = grid.header or grid.rows[0]
    return any(plain_name(part) in _HEADER_NAMES for mark in DELIMITERS.values() for part in str(cell).split(mark)[1:])


def _delimiter_in_all(grid: Grid) -> str | None:
    """Return the name of a delimiter other than a comma that is in the first cell of every row."""
    delimiters = {name: mark for name, mark in DELIMITERS.items() if mark != ","}
    cells = [str(row[0]) for row in grid.rows if row]
    return next((name for name, mark in delimiters.items() if cells and all(mark in cell for cell in cells)), None)


def _is_index(column: str) -> bool:
    return re.fullmatch("[0-9]{1,6}", column) is not None


def _named(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the place of the first of these names that a header has."""
    plain = [plain_name(name) for name in header]
    return next((plain.index(name) for name in names if name in plain), None)


def _twice(grid: Grid, name: str) -> TaskError:
    return TaskError(f"{grid.name} has several columns {_short(name)!r}: rename them, or name columns by index from 0")


def _short(cell: object) -> str:
    return " ".join(str(cell).split())[:30]
