"""Results kept on disk as JSON with a checksum, and errors where one is not as it was written.

Knows files and JSON, not what is in it. A kept result says where it is kept, by the end of its path, so that two that
changed places are noticed, too, and may list files beside it that belong to it. `folders.py` does this for folders with
weights.
"""

import functools
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from layerprobe.errors import DamagedStoreError, DataError
from layerprobe.files.atomic import inside, problem_with, sha256_of, store_errors, write_whole
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import Checksum, from_dict, parse_json, sealed, unsealed

logger = logging.getLogger(__name__)

T = TypeVar("T")


def write_kept(path: Path, value: Any, *, root: Path, files: Iterable[str] = ()) -> None:
    """Write a result below `root`, whole or not at all, with its checksum and those of files beside it."""
    inside(root, path)
    with store_errors("read", path.parent):
        sums = {name: sha256_of(path.parent / name) for name in files}
    write_whole(path, sealed(value, name=_relative(root, path), files=sums))


def read_kept(kind: type[T], path: Path, *, root: Path, older: bool = True) -> T | None:
    """Return the result of a file below `root`, None where there is none.

    Args:
        kind: What it is.
        path: Of the file.
        root: The folder that it was written below, or a part of that which is nearer.
        older: Whether one without a checksum, written by a layerprobe that wrote none, is read, with a warning.
    """
    inside(root, path)
    with store_errors("read", path):
        try:
            data = read_document(path, limit=None)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        content, checksum = parsed(data)
        if checksum is not None:
            for problem in problems_of(path, checksum, root=root):
                raise DataError(problem)
        elif not older:
            raise DataError("it has no checksum, as an older layerprobe wrote it")
        value: T = from_dict(kind, content)
    except ValueError as error:  # DataError is one
        raise DamagedStoreError(f"{path} cannot be read ({error})") from error
    if checksum is None:
        warn_of_older(f"{path.name} below {path.parent.parent}")
    return value


def parsed(data: bytes) -> tuple[Any, Checksum | None]:
    """Return the content of a kept result and its checksum, None where it has none."""
    try:
        return unsealed(parse_json(data.decode()))
    except UnicodeDecodeError as error:
        raise DataError("it is no UTF-8") from error
    except ValueError as error:
        raise DataError(str(error)) from error


def parsed_as(kind: type[T], data: bytes) -> tuple[T, Checksum | None]:
    """Return a kept result of a type, and its checksum, None where it has none."""
    try:
        content, checksum = parsed(data)
        return cast("T", from_dict(kind, content)), checksum
    except DataError as error:
        raise DataError(f"expected a {kind.__name__} as JSON: {error}") from error


def problems_of(path: Path, checksum: Checksum, *, root: Path, again: bool = False) -> Iterable[str]:
    """Yield what is wrong with the place of a kept result and with the files that belong to it."""
    if checksum.name and not _agree(checksum.name, _relative(root, path)):
        yield f"it was kept as {checksum.name}: moved, or written over by another"
    for name, sha256 in checksum.files.items():
        # what belongs to it lies beside it: no name leads elsewhere
        problem = problem_with(path.parent / Path(name).name, sha256=sha256, again=again)
        if problem:
            yield f"{name}, which belongs to it: {problem}"


@functools.lru_cache(maxsize=4096)  # once for all runs of a folder
def warn_of_older(what: str) -> None:
    """Warn that results cannot be checked."""
    logger.warning("%s has no checksum: an older layerprobe wrote it, and it is read as it is", what)


def _relative(root: Path, path: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def _agree(stored: str, computed: str) -> bool:
    """Return whether two ends of a path are one, as far as both are known."""
    ends = zip(reversed(stored.split("/")), reversed(computed.split("/")), strict=False)
    return all(first == second for first, second in ends)
