"""Read users' files within limits; keep texts that are too many for memory in a temporary file.

Knows bytes, lines and limits, not formats.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import errno
import gzip
import io
import itertools
import mmap
import os
import stat
import tempfile
import typing
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, overload

from layerprobe.errors import DataError, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on the size of an input, which an environment variable can change."""

    variable: str
    """Name of the environment variable."""
    default: int
    """Value without the variable."""
    unit: str
    """Unit of the value, for messages."""

    @property
    def value(self) -> int:
        """Value of the limit; raises DataError if the variable is not a whole number above 0."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
            raise DataError(f"expected {self.variable} to be a whole number above 0, got {text[:40]!r}")
        return int(text)

    def check(self, n: int, name: object) -> None:
        """Raise DataError if `n` exceeds the limit; `name` is the input in the message."""
        if n > self.value:
            raise DataError(f"{name} {self.exceeded()}")

    def exceeded(self) -> str:
        """Return the problem and the advice, without the file's name."""
        return (
            f"has more than {self.value:,} {self.unit}, the limit: use a part of it, or set "
            f"{self.variable} to a higher number"
        )


BYTES = Limit(variable="LAYERPROBE_MAX_BYTES", default=2 * 2**30, unit="bytes when unpacked")
"""Size of a table or a file of texts."""
CELLS = Limit(variable="LAYERPROBE_MAX_CELLS", default=20_000_000, unit="lines or cells")
"""Size of a table, or lines of a file of texts."""
RECORD = Limit(variable="LAYERPROBE_MAX_RECORD", default=32 * 2**20, unit="bytes in one piece")
"""Size of a unit parsed at once: a line, a row of a CSV file, a JSON file."""
SETTINGS = Limit(variable="LAYERPROBE_MAX_SETTINGS", default=2**20, unit="bytes of settings")
"""Size of a TOML file, whose parser is slow."""


FASTA = (".fasta", ".fa", ".faa", ".fasta.gz", ".fa.gz", ".faa.gz")
"""Suffixes of files with sequences of letters."""
DATA = (
    *FASTA,
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".npy", ".npz", ".safetensors"),
    *(".conll", ".conllu", ".iob", ".bio"),
)
"""Suffixes of data files, which no name on the Hub has."""


def from_home(path: str | Path) -> Path:
    """Return a path with ~ expanded; ~name stays unchanged if there is no such user.

    Raises:
        DataError: If no system accepts the path: it contains a NUL, or a name is too long.

    Examples:
        >>> from_home("~nobody-of-that-name/x.toml").as_posix()
        '~nobody-of-that-name/x.toml'
    """
    expanded = Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for unknown users
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            expanded.lstat()
    except (OSError, ValueError) as error:
        raise DataError(f"expected a path, got {path}: {getattr(error, 'strerror', None) or error}") from error
    return expanded


def is_path(word: str) -> bool:
    """Return whether a word can only be a path, not a name on the Hub.

    Examples:
        >>> is_path("pairs.csv"), is_path("./pairs"), is_path("a/b/c"), is_path("org/name")
        (True, True, True, False)
    """
    named = word.lower().removesuffix(".gz").endswith(DATA)
    return named or word.startswith((".", "/", "~")) or word.count("/") > 1 or "\\" in word


def similar_file(path: str | Path) -> str:
    """Return a question with the most similar file name, to end a message about a missing path; empty without one."""
    missing = Path(path)
    with contextlib.suppress(OSError, ValueError), os.scandir(missing.parent) as entries:
        names = {entry.name.partition(".")[0].lower(): entry.name for entry in itertools.islice(entries, 10_000)}
        near = difflib.get_close_matches(missing.name.partition(".")[0].lower()[:80], names, n=1)
        return f"; did you mean {names[near[0]]!r}?" if near and not missing.exists() else ""
    return ""


