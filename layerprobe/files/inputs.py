"""Files that users bring, read within limits. Knows bytes, lines and how many are too many, not formats."""

import codecs
import contextlib
import errno
import gzip
import io
import os
import stat
import typing
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from layerprobe.errors import DataError

_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of something is read, which an environment variable can change."""

    variable: str
    """The environment variable."""
    default: int
    """What it is without the variable."""
    unit: str
    """What is counted, for messages."""

    @property
    def value(self) -> int:
        """The number; raises DataError where the variable is no whole number above 0."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
            raise DataError(f"expected {self.variable} to be a whole number above 0, got {text[:40]!r}")
        return int(text)

    def check(self, n: int, name: object) -> None:
        """Raise DataError if there are more than the limit of them in what is called `name`."""
        if n > self.value:
            raise DataError(f"{name} {self.exceeded()}")

    def exceeded(self) -> str:
        """Return what is wrong and what to do, without the name of the file."""
        return (
            f"has more than {self.value:,} {self.unit}, the limit: take a part of it, or set "
            f"{self.variable} to a higher number"
        )


BYTES = Limit(variable="LAYERPROBE_MAX_BYTES", default=2 * 2**30, unit="bytes when unpacked")
"""Of a table or a file of texts."""
CELLS = Limit(variable="LAYERPROBE_MAX_CELLS", default=20_000_000, unit="lines or cells")
"""Of a table, or lines of a file of texts."""
RECORD = Limit(variable="LAYERPROBE_MAX_RECORD", default=32 * 2**20, unit="bytes in one piece")
"""Of what is parsed at once: a line, a row of a CSV file, a JSON file."""
SETTINGS = Limit(variable="LAYERPROBE_MAX_SETTINGS", default=2**20, unit="bytes of settings")
"""Of a TOML file, whose parser is slow."""


def read_document(path: Path, limit: Limit | None = RECORD) -> bytes:
    """Return the bytes of a JSON or TOML file; without a limit for what layerprobe itself keeps."""
    with open_regular(path) as file:
        if limit is None:
            return file.read()
        size = limit.value
        data = file.read(size + 1)
    if len(data) > size:
        raise OSError(errno.EFBIG, f"it {limit.exceeded()}")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file or a link to one; raise OSError for a pipe, a device or a folder, without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is no regular file")
    return os.fdopen(descriptor, "rb")


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers from 1 and their ends; a .gz is unpacked.

    Only `\n` ends a line. The whole file is measured before the first line comes, so that what is too large is refused
    with no more than a piece of it in memory. A byte order mark is no text.
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
                f"{path} is not UTF-8 ({bad}): save it as UTF-8, or name its encoding with --format encoding="
            ) from error


def _decoded_lines(path: Path, file: IO[bytes], encoding: str) -> Iterator[tuple[int, str]]:
    """Yield lines of an encoding in which the byte of a line end may be part of another character."""
    text, number, longest = io.TextIOWrapper(file, encoding=encoding, newline="\n"), 0, RECORD.value
    try:
        while line := text.readline(longest + 1):
            number += 1
            RECORD.check(len(line), f"a line of {path}")
            yield number, line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeError as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} is not {encoding} after line {number} ({reason[:80]}): give another with --format encoding="
        ) from error
    finally:
        text.detach()


@contextlib.contextmanager
def open_measured(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file whose size and lines are within the limits; a .gz is unpacked."""
    with open_regular(path) as file:
        try:
            packed = path.suffix.lower() == ".gz"
            _measure(gzip.GzipFile(fileobj=file) if packed else file, path)
            file.seek(0)
            yield typing.cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is no whole gzip file: {error}") from error


def _measure(file: BinaryIO | gzip.GzipFile, path: Path) -> None:
    size = lines = line = 0
    while chunk := file.read(min(_CHUNK, RECORD.value)):  # so that no line within a chunk is too long
        size, lines = size + len(chunk), lines + chunk.count(b"\n")
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        RECORD.check(line + (len(chunk) if first < 0 else first), f"a line of {path}")
        line = line + len(chunk) if last < 0 else len(chunk) - last - 1
        BYTES.check(size, path)
        CELLS.check(lines + (line > 0), path)
