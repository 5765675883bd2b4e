"""Files as grids of cells: CSV, TSV, TXT, JSONL and Parquet, by their ending. Knows formats, not what columns mean."""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal

from layerprobe.errors import DataError, TaskError, option
from layerprobe.files.inputs import BYTES, CELLS, RECORD, open_measured, open_regular, similar_file, text_lines
from layerprobe.files.serialisation import parse_json
from layerprobe.names import counted
from layerprobe.tasks.cells import class_cells, decimal_points, ungrouped, with_point, written_names

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""Usual delimiters by name."""
_SAMPLE = 2**18
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# What no text has; ISO 2022 has the escape.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of a file; fields that are None follow from its ending, and from its bytes."""

    delimiter: str | None = None
    """comma, semicolon, tab, pipe, or any other single character."""
    encoding: str | None = None
    """Python's name of the encoding: utf-8, utf-16, cp1252 and so on."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark of numbers; with a point, commas between digits group thousands."""
    quotes: bool | None = None
    """Whether fields can be in quotes, as in RFC 4180; otherwise a `"` is text."""
    header: bool | None = None
    """Whether the first row names the columns."""

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.mark) != 1 or self.mark in '"\r\n\0'):
            raise DataError(f"expected the delimiter {', '.join(DELIMITERS)} or one character, got {self.delimiter!r}")
        if self.decimal not in (None, ".", ","):
            raise DataError(f"expected the decimal mark '.' or ',', got {self.decimal!r}")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, ValueError) as error:
                raise DataError(
                    f"expected the name of an encoding such as utf-8, utf-16 or cp1252, got {self.encoding[:40]!r}"
                ) from error

    @classmethod
    def of(cls, value: Format | str | None) -> Format:
        """Return a format from a format, or from a text such as on the command line."""
        return cls(**cls.fields_in(value)) if isinstance(value, str) else value or cls()  # type: ignore[arg-type]

    @classmethod
    def fields_in(cls, text: str) -> dict[str, str | bool]:
        """Return the fields in a text such as delimiter=;,decimal=,.

        Examples:
            >>> Format.fields_in("delimiter=;,decimal=,,header=no")
            {'delimiter': ';', 'decimal': ',', 'header': False}

        Raises:
            DataError: If the text is invalid.
        """
        names, switches = [field.name for field in fields(cls)], {"yes": True, "no": False}
        values: dict[str, str | bool] = {}
        for part in re.split(rf",(?=(?:{'|'.join(names)})=)", text):
            key, equals, value = part.partition("=")
            of_switch = key in ("quotes", "header")
            if key not in names or not (equals and value) or (of_switch and value not in switches):
                raise DataError(
                    f"expected KEY=VALUE with the key {', '.join(names)}, the last two yes or no, got {part!r}"
                )
            values[key] = switches[value] if of_switch else value
        return values

    @property
    def mark(self) -> str:
        """The delimiter itself; empty if it follows from the ending of the file."""
        return DELIMITERS.get(self.delimiter or "", self.delimiter or "")


def find_encoding(path: Path) -> str:
    """Return the encoding of a text file; utf-8 also if none is detected, so that reading fails.

    A byte order mark decides first, then whether all of the file is UTF-8; for other files, chardet decides from the
    lines that are not ASCII. A file that is mostly UTF-8 counts as damaged UTF-8.

    Raises:
        TaskError: If the file is too large or cannot be read.
    """
    sample, whole = b"", True
    with task_errors(path), open_measured(path) as file:
        for number, line in enumerate(file):
            mark = next((name for mark, name in _MARKS if not number and line.startswith(mark)), None)
            if mark is not None:
                return mark
            if line.isascii():
                continue
            whole = whole and line.decode(errors="ignore").encode() == line
            if len(sample) < _SAMPLE:
                sample += line[:_SAMPLE]
            elif not whole:
                break
    if whole or _BINARY.search(sample) or _is_damaged_utf8(sample):
        return "utf-8"
    import chardet

    # with few letters, chardet prefers encodings of today to those of DOS
    detected = chardet.detect(sample, encoding_era=chardet.EncodingEra.MODERN_WEB, prefer_superset=True)
    try:
        name = codecs.lookup(detected["encoding"] or "utf-8").name
    except LookupError:
        return "utf-8"
    # bytes without text in ISO 8859 are typographic signs in Windows, so that name is better if both read the same
    return "cp1252" if sample.decode("cp1252", "replace") == sample.decode(name, "replace") else name


