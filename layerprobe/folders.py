"""Folders written whole or not at all. Knows bytes and paths, not what is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from layerprobe.errors import StoreError
from layerprobe.files import TEMPORARY

# Rust libraries (safetensors, tokenizers) tell of a failed write in exceptions of their own, with this at the end.
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder beside `path` to write to; when all is written and durable, it becomes `path`.

    If anything is raised meanwhile, an interruption too, nothing of it is left and `path` is as it was.

    Args:
        path: The folder to make; its parents are made where they lack. An empty one may be there.
        replace: Whether a folder with files may be there, too; it is removed once the new one has its name.

    Raises:
        OSError: If it cannot be written, or a folder with files is there that is not to be replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")
    try:
        temporary.mkdir()
        yield temporary
        _make_durable(temporary)
        if replace and path.is_dir() and any(path.iterdir()):
            _exchange(path, temporary)
        else:
            _take_name(temporary, path)
        _sync(path.parent)
    finally:
        # a failure to tidy up must not hide the failure itself
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def folder_errors(path: Path, *, advice: str) -> Iterator[None]:
    """Turn a failed write, also of a library in Rust, into one line that names the folder and the reason.

    Args:
        path: The folder that is written.
        advice: What to do instead.

    Raises:
        StoreError: In place of the error of the writer.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        first = "free space, or " if number in _FULL else ""
        raise StoreError(f"cannot write the folder {path}: {os.strerror(number)}: {first}{advice}") from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _RUST_ERROR.search(str(error))
    return int(match.group(1)) if match else None


def _take_name(temporary: Path, path: Path) -> None:
    if path.is_dir():
        path.rmdir()  # an empty one; Windows renames onto none
    temporary.rename(path)


def _exchange(path: Path, temporary: Path) -> None:
    """Put `temporary` in the place of `path`, and what was there away; back where that fails."""
    old = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")
    try:
        path.rename(old)
        temporary.rename(path)
    except BaseException:  # an interruption, too
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _make_durable(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    # Windows makes durable only what is open for writing
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
