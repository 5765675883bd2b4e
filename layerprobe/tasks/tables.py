"""Files as tables of text cells. Knows formats, not what a column means."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from layerprobe.errors import DataError, TaskError
from layerprobe.inputs import BYTES, CELLS, RECORD, open_regular, text_lines
from layerprobe.serialisation import parse_json


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
        TaskError: If the file is missing, empty, not UTF-8, of another kind, too large, or a line is malformed.
    """
    check_file(path)
    table = _READERS[path.suffix.lower()](path)
    if not table.rows:
        raise TaskError(f"{path} is empty: expected at least one row")
    return table


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what `text_lines` does; raise TaskError if the file is too large or not readable UTF-8."""
    try:
        yield from text_lines(path)
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from error
    except DataError as error:
        raise TaskError(str(error)) from error


def check_file(path: Path) -> None:
    """Raise TaskError unless a file is there and of a known kind."""
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a data file")
    if not path.is_file():
        raise TaskError(f"{path} is not a file: expected a data file")
    if path.suffix.lower() not in _READERS:
        raise TaskError(f"{path} has the extension {path.suffix!r}: expected one of {', '.join(SUFFIXES)}")


def check_size(name: object, *, cells: int = 0, unpacked: int = 0) -> None:
    """Raise TaskError if a table has more cells or bytes than `CELLS` and `BYTES` allow."""
    try:
        CELLS.check(cells, name)
        BYTES.check(unpacked, name)
    except DataError as error:
        raise TaskError(str(error)) from error


def table_of_columns(name: str, columns: Mapping[str, Sequence[Any]]) -> Table:
    """Return a table of columns that have names."""
    rows = tuple(zip(*([_cell(value) for value in values] for values in columns.values()), strict=True))
    return Table(name=name, header=tuple(columns), rows=rows, numbers=tuple(range(1, len(rows) + 1)), unit="row")


# ---- formats ------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Table:
    source = _Records(path)
    reader = csv.reader(source, strict=True)
    records: list[tuple[int, list[str]]] = []
    start, limit = 1, csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    cells, most = 0, CELLS.value
    try:
        for record in reader:
            source.size = 0
            cells += len(record)
            if cells > most:
                check_size(path, cells=cells)
            records.append((start, record))
            start = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(f"{path}, line {start}: malformed CSV ({error}): check the quotes") from error
    finally:
        csv.field_size_limit(limit)
    return _table(path, records, 'put fields with a comma or a line break in "quotes"')


class _Records:
    """The lines of a CSV file, which a lone carriage return ends too; a record of several may not be too long."""

    def __init__(self, path: Path) -> None:
        self.path, self.longest = path, RECORD.value
        self.size = 0
        """Characters of the record that is being read; its reader sets it to 0."""

    def __iter__(self) -> Iterator[str]:
        for _, whole in read_lines(self.path):
            for line in io.StringIO(whole, newline="") if "\r" in whole else (whole,):
                self.size += len(line)
                if self.size > self.longest:
                    raise TaskError(f"a row of {self.path} {RECORD.exceeded()}; is a quote not closed?")
                yield line


def _read_tsv(path: Path) -> Table:
    # Not str.splitlines and not the csv module: both cut a text at characters that end no line of a TSV.
    records, cells, most = [], 0, CELLS.value
    for number, line in read_lines(path):
        records.append((number, line.removesuffix("\n").removesuffix("\r").split("\t")))
        cells += len(records[-1][1])
        if cells > most:
            check_size(path, cells=cells)
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
    records: dict[int, dict[str, str]] = {}
    names: dict[str, None] = {}
    most = CELLS.value
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except DataError as error:
            raise TaskError(f"{path}, line {number}: expected one JSON object a line: {error}") from error
        if not isinstance(record, dict):
            raise TaskError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:40]}")
        records[number] = {name: _cell(value) for name, value in record.items()}
        names |= dict.fromkeys(record)
        if len(records) * len(names) > most:
            check_size(path, cells=len(records) * len(names))
    rows = tuple(tuple(record.get(name, "") for name in names) for record in records.values())
    return Table(name=str(path), header=tuple(names), rows=rows, numbers=tuple(records))


def _read_parquet(path: Path) -> Table:
    import pandas

    try:
        with open_regular(path) as file:
            _measure_parquet(file, path)
            file.seek(0)
            frame = pandas.read_parquet(file)
        if twice := [name for name, n in Counter(map(str, frame.columns)).items() if n > 1]:
            raise DataError(f"two columns are called {twice[0][:40]!r}")
        present = frame.astype(object).where(frame.notna(), None)
        return table_of_columns(str(path), {str(name): list(present[name]) for name in present.columns})
    except TaskError:
        raise
    except Exception as error:
        # whatever the bytes lead pyarrow and pandas to: their own errors, a KeyError, a RuntimeError, no memory
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TaskError(f"{path} cannot be read as Parquet: {reason}") from error


def _measure_parquet(file: BinaryIO, path: Path) -> None:
    """Raise TaskError if the cells are too many, or too large when unpacked, before all of them are in memory.

    A few bytes can say "this text a million times" (a dictionary), or "as the text before, and a letter" (a delta).
    So texts are read as dictionaries, and the others in batches of at most a quarter of `BYTES`.
    """
    from pyarrow.parquet import ParquetFile

    whole = ParquetFile(file)
    metadata = whole.metadata
    check_size(path, cells=metadata.num_rows)
    for name in whole.schema_arrow.names:
        # looking at a garbled chunk ends the process (pyarrow 26), reading it raises: so a row of each column is read
        next(whole.iter_batches(batch_size=1, columns=[name], use_threads=False), None)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    check_size(path, cells=sum(column.num_values for column in columns))
    check_size(path, unpacked=sum(column.total_uncompressed_size for column in columns))
    deltas = {column.path_in_schema for column in columns if "DELTA_BYTE_ARRAY" in column.encodings}
    longest = [column.total_uncompressed_size for column in columns if column.path_in_schema in deltas]
    longest += [metadata.schema.column(i).length or 1 for i in range(metadata.num_columns)]  # of a fixed length
    texts = {column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"} - deltas
    file.seek(0)
    table = ParquetFile(file, read_dictionary=sorted(texts), page_checksum_verification=True)
    rows, size = min(65536, max(1, BYTES.value // 4 // max(longest, default=1))), 0
    for batch in table.iter_batches(batch_size=rows, use_threads=False):
        size += sum(map(_unpacked_bytes, batch.columns))
        check_size(path, unpacked=size)


def _unpacked_bytes(array: Any) -> int:
    """Return how many bytes the values of an Arrow array are, each value of a dictionary as often as it is there."""
    import pyarrow
    from pyarrow import compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        return int(compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if pyarrow.types.is_map(kind):
        return _unpacked_bytes(array.keys) + _unpacked_bytes(array.items)
    if pyarrow.types.is_struct(kind):
        return sum(map(_unpacked_bytes, array.flatten()))
    if pyarrow.types.is_nested(kind):
        return _unpacked_bytes(array.flatten())
    return int(array.nbytes)


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
