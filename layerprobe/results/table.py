"""A result as one table, declared once: terminal, page, CSV, JSON, Parquet and DataFrame are made from it.

Knows columns and how their cells are written, no HTML and no result.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerprobe.errors import DataError, LayerProbeError, one_line
from layerprobe.names import in_percent
from layerprobe.results.charts import Chart, Quantity

if TYPE_CHECKING:
    import pandas as pd

Bounds = tuple[float, float]
"""Low and high end of an interval."""
Form = str | Callable[[Any], str]
"""How a value is written on a screen: a format such as `.2f`, or a function."""
SMALLEST_P = 1e-10
FILES = (".csv", ".parquet", ".pq", ".tex")
# What a spreadsheet may take for a formula (OWASP, "CSV injection"), a number with its sign aside.
_FORMULA = re.compile(r"(?![+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\Z)[=+\-@\t\r\n＝＋－＠]", re.ASCII | re.IGNORECASE)


def imported(module: str) -> Any:
    """Import a module that showing results needs; a missing package is a LayerProbeError."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("layerprobe"):
            raise
        package = error.name.partition(".")[0]
        raise LayerProbeError(
            f"expected {package}, which shows results, to be installed: pip install {package}"
        ) from error


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its values and how they are written.

    A value is a number, a text, a flag, a tuple of numbers or None. The values of an interval are its two ends: one
    cell on screens, two columns with the endings `_low` and `_high` in files.
    """

    name: str
    """In files and DataFrames: lower case, words joined by `_`."""
    values: Sequence[object]
    """One a row."""
    title: str = ""
    """On screens; by default the name."""
    form: Form = ""
    """How a value, or each number of several, is written on screens."""
    unit: str = ""
    """What numbers are in, such as ms; stands behind the title."""
    meaning: str = ""
    """What the column says, in a sentence."""
    interval: bool = False
    """Whether the values are pairs of low and high ends."""
    shown: bool = True
    """Whether it stands on screens; otherwise in files alone."""
    more: bool = False
    """Whether screens show it only where all columns are asked for: at most six stand there otherwise."""
    dtype: str = ""
    """In DataFrames and Parquet, where its values do not say: without one, a column is of numbers."""
    quantity: Quantity | None = None
    """What its numbers are, where they are drawn."""
    scale: float = 1.0
    """What numbers are multiplied by on screens and axes, such as 1000 for seconds in milliseconds."""
    over: str = ""
    """Of intervals: what is drawn anew, such as `over new pairs`."""

    @property
    def head(self) -> str:
        """The title with its unit."""
        title = one_line(self.title or self.name.replace("_", " "))
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as screens show them, numbers with the same digits; empty where one is None."""
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
        """The dtype of a DataFrame's columns of it; empty for what pandas finds by itself."""
        kinds = {type(value) for value in self.values if value is not None}
        return self.dtype or ("string" if kinds == {str} else "" if kinds else "float64")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name in files, or those of the two ends of an interval."""
        return (f"{self.name}_low", f"{self.name}_high") if self.interval else (self.name,)

    @property
    def data(self) -> dict[str, tuple[object, ...]]:
        """The values as files have them: one column, or the two ends of an interval."""
        if not self.interval:
            return {self.name: tuple(self.values)}
        ends: list[Any] = [(None, None) if value is None else value for value in self.values]
        return {name: tuple(value[i] for value in ends) for i, name in enumerate(self.names)}


def columns_of(rows: Iterable[Any]) -> Callable[..., Column]:
    """Return a function that makes a column from rows: from an attribute by name, or by a function of a row.

    A row of None has an empty cell; further arguments are those of a column.

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
    """Return the column of layers and, where they are known, that of the parameters of the truncated models."""
    layer = Column("layer", tuple(layers), meaning="Blocks kept.")
    about = "Of the truncated model, without pooler."
    return (
        (layer, Column("parameters", parameters, form=millions, meaning=about, more=True)) if parameters else (layer,)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of columns of equal length, which every result shows and writes."""

    columns: tuple[Column, ...]
    title: str = "Table of layers"
    notes: tuple[str, ...] = ()
    """Sentences that stand below it on screens."""
    marks: tuple[str | None, ...] = ()
    """What a page marks rows as: chosen, candidate (may be the best) or drop."""
    charts: tuple[Chart, ...] = ()
    """Figures of its columns, the most important one first."""

    def __post_init__(self) -> None:
        lengths = [(column.name, len(column.values)) for column in self.columns]
        if len({length for _, length in lengths}) > 1:
            raise DataError(f"expected columns of one length, got {dict(lengths)}")
        names = [name for column in self.columns for name in column.names]
        if len(set(names)) < len(names):
            raise DataError(f"expected columns with names of their own, got {names}")

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    def with_columns(self, *columns: Column, after: str | None = None) -> Table:
        """Return the table with further columns, behind the column `after` or at the end."""
        names = [column.name for column in self.columns]
        if after is not None and after not in names:
            raise DataError(f"expected one of the columns {', '.join(names)}, got {after!r}")
        place = len(names) if after is None else names.index(after) + 1
        return replace(self, columns=(*self.columns[:place], *columns, *self.columns[place:]))

    def column(self, name: str, *, interval: bool = False) -> Column:
        """Return the column of a name, which may be that of a number and of its interval."""
        named = [column for column in self.columns if column.name == name]
        if not named:
            raise DataError(
                f"expected one of the columns {', '.join(column.name for column in self.columns)}, got {name!r}"
            )
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
        """The columns shown on screens: those with content in at least one row."""
        return tuple(column for column in self.columns if column.shown and (not len(self) or any(column.cells)))

    @property
    def first(self) -> tuple[Column, ...]:
        """Those of them that screens show unless all columns are asked for."""
        return tuple(column for column in self.shown if not column.more)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether the shown columns are of numbers, which stand to the right."""
        return tuple(all(map(_is_number, column.cells)) for column in self.shown)

    @property
    def lines(self) -> Iterator[tuple[str, ...]]:
        """The rows as screens show them."""
        return zip(*(column.cells for column in self.shown), strict=True)

    @property
    def data(self) -> dict[str, tuple[object, ...]]:
        """The columns as files have them, by name."""
        return {name: values for column in self.columns for name, values in column.data.items()}

    def text(self) -> str:
        """Return aligned columns, words to the left and numbers to the right, and the notes below."""
        columns = [[column.head, *column.cells] for column in self.shown]
        widths = [max(map(len, column)) for column in columns]
        written = [_aligned(row, widths, self.numeric) for row in zip(*columns, strict=True)]
        return "\n".join([*written[:1], "  ".join("-" * width for width in widths), *written[1:], *self.notes])

    def records(self) -> list[dict[str, object]]:
        """Return one mapping per row, for JSON."""
        data = self.data
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]

    def csv(self) -> str:
        """Return the rows as CSV: full precision, empty where a value is None, flags as 0 and 1, see `csv_text`."""
        data = self.data
        return csv_text(data, zip(*data.values(), strict=True))

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame.

        Raises:
            LayerProbeError: If pandas is not installed.
        """
        frame: pd.DataFrame = imported("pandas").DataFrame(self.data)
        return frame.astype({name: column.kind for column in self.columns if column.kind for name in column.names})

    def latex(self) -> str:
        """Return the table as LaTeX (booktabs): its cells as screens show them, its notes as comments above.

        Raises:
            LayerProbeError: If pandas or jinja2 is not installed.
        """
        imported("jinja2")
        columns = self.shown
        frame = imported("pandas").DataFrame(list(self.lines), columns=[column.head for column in columns])
        sides = "".join("r" if all(map(_is_number, column.cells)) else "l" for column in columns)
        tabular = str(frame.to_latex(index=False, escape=True, column_format=sides))
        # which other signs than these two LaTeX's oldest fonts would print
        tabular = tabular.replace("<", r"\textless{}").replace(">", r"\textgreater{}")
        return "".join(f"% {' '.join(note.split())}\n" for note in self.notes) + tabular

    def save(self, path: str | Path) -> Path:
        """Write the table as CSV, Parquet or LaTeX, as the file is named, and return the path.

        Raises:
            DataError: If it is named as none of these.
            LayerProbeError: If the file cannot be written.
        """
        from layerprobe.files.atomic import write_file

        target, content = Path(path), self.csv().encode()
        if (suffix := target.suffix.lower()) not in FILES:
            raise DataError(f"expected a file that ends in {', '.join(FILES)}, got {target}: name it so")
        if suffix == ".tex":
            content = self.latex().encode()
        elif suffix != ".csv":
            buffer = io.BytesIO()
            self.to_pandas().to_parquet(buffer, index=False)
            content = buffer.getvalue()
        return write_file(target, content)


def stacked(tables: Sequence[Table], *, by: Sequence[str] = ()) -> Table:
    """Return tables of the same columns one below the other, with the notes of all; those `by` tell them apart.

    Columns of `by` are shown where their values differ.
    """
    if len(names := {tuple(table.data) for table in tables}) != 1:
        raise DataError(f"expected at least one table, all of the same columns, got {sorted(names)}")
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
    """Return a format of significant digits, or `millions`, with the same decimals for all values; others as they are.

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
    """Return a format of numbers by which what rounds to 0 has no minus sign.

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
    """Return a share of 0 .. 1 as a cell."""
    return f"{100 * share:.0f} %"


def chance(share: float) -> str:
    """Return a chance, or a share of draws, as a cell; draws cannot tell all from nearly all.

    Examples:
        >>> chance(0.976), chance(1.0), chance(0.0)
        ('98 %', '>99 %', '<1 %')
    """
    if share >= 0.995:
        return ">99 %"
    return percent(share) if share >= 0.005 else "<1 %"


def interval_title(level: float) -> str:
    """Return the title of a column of intervals."""
    return f"{in_percent(level, ' %')} interval"


def p_value(probability: float) -> str:
    """Return a p-value as a cell; below `SMALLEST_P` a tail of Student's distribution says nothing about the data."""
    return f"{probability:.2g}" if probability >= SMALLEST_P else f"<{SMALLEST_P:g}"


def named_values(values: Mapping[str, object], title: str) -> Table:
    """Return a table of named values, one row each."""
    written = tuple("" if value is None else str(value) for value in values.values())
    return Table(columns=(Column("what", tuple(values)), Column("value", written)), title=title)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows as CSV: full precision, empty where a value is None, flags as 0 and 1, tuples with spaces between.

    A text that a spreadsheet would run as a formula begins with an apostrophe, by which it stays a text.

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
    # Python before 3.13 does not quote a lone carriage return, which ends a row elsewhere
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if numbers or _FORMULA.match(text) is None else f"'{text}"
