"""Files as tables of text cells. Knows formats, not what a column means."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.errors import TaskError


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text cells, each with the line it came from."""

    name: str
    """File or hub split, for messages."""
    header: tuple[str, ...] | None
    """Names of the columns; None where the format has none or the first row may be one."""
    rows: tuple[tuple[str, ...], ...]
    """All of one width."""
    numbers: tuple[int, ...]
    """Where each row starts, from 1."""
    unit: str = "line"
    """What the numbers count: line or row."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.header if self.header is not None else self.rows[0])

    def place(self, row: int) -> str:
        """Return where a row is, for messages."""
        return f"{self.name}, {self.unit} {self.numbers[row]}"

    def with_header(self) -> Table:
        """Return the table with its first row as the header, where it has none yet."""
        if self.header is not None:
            return self
        header = tuple(cell.strip() for cell in self.rows[0])
        return dataclasses.replace(self, header=header, rows=self.rows[1:], numbers=self.numbers[1:])


def read_table(path: Path) -> Table:
    """Read a CSV, TSV, TXT (as TSV), JSONL or Parquet file.

    CSV is quoted as in RFC 4180; TSV has no quoting, a lone `"` is text. Blank lines are left out.

    Raises:
        TaskError: If the file is missing, empty, not UTF-8, of another kind, or a line is malformed.
    """
    check_file(path)
    table = _READERS[path.suffix.lower()](path)
    if not table.rows:
        raise TaskError(f"{path} is empty: expected at least one row")
    return table


def read_text(path: Path) -> str:
    """Return the text of a file without its byte-order mark; raise TaskError if it is not readable UTF-8."""
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{path} is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}): save it as UTF-8"
        ) from error


def check_file(path: Path) -> None:
    """Raise TaskError unless a file is there and of a known kind."""
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a data file")
    if not path.is_file():
        raise TaskError(f"{path} is not a file: expected a data file")
    if path.suffix.lower() not in _READERS:
        raise TaskError(f"{path} has the extension {path.suffix!r}: expected one of {', '.join(SUFFIXES)}")


def table_of_columns(name: str, columns: Mapping[str, Sequence[Any]]) -> Table:
    """Return a table of columns that have names."""
    rows = tuple(zip(*([_cell(value) for value in values] for values in columns.values()), strict=True))
    return Table(name=name, header=tuple(columns), rows=rows, numbers=tuple(range(1, len(rows) + 1)), unit="row")


# ---- formats ------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Table:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    records: list[tuple[int, list[str]]] = []
    start, limit = 1, csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        for cells in reader:
            records.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(f"{path}, line {start}: malformed CSV ({error}): check the quotes") from error
    finally:
        csv.field_size_limit(limit)
    return _table(path, records, 'put fields with a comma or a line break in "quotes"')


def _read_tsv(path: Path) -> Table:
    # Not str.splitlines and not the csv module: both cut a text at characters that end no line of a TSV.
    lines = enumerate(read_text(path).split("\n"), 1)
    records = ((number, line.removesuffix("\r").split("\t")) for number, line in lines)
    return _table(path, records, "separate fields by one tab")


def _table(path: Path, records: Iterable[tuple[int, list[str]]], repair: str) -> Table:
    kept = {number: tuple(cells) for number, cells in records if any(cells)}
    first = next(iter(kept), 0)
    for number, cells in kept.items():
        if len(cells) != len(kept[first]):
            expected = f"expected {len(kept[first])} fields as in line {first}, got {len(cells)}"
            raise TaskError(f"{path}, line {number}: {expected}: {repair}")
    return Table(name=str(path), header=None, rows=tuple(kept.values()), numbers=tuple(kept))


def _read_jsonl(path: Path) -> Table:
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            records[number] = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path}, line {number}: expected one JSON object a line: {error}") from error
        if not isinstance(records[number], dict):
            raise TaskError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:40]}")
    header = tuple(dict.fromkeys(name for record in records.values() for name in record))
    rows = tuple(tuple(_cell(record.get(name)) for name in header) for record in records.values())
    return Table(name=str(path), header=header, rows=rows, numbers=tuple(records))


def _read_parquet(path: Path) -> Table:
    import pandas

    try:
        with path.open("rb") as file:
            frame = pandas.read_parquet(file)
    except (OSError, ValueError) as error:  # pyarrow's errors are children of these
        reason = str(error).partition("\n")[0]
        raise TaskError(f"{path} cannot be read as Parquet: {reason}") from error
    present = frame.astype(object).where(frame.notna(), None)
    return table_of_columns(str(path), {str(name): list(present[name]) for name in present.columns})


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


_READERS = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".txt": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
SUFFIXES = tuple(_READERS)
