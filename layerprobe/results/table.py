"""A result as one table with charts of its columns: the source of terminal, page, CSV, JSON, Parquet and DataFrame.

Knows columns, the format of their cells, axes and captions; no HTML and no result. Draws nothing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from layerprobe.errors import DataError, LayerProbeError, one_line
from layerprobe.names import percentage

if TYPE_CHECKING:
    import pandas as pd

Bounds = tuple[float, float]
"""Low and high end of an interval."""
Form = str | Callable[[Any], str]
"""Format of a value on screens: a format such as `.2f`, or a function."""
SMALLEST_P = 1e-10
FILES = (".csv", ".parquet", ".pq", ".tex")
# Texts that a spreadsheet may take for a formula (OWASP, "CSV injection"), except signed numbers.
_FORMULA = re.compile(r"(?![+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\Z)[=+\-@\t\r\n＝＋－＠]", re.ASCII | re.IGNORECASE)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Turn the missing package of an import that shows results into one line, a LayerProbeError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("layerprobe"):
            raise
        package = error.name.partition(".")[0]
        raise LayerProbeError(f"{package}, needed to show results, is not installed: pip install {package}") from error


@dataclass(frozen=True, slots=True)
class Quantity:
    """The kind of number in a column: only numbers of one unit and one split share an axis."""

    unit: str
    """Their unit, such as `Spearman × 100` or `ms`."""
    split: str = ""
    """The split they were measured on: validation, test or all; empty where there is none."""
    best: Literal["higher", "lower", ""] = ""
    """The better direction; empty if there is none."""

    @property
    def title(self) -> str:
        """The title of their axis.

        Examples:
            >>> Quantity("Spearman × 100", "test").title
            'Test Spearman × 100'
        """
        split = "" if self.split == "all" else self.split
        title = f"{split} {self.unit}".strip()
        first = title.split()[0]  # nDCG stays as it is
        return title if first != first.lower() else f"{title[:1].upper()}{title[1:]}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its values and their format.

    A value is a number, a text, a flag, a tuple of numbers or None. An interval is a pair of ends: one cell on screens,
    two columns with the endings `_low` and `_high` in files.
    """

    name: str
    """Name in files and DataFrames: lower case, words joined by `_`."""
    values: Sequence[object]
    """One value per row."""
    title: str = ""
    """Title on screens; by default the name."""
    form: Form = ""
    """Format on screens of a value, or of each number in a tuple."""
    unit: str = ""
    """Unit of the numbers, such as ms; shown after the title."""
    meaning: str = ""
    """Explanation of the column, a sentence."""
    interval: bool = False
    """Whether the values are pairs of low and high ends."""
    shown: bool = True
    """Whether screens show the column; otherwise only files have it."""
    more: bool = False
    """Whether screens show it only with all columns; without them, at most six columns are shown."""
    dtype: str = ""
    """Dtype in DataFrames and Parquet, if the values do not tell it; by default numbers."""
    quantity: Quantity | None = None
    """Kind of its numbers, for charts."""
    scale: float = 1.0
    """Factor for numbers on screens and axes, such as 1000 for seconds in milliseconds."""
    over: str = ""
    """Source of error of an interval, such as `over new pairs`."""

    @property
    def head(self) -> str:
        """The title with its unit."""
        title = one_line(self.title or self.name.replace("_", " "))
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as screens show them, numbers with the same digits; empty for None."""
        values = self.values if self.scale == 1.0 else [_scaled(value, self.scale) for value in self.values]
        form = same_digits(self.form, values)
        return tuple(self._cell(value, form) for value in values)

    def _cell(self, value: object, form: Form) -> str:
        if value is None:
            return ""
        if isinstance(value, tuple):
            return (" to " if self.interval else " ").join(_written(part, form) for part in value)
        return _written(value, form)

    @property
    def kind(self) -> str:
        """The dtype in a DataFrame; empty where pandas infers it."""
        kinds = {type(value) for value in self.values if value is not None}
        return self.dtype or ("string" if kinds == {str} else "" if kinds else "float64")

    @property
    def names(self) -> tuple[str, ...]:
        """The names in files: one, or two for the ends of an interval."""
        return (f"{self.name}_low", f"{self.name}_high") if self.interval else (self.name,)

    @property
    def data(self) -> dict[str, tuple[object, ...]]:
        """The values in files by name: one column, or two for the ends of an interval."""
        if not self.interval:
            return {self.name: tuple(self.values)}
        ends: list[Any] = [(None, None) if value is None else value for value in self.values]
        return {name: tuple(value[i] for value in ends) for i, name in enumerate(self.names)}


def columns_of(rows: Iterable[Any]) -> Callable[..., Column]:
    """Return a function that makes a column from rows, by the name of an attribute or a function of a row.

    A row of None gives an empty cell; further arguments are those of a column.

    Examples:
        >>> column = columns_of([3 + 4j, None])
        >>> column("real").values, column("size", abs, form=".1f").cells
        ((3.0, None), ('5.0', ''))
    """
    rows = tuple(rows)

    def column(name: str, of: Callable[[Any], object] | None = None, **about: Any) -> Column:
        return Column(name, tuple(None if row is None else (of or attrgetter(name))(row) for row in rows), **about)

    return column


def layer_columns(layers: Iterable[int], parameters: Sequence[int] = ()) -> tuple[Column, ...]:
    """Return the column of layers and, if given, the column of parameters of the truncated models."""
    layer = Column("layer", tuple(layers), meaning="Blocks kept.")
    about = "Parameters of the truncated model, without pooler."
    return (
        (layer, Column("parameters", parameters, form=millions, meaning=about, more=True)) if parameters else (layer,)
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One curve, or one set of points, of a chart."""

    column: str
    """The column of the numbers to draw."""
    interval: str = ""
    """The column of its intervals."""
    band: str = ""
    """The column of wider intervals, which hold for the whole curve at once."""
    seeds: str = ""
    """The column of scores by seed, one tuple per row."""
    run: str = ""
    """The column that marks numbers measured in a run; the others are inferred and drawn hollow."""
    joined: bool = True
    """Whether a line joins the points."""
    mark: Literal["", "diamond"] = ""
    """The shape of the points; used for a split other than that of the first line."""
    name: str = ""
    """Its name in the legend; by default the title of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of some columns of a table.

    Rows without a number are left out; rows without an x become horizontal lines. Rows that the table marks look
    different, and the caption explains them.
    """

    lines: tuple[Line, ...]
    name: str = "chart"
    """Its name, unique on a page."""
    heading: str = ""
    """The heading of its section; the first chart of a page needs none."""
    kind: Literal["line", "bars", "cost", "map", "staircase"] = "line"
    """line: joined points over x; bars: from 0; cost: labelled points of quality against a cost, on a logarithmic axis;
    map: colours by x and y; staircase: one row per model size, with its blocks (x) and lines of agreement and loss."""
    x: str = "layer"
    y: str = ""
    """The column of the vertical axis of a map."""
    where: tuple[tuple[str, object], ...] = ()
    """Columns and the values that rows must have there to be drawn."""
    by: str = ""
    """The column, or columns separated by spaces, with one curve per value, such as model."""
    label: str = ""
    """The column with the labels of points against a cost; by default the first one."""
    x_interval: str = ""
    """The column with the intervals of x."""
    band: bool = False
    """Whether intervals are drawn as shades instead of bars."""
    floor: str = ""
    """The column with the score of a trivial baseline."""
    limit: float | None = None
    """A limit to draw as a line, such as the largest loss allowed."""
    zero: str = ""
    """The name of a line at 0, such as the whole model."""
    chosen: str = "chosen"
    """Caption of the rows that the table marks as chosen; `drops` and `enough` likewise."""
    drops: str = "drop layers"
    enough: str = "the smallest that is good enough"
    hover: tuple[str, ...] = ()
    """Further columns to show on hover."""

    def quantity(self, table: Table) -> Quantity:
        """Return the quantity on its axis."""
        return self.quantities(table)[0]

    def quantities(self, table: Table) -> list[Quantity]:
        """Return the quantity of each line on its axis, all of one unit and split; other shapes may have another."""
        lines = [line for line in self.lines if line is self.lines[0] or not (line.mark or self.kind == "staircase")]
        drawn = [table.column(line.column) for line in lines]
        return [column.quantity or Quantity(column.head) for column in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of columns of equal length, shown and written by every result."""

    columns: tuple[Column, ...]
    title: str = "Table of layers"
    notes: tuple[str, ...] = ()
    """Sentences below the table on screens."""
    marks: tuple[str | None, ...] = ()
    """Mark of each row on a page: chosen, candidate (may be the best) or drop."""
    charts: tuple[Chart, ...] = ()
    """Figures of its columns, the most important first."""

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    def with_columns(self, *columns: Column, after: str | None = None) -> Table:
        """Return the table with further columns, after the column `after` or at the end."""
        names = [column.name for column in self.columns]
        place = len(names) if after is None else names.index(after) + 1
        return replace(self, columns=(*self.columns[:place], *columns, *self.columns[place:]))

    def column(self, name: str, *, interval: bool = False) -> Column:
        """Return the column with a name; a number and its interval may share one."""
        named = [column for column in self.columns if column.name == name]
        return next((column for column in named if column.interval == interval), named[0])

    def where(self, name: str, value: object) -> Table:
        """Return the rows with a value in a column."""
        rows = [row for row, cell in enumerate(self.column(name).values) if cell == value]
        columns = (replace(column, values=[column.values[row] for row in rows]) for column in self.columns)
        return replace(self, columns=tuple(columns), marks=tuple(self.marks[row] for row in rows) if self.marks else ())

    def named(self, **names: str) -> Table:
        """Return the table with constant first columns that identify its rows."""
        columns = (Column(column, (name,) * len(self), dtype="string") for column, name in names.items())
        return replace(self, columns=(*columns, *self.columns))

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns on screens: those with content in at least one row."""
        return tuple(column for column in self.columns if column.shown and (not len(self) or any(column.cells)))

    @property
    def first(self) -> tuple[Column, ...]:
        """The columns on screens unless all columns are requested."""
        return tuple(column for column in self.shown if not column.more)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each shown column holds numbers, which are aligned to the right."""
        return tuple(all(map(_is_number, column.cells)) for column in self.shown)

    @property
    def lines(self) -> Iterator[tuple[str, ...]]:
        """The rows as screens show them."""
        return zip(*(column.cells for column in self.shown), strict=True)

    @property
    def data(self) -> dict[str, tuple[object, ...]]:
        """The columns in files, by name."""
        return {name: values for column in self.columns for name, values in column.data.items()}

    def text(self) -> str:
        """Return aligned columns, words left and numbers right, with the notes below."""
        columns = [[column.head, *column.cells] for column in self.shown]
        widths = [max(map(len, column)) for column in columns]
        numeric = self.numeric
        written = [_aligned(row, widths, numeric) for row in zip(*columns, strict=True)]
        return "\n".join([*written[:1], "  ".join("-" * width for width in widths), *written[1:], *self.notes])

    def records(self) -> list[dict[str, object]]:
        """Return one mapping per row, for JSON."""
        data = self.data
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]

    def csv(self) -> str:
        """Return the rows as CSV: full precision, empty for None, flags as 0 and 1, see `csv_text`."""
        data = self.data
        return csv_text(data, zip(*data.values(), strict=True))

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame.

        Raises:
            LayerProbeError: If pandas is not installed.
        """
        with importing():
            import pandas as pd

        frame = pd.DataFrame(self.data)
        return frame.astype({name: column.kind for column in self.columns if column.kind for name in column.names})

    def latex(self) -> str:
        """Return the table as LaTeX (booktabs): its cells as screens show them, its notes as comments above.

        Raises:
            LayerProbeError: If pandas or jinja2 is not installed.
        """
        with importing():
            import jinja2  # noqa: F401 - pandas needs it
            import pandas as pd

        columns = self.shown
        frame = pd.DataFrame(list(self.lines), columns=[column.head for column in columns])
        sides = "".join("r" if all(map(_is_number, column.cells)) else "l" for column in columns)
        tabular = str(frame.to_latex(index=False, escape=True, column_format=sides))
        # the oldest fonts of LaTeX print other signs instead of these two
        tabular = tabular.replace("<", r"\textless{}").replace(">", r"\textgreater{}")
        return "".join(f"% {' '.join(note.split())}\n" for note in self.notes) + tabular

    def save(self, path: str | Path) -> Path:
        """Write the table as CSV, Parquet or LaTeX, by the ending of the file, and return the path.

        Raises:
            DataError: If the file has another ending.
            LayerProbeError: If the file cannot be written.
        """
        from layerprobe.files.atomic import write_file

        target = Path(path)
        content = self.csv().encode()
        if (suffix := target.suffix.lower()) not in FILES:
            raise DataError(f"cannot save {target.name}: use an ending of {', '.join(FILES)}")
        if suffix == ".tex":
            content = self.latex().encode()
        elif suffix != ".csv":
            buffer = io.BytesIO()
            self.to_pandas().to_parquet(buffer, index=False)
            content = buffer.getvalue()
        return write_file(target, content)


def stacked(tables: Sequence[Table], *, by: Sequence[str] = ()) -> Table:
    """Return tables with the same columns as one table, with the notes of all.

    Columns of `by`, which distinguish the tables, are shown if their values differ.
    """
    columns = (_joined(columns, by) for columns in zip(*(table.columns for table in tables), strict=True))
    return replace(
        tables[0],
        columns=tuple(columns),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
        marks=tuple(mark for table in tables for mark in table.marks or (None,) * len(table)),
    )


def _joined(columns: Sequence[Column], by: Sequence[str]) -> Column:
    values = tuple(value for column in columns for value in column.values)
    first = next((column for column in columns if any(column.cells)), columns[0])
    return replace(first, values=values, shown=len(set(values)) > 1 if first.name in by else first.shown)


def _aligned(row: Iterable[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = (cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True))
    return "  ".join(cells).rstrip()


def _is_number(cell: str) -> bool:
    return cell == "" or cell.lstrip("+-<>±")[:1].isdigit()


def _scaled(value: Any, scale: float) -> Any:
    if isinstance(value, tuple):
        return tuple(scale * part for part in value)
    return None if value is None else scale * value


def _written(value: object, form: Form) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return one_line(form(value) if callable(form) else format(value, no_minus_zero(form)))


def same_digits(form: Form, values: Iterable[Any]) -> Form:
    """Return a format of significant digits, or `millions`, with equal decimals for all values; others unchanged.

    Examples:
        >>> same_digits(".4g", (1.58, 0.05608, None)), same_digits(".2f", (1.58,)), same_digits(".4g", (0.0,))
        ('.3f', '.2f', '.3f')
    """
    if form is millions:
        largest = max((value for value in values if value is not None), default=0)
        return lambda parameters: millions(parameters, largest)
    if not isinstance(form, str) or not (significant := re.fullmatch(r"([-+ ]?)\.(\d+)g", form)):
        return form
    flat = (number for value in values for number in (value if isinstance(value, tuple) else (value,)))
    largest = max(
        (abs(number) for number in flat if isinstance(number, (int, float)) and math.isfinite(number)), default=0.0
    )
    before = math.floor(math.log10(largest)) if largest else 0
    return f"{significant[1]}.{min(max(int(significant[2]) - 1 - before, 0), 6)}f"


def no_minus_zero(form: str) -> str:
    """Return a format of numbers that writes what rounds to 0 without a minus sign.

    Examples:
        >>> format(-0.001, no_minus_zero(".2f")), format(-0.001, no_minus_zero("+,.0f")), no_minus_zero("d")
        ('0.00', '+0', 'd')
    """
    return re.sub(r"^([-+ ]?)(?=[#,]*\.)", r"\1z", form)


def millions(parameters: int, largest: int = 0) -> str:
    """Return a count of parameters as a cell, with the decimals of the largest in its column.

    Examples:
        >>> millions(108_891_648), millions(47_360), millions(80_540_000, largest=108_891_648)
        ('108.9 M', '0.05 M', '80.5 M')
        >>> millions(4_321), millions(7_241_732_096)
        ('4,321', '7,241.7 M')
    """
    if parameters < 10_000:
        return f"{parameters:,}"
    return f"{parameters / 1e6:,.{1 if max(parameters, largest) >= 1e8 else 2}f} M"


def percent(share: float) -> str:
    """Return a share of 0 .. 1 as a cell, in percent."""
    return f"{100 * share:.0f} %"


def probability(share: float) -> str:
    """Return a chance, or a share of draws, as a cell; draws cannot distinguish all from nearly all.

    Examples:
        >>> probability(0.976), probability(1.0), probability(0.0)
        ('98 %', '>99 %', '<1 %')
    """
    if share >= 0.995:
        return ">99 %"
    return percent(share) if share >= 0.005 else "<1 %"


def interval_title(level: float) -> str:
    """Return the title of a column of intervals."""
    return f"{percentage(level)} interval"


def p_value(probability: float) -> str:
    """Return a p-value as a cell; below `SMALLEST_P` a tail of Student's distribution says nothing about the data."""
    return f"{probability:.2g}" if probability >= SMALLEST_P else f"<{SMALLEST_P:g}"


def named_values(values: Mapping[str, object], title: str) -> Table:
    """Return a table of named values, one row each."""
    written = tuple("" if value is None else str(value) for value in values.values())
    return Table(columns=(Column("what", tuple(values)), Column("value", written)), title=title)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows as CSV: full precision, empty for None, flags as 0 and 1, tuples separated by spaces.

    A text that a spreadsheet would run as a formula gets a leading apostrophe, so that it stays a text.

    Examples:
        >>> csv_text(("layer", "scores", "drop"), [(3, (70.5, 71.0), True), (4, None, False)])
        'layer,scores,drop\n3,70.5 71.0,1\n4,,0\n'
        >>> csv_text(("model", "change"), [("=1+1", -0.5), ("-3", (-0.5, 1.0))])
        "model,change\n'=1+1,-0.5\n-3,-0.5 1.0\n"
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows(map(_csv_cell, row) for row in rows)
    return buffer.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (int, float)):
        return value
    numbers = isinstance(value, tuple) and all(isinstance(item, (int, float)) for item in value)
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    # Python before 3.13 does not quote a lone carriage return, which other programs read as the end of a row
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if numbers or _FORMULA.match(text) is None else f"'{text}"