def _is_damaged_utf8(data: bytes) -> bool:
    """Return whether there are at least as many characters as stray bytes, or only lone surrogates are wrong."""
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        stray = sum("\udc80" <= character <= "\udcff" for character in text)
        return sum(not character.isascii() for character in text) >= 2 * stray
    return True


# ---- grids ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The cells of a file, a split or data in memory, with the line of each row."""

    name: str
    """File or hub split, for messages."""
    header: tuple[str, ...] | None
    """Names of the columns; None if the format has none, or the first row may be a header."""
    rows: tuple[tuple[Any, ...], ...]
    """Rows of equal width. Cells are texts, except in `nested` columns."""
    numbers: tuple[int, ...]
    """Number of the line or row where each row starts, from 1."""
    unit: str = "line"
    """Unit of the numbers: line or row."""
    headless: bool = False
    """Whether the first row is known not to be a header."""
    detected: tuple[str, ...] = ()
    """Detected properties of the format that differ from the ending of the file."""
    used: str = ""
    """Columns that are used, in words, if others are possible."""
    warnings: tuple[str, ...] = ()
    """What is left out."""
    nested: Mapping[int, int] = field(default_factory=dict)
    """Columns with cells that are neither text nor number, such as lists, each with its first such row. These
    cells are plain lists, mappings or bytes."""
    ambiguous: Mapping[int, str] = field(default_factory=dict)
    """Columns of numbers whose commas could be decimal or group thousands, each with an example."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.header if self.header is not None else self.rows[0])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on detected properties, with the option that changes them; empty if there are none."""
        return detection_note(self.name, self.detected, self.used)

    def column(self, index: int) -> str:
        """Return the name of a column, for messages."""
        return f"column {index}" if self.header is None else self.header[index][:40] or f"column {index}"

    def check_cells(self, columns: Iterable[int]) -> None:
        """Raise TaskError if a cell of these columns is neither text nor number, or could be two numbers."""
        for column in columns:
            if (cell := self.ambiguous.get(column)) is not None:
                raise TaskError(
                    f"{self.name}: {cell[:40]} in {self.column(column)} could be {with_point(cell)} or "
                    f"{ungrouped(cell)}: choose {option('format', 'decimal=,')} or "
                    f"{option('format', 'decimal=.')}"
                )
            if (row := self.nested.get(column)) is not None:
                raise TaskError(
                    f"{self.place(row)}: expected a text or a number in {self.column(column)}, got "
                    f"{str(self.rows[row][column])[:40]}: write one value per cell, or name another column with "
                    f"{option('columns')}"
                )

    def place(self, row: int) -> str:
        """Return the place of a row, for messages."""
        return f"{self.name}, {self.unit} {self.numbers[row]}"

    def with_header(self) -> Grid:
        """Return the grid with its first row as the header, unless it has a header or is known to have none."""
        if self.header is not None or self.headless:
            return self
        header = tuple(cell.strip() for cell in self.rows[0])
        return dataclasses.replace(self, header=header, rows=self.rows[1:], numbers=self.numbers[1:])


Readers = Mapping[str, Callable[[Path, Format], Grid]]
"""Readers by ending for files of a kind that are not tables: they return one row per item, such as a sentence."""


def read_grid(path: Path, format: Format | None = None, readers: Readers | None = None) -> Grid:
    """Read a CSV, TSV, TXT (as TSV), JSONL or Parquet file, or a file with a kind's own format, by its ending.

    CSV has commas and quotes as in RFC 4180; TSV has tabs, and quotes if every field that begins with one is quoted,
    as a single `"` is text. Only encoding and decimal commas are detected. Blank lines are ignored.
    """
    check_file(path, readers or {})
    format = format or Format()
    suffix = path.suffix.lower()
    if readers and suffix in readers:
        with task_errors(path):
            grid = readers[suffix](path, format)
    elif suffix in _MARKS_OF:
        grid = _read_delimited(path, format.mark or _MARKS_OF[suffix], format)
    else:
        check_format(path, format, ("decimal", "encoding") if suffix == ".jsonl" else ("decimal",))
        grid = _read_jsonl(path, format.encoding) if suffix == ".jsonl" else _read_parquet(path)
    if not grid.rows:
        raise TaskError(f"{path} is empty: expected at least one row")
    if format.header is not None:
        grid = grid.with_header() if format.header else dataclasses.replace(grid, headless=True)
    return with_points(grid, format.decimal)