def read_document(path: Path, limit: Limit | None = RECORD) -> bytes:
    """Return the bytes of a JSON or TOML file; files written by layerprobe need no limit."""
    with open_regular(path) as file:
        if limit is None:
            return file.read()
        size = limit.value
        data = file.read(size + 1)
    if len(data) > size:
        raise OSError(errno.EFBIG, f"it {limit.exceeded()}", str(path))
    return data


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file or a link to one; raise OSError for a pipe, a device or a folder, without blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        reason = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, reason, str(path))
    return os.fdopen(descriptor, "rb")


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers from 1 and their line ends; a .gz is unpacked.

    Only `\n` ends a line. The whole file is measured before the first line is yielded, so that too large a file is
    refused with at most one chunk in memory. A byte order mark is skipped.
    """
    with open_measured(path) as file:
        if codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig"):
            yield from _decoded_lines(path, file, encoding)
            return
        try:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte 0x{error.object[error.start]:02x} in line {number}"
            raise DataError(
                f"{path} is not UTF-8 ({bad}): save it as UTF-8, or name its encoding with "
                f"{option('format', 'encoding=')}"
            ) from error


def _decoded_lines(path: Path, file: IO[bytes], encoding: str) -> Iterator[tuple[int, str]]:
    """Yield lines in an encoding where the byte of a line end may be part of another character."""
    text, number, longest = io.TextIOWrapper(file, encoding=encoding, newline="\n"), 0, RECORD.value
    try:
        while line := text.readline(longest + 1):
            number += 1
            RECORD.check(len(line), f"a line of {path}")
            yield number, line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeError as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} is not {encoding} after line {number} ({reason[:80]}): name another encoding with "
            f"{option('format', 'encoding=')}"
        ) from error
    finally:
        text.detach()


@contextlib.contextmanager
def open_measured(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file whose size and line lengths are within the limits; a .gz is unpacked."""
    with open_regular(path) as file:
        try:
            packed = path.suffix.lower() == ".gz"
            _measure(gzip.GzipFile(fileobj=file) if packed else file, path)
            file.seek(0)
            yield typing.cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is not a complete gzip file: {error}") from error


def _measure(file: BinaryIO | gzip.GzipFile, path: Path) -> None:
    size = lines = line = 0
    while chunk := file.read(min(_CHUNK, RECORD.value)):  # no line within a chunk is too long
        size, lines = size + len(chunk), lines + chunk.count(b"\n")
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        RECORD.check(line + (len(chunk) if first < 0 else first), f"a line of {path}")
        line = line + len(chunk) if last < 0 else len(chunk) - last - 1
        BYTES.check(size, path)
        CELLS.check(lines + (line > 0), path)


IN_MEMORY = 2**24
"""Total characters above which texts are stored in a file."""
CHUNK = 4096
"""Number of texts read at once."""


class SpooledTexts(Sequence[str]):
    """Texts in a memory map of an unnamed temporary file; memory holds 12 bytes per text, their positions.

    Equal to any sequence of the same texts.
    """

    def __init__(self, file: mmap.mmap, starts: NDArray[np.int64], sizes: NDArray[np.int32]) -> None:
        self._file, self._starts, self._sizes = file, starts, sizes

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...
    def __getitem__(self, row: int | slice) -> str | tuple[str, ...]:
        """Return one text, or the texts of a slice."""
        starts, sizes = self._starts[row], self._sizes[row]
        if isinstance(row, slice):
            return tuple(map(self._text, starts.tolist(), sizes.tolist()))
        return self._text(int(starts), int(sizes))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: NDArray[np.intp]) -> SpooledTexts:
        """Return the texts of the given rows, from the same file."""
        return SpooledTexts(self._file, self._starts[rows], self._sizes[rows])

    def _text(self, start: int, size: int) -> str:
        return self._file[start : start + size].decode("utf-8", "surrogatepass")


def spooled(texts: Iterable[str]) -> Sequence[str]:
    """Return texts, read once: as a tuple, or as `SpooledTexts` if they exceed `IN_MEMORY` characters."""
    iterator, head, size = iter(texts), list[str](), 0
    for text in iterator:
        head.append(text)
        size += len(text)
        if size > IN_MEMORY:
            break
    else:
        return tuple(head)
    try:
        return _spool_to_file(itertools.chain(head, iterator))
    except OSError as error:
        raise DataError(
            f"cannot store texts in a temporary file in {tempfile.gettempdir()} ({error.strerror or error}): "
            "free space, or name another folder with TMPDIR"
        ) from error


def _spool_to_file(texts: Iterator[str]) -> SpooledTexts:
    import numpy as np  # late: `--help` imports this module

    sizes: list[NDArray[np.int32]] = []
    with tempfile.TemporaryFile(prefix="layerprobe-") as file:
        while chunk := list(itertools.islice(texts, CHUNK)):
            data = [text.encode("utf-8", "surrogatepass") for text in chunk]
            sizes.append(np.array([len(text) for text in data], dtype=np.int32))
            file.writelines(data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    together = np.concatenate(sizes)
    return SpooledTexts(mapped, np.cumsum(together, dtype=np.int64) - together, together)
