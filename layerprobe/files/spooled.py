"""More texts than memory should hold, in a temporary file. Knows texts and places in a file, not what they are for."""

import itertools
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError

IN_MEMORY = 2**24
"""Characters of texts from which on they are kept in a file."""
CHUNK = 4096
"""Texts that are read at a time."""


class SpooledTexts(Sequence[str]):
    """Texts in a memory map of a temporary file that has no name; 12 bytes a text are in memory, and say where it is.

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
        """Return one text, or those of a slice."""
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

    def take(self, rows: NDArray[np.intp]) -> "SpooledTexts":
        """Return the texts of some rows, from the same file."""
        return SpooledTexts(self._file, self._starts[rows], self._sizes[rows])

    def _text(self, start: int, size: int) -> str:
        return self._file[start : start + size].decode("utf-8", "surrogatepass")


def spooled(texts: Iterable[str]) -> Sequence[str]:
    """Return texts, read once: a tuple of them, or `SpooledTexts` where they have more than `IN_MEMORY` characters."""
    iterator, head, size = iter(texts), list[str](), 0
    for text in iterator:
        head.append(text)
        size += len(text)
        if size > IN_MEMORY:
            break
    else:
        return tuple(head)
    try:
        return _in_file(itertools.chain(head, iterator))
    except OSError as error:
        raise DataError(
            f"cannot keep texts in a temporary file in {tempfile.gettempdir()} ({error.strerror or error}): "
            "free space, or name another folder with TMPDIR"
        ) from error


def _in_file(texts: Iterator[str]) -> SpooledTexts:
    sizes = list[NDArray[np.int32]]()
    with tempfile.TemporaryFile(prefix="layerprobe-") as file:
        while chunk := list(itertools.islice(texts, CHUNK)):
            data = [text.encode("utf-8", "surrogatepass") for text in chunk]
            sizes.append(np.array([len(text) for text in data], dtype=np.int32))
            file.writelines(data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    together = np.concatenate(sizes)
    return SpooledTexts(mapped, np.cumsum(together, dtype=np.int64) - together, together)