def check_format(name: object, format: Format, usable: Collection[str]) -> None:
    """Raise TaskError if a format sets fields that do not apply to a source."""
    changed = [field.name for field in dataclasses.fields(format) if getattr(format, field.name) is not None]
    if unusable := [name for name in changed if name not in usable]:
        raise TaskError(f"expected no {' or '.join(unusable)} with {name}: only for delimited text files")


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of `text_lines`; raise TaskError if the file is too large or cannot be read."""
    with task_errors(path):
        yield from text_lines(path, encoding or "utf-8")


def read_json_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSONL file with their lines; raise TaskError, with the line, for anything else."""
    for number, line in read_lines(path, encoding):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except DataError as error:
            raise TaskError(f"{path}, line {number}: expected one JSON object per line: {error}") from error
        if not isinstance(record, dict):
            raise TaskError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:40]}")
        yield number, record


def encoding_note(encoding: str, encoding_name: str | None) -> tuple[str, ...]:
    """Return a detected encoding for `Grid.detected`; empty for UTF-8."""
    return () if encoding_name is not None or encoding == "utf-8" else (f"{encoding} text",)


def detection_note(name: object, detected: Sequence[str], used: str = "") -> tuple[str, ...]:
    """Return a line on the detected properties of a file; empty without any."""
    options = [option(name) for name, words in (("format", detected), ("columns", used)) if words]
    choose = f"{' and '.join(options)} {'choose' if len(options) > 1 else 'chooses'} otherwise"
    return (f"{name}: read as {', '.join(filter(None, (*detected, used)))}; {choose}",) if options else ()


@contextlib.contextmanager
def task_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a TaskError."""
    try:
        yield
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from error
    except DataError as error:
        raise error if isinstance(error, TaskError) else TaskError(str(error)) from error


def check_file(path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise TaskError unless a file exists and has a known ending: that of a table, or one of `suffixes`."""
    check_regular(path)
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a data file{similar_file(path)}")
    if not path.is_file():
        raise TaskError(f"{path} is not a file: expected a data file")
    if path.suffix.lower() not in (*SUFFIXES, *suffixes):
        other = _OF_OTHER_KINDS.get(path.suffix.lower())
        what = f"{path} has the extension {path.suffix!r}" + (f", which is only read as {other}" if other else "")
        listed = ", ".join(dict.fromkeys((*SUFFIXES, *suffixes)))
        raise TaskError(f"{what}: expected one of {listed}" + (", or such a task" if other else ""))


def check_regular(path: Path) -> None:
    """Raise TaskError for a pipe or a device, which could block and can be read only once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise TaskError(f"{path} is a pipe or a device, which can be read only once: save it to a file first")


def check_size(name: object, *, cells: int = 0, unpacked: int = 0) -> None:
    """Raise TaskError if a table has more cells or bytes than `CELLS` and `BYTES` allow."""
    try:
        CELLS.check(cells, name)
        BYTES.check(unpacked, name)
    except DataError as error:
        raise TaskError(str(error)) from error


def grid_of_columns(name: str, columns: Mapping[str, Sequence[Any]]) -> Grid:
    """Return a grid from columns by name."""
    rows = tuple(zip(*([_cell(value) for value in values] for values in columns.values()), strict=True))
    numbers = tuple(range(1, len(rows) + 1))
    return Grid(name=name, header=tuple(columns), rows=rows, numbers=numbers, unit="row", nested=_nested_in(rows))


def _nested_in(rows: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Return the columns with cells that are not texts, each with its first such row."""
    nested: dict[int, int] = {}
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            if not isinstance(cell, str):
                nested.setdefault(column, number)
    return nested


def with_points(grid: Grid, decimal: str | None = None) -> Grid:
    """Return a grid whose numbers have a decimal point and no commas, see `decimal_points`.

    Of a grid without header, the first row may be one, and decides nothing. If all numbers of a column could be read in
    two ways, `check_cells` refuses it.
    """
    first = 0 if grid.header is not None or grid.headless or len(grid.rows) < 2 else 1
    columns: dict[int, Callable[[str], str]] = {}
    ambiguous: dict[int, str] = {}
    for column in set(range(grid.width)) - grid.nested.keys():
        change, example = decimal_points([row[column].strip() for row in grid.rows[first:]], decimal)
        if change is not None:
            columns[column] = change
        if example:
            ambiguous[column] = example
    if not columns:
        return grid
    rows = tuple(tuple(columns[i](cell) if i in columns else cell for i, cell in enumerate(row)) for row in grid.rows)
    notes = grid.detected if decimal else (*grid.detected, "decimal commas")
    return dataclasses.replace(grid, rows=rows, detected=notes, ambiguous=ambiguous)


# ---- delimited text -----------------------------------------------------------------------------------


_MARKS_OF = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
"""Delimiters by ending."""


def _read_delimited(path: Path, mark: str, format: Format) -> Grid:
    encoding = format.encoding or find_encoding(path)
    detected = encoding_note(encoding, format.encoding)
    quotes = format.quotes
    if quotes is None:
        quotes = mark != "\t" or _are_quoted(path, encoding)
        if quotes and mark == "\t":
            detected = (*detected, "quoted fields")
    rows = {number: tuple(cells) for number, cells in _records(path, mark, encoding, quotes=quotes) if any(cells)}
    first = next(iter(rows), 0)
    for number, cells in rows.items():
        if len(cells) != (width := len(rows[first])):
            name = next((name for name, other in DELIMITERS.items() if other == mark), repr(mark))
            if (another := other_delimiter(rows[first])) is not None:
                repair = f"if a {another} separates the fields, choose {option('format', f'delimiter={another}')}"
            elif quotes:
                repair = f'put fields with a {name} or a line break in "quotes"'
            else:
                repair = f"separate fields by one {name}"
            raise TaskError(
                f"{path}, line {number}: expected {counted(width, 'field')} as in line {first}, got {len(cells)}: "
                f"{repair}"
            )
    return Grid(name=str(path), header=None, rows=tuple(rows.values()), numbers=tuple(rows), detected=detected)


def other_delimiter(row: Sequence[Any]) -> str | None:
    """Return the name of a delimiter in a row of one cell; None without one, and for wider rows."""
    if len(row) != 1:
        return None
    return next((name for name, mark in DELIMITERS.items() if mark in str(row[0])), None)


def _records(path: Path, mark: str, encoding: str, *, quotes: bool) -> Generator[tuple[int, list[str]]]:
    """Yield the fields of all rows with their first lines; raise TaskError for a malformed row."""
    cells, most = 0, CELLS.value
    for number, record in (_quoted if quotes else _unquoted)(path, mark, encoding):
        cells += len(record)
        if cells > most:
            check_size(path, cells=cells)
        yield number, record


def _quoted(path: Path, mark: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    size, longest = 0, RECORD.value  # characters of the current record

    def lines() -> Iterator[str]:  # a lone carriage return ends a line, too
        nonlocal size
        for _, whole in read_lines(path, encoding):
            for line in io.StringIO(whole, newline="") if "\r" in whole else (whole,):
                size += len(line)
                if size > longest:
                    raise TaskError(f"a row of {path} {RECORD.exceeded()}; is a quote not closed?")
                yield line

    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a field can be as long as a record
    reader = csv.reader(lines(), delimiter=mark, strict=True)
    start = 1
    try:
        for record in reader:
            size = 0
            yield start, record
            start = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(f"{path}, line {start}: malformed CSV ({error}): check the quotes") from error


def _unquoted(path: Path, mark: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    # Neither str.splitlines nor the csv module: both break texts at characters that do not end a line of a TSV.
    for number, line in read_lines(path, encoding):
        yield number, line.removesuffix("\n").removesuffix("\r").split(mark)


def _are_quoted(path: Path, encoding: str) -> bool:
    """Return whether a file with tabs has quoted fields.

    If all rows have as many fields, every field that begins with a quote must be quoted as in RFC 4180; if not, they
    must have as many when read with quotes, since a quoted field can have line breaks.
    """
    widths = set[int]()
    begun, quoted = False, True
    for _, record in _records(path, "\t", encoding, quotes=False):
        if any(record):
            widths.add(len(record))
        for cell in record:
            if cell.startswith('"'):
                begun, quoted = True, quoted and _QUOTED_FIELD.fullmatch(cell) is not None
    if not begun or len(widths) <= 1:
        return begun and quoted
    try:
        with_quotes = {len(record) for _, record in _records(path, "\t", encoding, quotes=True) if any(record)}
    except TaskError:
        return False
    return len(with_quotes) == 1 and with_quotes != {1}


_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"')


# ---- other formats ------------------------------------------------------------------------------------


def _read_jsonl(path: Path, encoding_name: str | None) -> Grid:
    records: dict[int, dict[str, Any]] = {}
    names: dict[str, None] = {}
    most, encoding = CELLS.value, encoding_name or find_encoding(path)
    for number, record in read_json_lines(path, encoding):
        records[number] = {name: _cell(value) for name, value in record.items()}
        names |= dict.fromkeys(record)
        if len(records) * len(names) > most:
            check_size(path, cells=len(records) * len(names))
    rows = tuple(tuple(record.get(name, "") for name in names) for record in records.values())
    notes = encoding_note(encoding, encoding_name)
    nested, numbers = _nested_in(rows), tuple(records)
    return Grid(name=str(path), header=tuple(names), rows=rows, numbers=numbers, detected=notes, nested=nested)


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[BinaryIO]:
    """Open a Parquet file whose unpacked cells are within the limits; any error of its bytes is a TaskError."""
    try:
        with open_regular(path) as file:
            _measure_parquet(file, path)
            file.seek(0)
            yield file
    except TaskError:
        raise
    except Exception as error:
        # any error of pyarrow and pandas: their own errors, a KeyError, a RuntimeError, lack of memory
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TaskError(f"{path} cannot be read as Parquet: {reason}") from error


def _read_parquet(path: Path) -> Grid:
    import pandas
    from pyarrow import parquet

    with open_parquet(path) as file:
        metadata = parquet.read_schema(file).metadata
        file.seek(0)
        frame = pandas.read_parquet(file)
        if twice := [name for name, n in Counter(map(str, frame.columns)).items() if n > 1]:
            raise DataError(f"two columns have the name {twice[0][:40]!r}")
        present = frame.astype(object).where(frame.notna(), None)
        columns = {str(name): list(present[name]) for name in present.columns}
        named = {name: names for name in columns if (names := written_names(metadata, name))}
        return grid_of_columns(
            str(path), columns | {name: class_cells(columns[name], names) for name, names in named.items()}
        )


def _measure_parquet(file: BinaryIO, path: Path) -> None:
    """Raise TaskError if there are too many cells, or they are too large when unpacked, before all are in memory.

    A few bytes can encode a text repeated a million times (a dictionary), or changes to the text before (a delta).
    So texts are read as dictionaries, and other values in batches of at most a quarter of `BYTES`.
    """
    from pyarrow.parquet import ParquetFile

    whole = ParquetFile(file)
    metadata = whole.metadata
    check_size(path, cells=metadata.num_rows)
    for name in whole.schema_arrow.names:
        # inspecting a damaged chunk ends the process (pyarrow 26), reading it raises: so read one row of each column
        next(whole.iter_batches(batch_size=1, columns=[name], use_threads=False), None)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    check_size(path, cells=sum(column.num_values for column in columns))
    check_size(path, unpacked=sum(column.total_uncompressed_size for column in columns))
    deltas = {column.path_in_schema for column in columns if "DELTA_BYTE_ARRAY" in column.encodings}
    longest = [column.total_uncompressed_size for column in columns if column.path_in_schema in deltas]
    longest += [metadata.schema.column(i).length or 1 for i in range(metadata.num_columns)]  # fixed-length values
    texts = {column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"} - deltas
    file.seek(0)
    table = ParquetFile(file, read_dictionary=sorted(texts), page_checksum_verification=True)
    rows, size = min(65536, max(1, BYTES.value // 4 // max(longest, default=1))), 0
    for batch in table.iter_batches(batch_size=rows, use_threads=False):
        size += sum(map(_unpacked_bytes, batch.columns))
        check_size(path, unpacked=size)


def _unpacked_bytes(array: Any) -> int:
    """Return the size in bytes of the values of an Arrow array, with repetitions of dictionary values."""
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


def _cell(value: Any) -> Any:
    """Return the text of a value; values that are neither text nor number as plain lists, mappings and bytes."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return value
    if isinstance(value, Mapping):
        return {key: _within(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set)) or getattr(value, "shape", ()) != ():
        return [_within(part) for part in (value.tolist() if hasattr(value, "tolist") else value)]
    return "" if value is None else str(value)


def _within(value: Any) -> Any:
    """Return a value inside a list or a mapping; numbers stay numbers."""
    return _cell(value) if isinstance(value, (list, tuple, set, Mapping)) or hasattr(value, "tolist") else value


SUFFIXES = (*_MARKS_OF, ".jsonl", ".parquet")
CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".bio")
"""Endings of files with one word per line, which are not tables."""
_OF_OTHER_KINDS = {
    **dict.fromkeys(CONLL_SUFFIXES, "one word with its tag per line, in tasks of kind entities or tags"),
    ".json": "questions in the layout of SQuAD, in tasks of that kind",
}
"""Content of files that are not tables, by ending, for messages."""
