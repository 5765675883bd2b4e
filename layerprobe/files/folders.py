"""Results and folders stored on disk whole or not at all, with checksums; changed or damaged ones raise an error.

Knows bytes, paths and JSON, not their meaning. A stored JSON file has a checksum, contains the end of its own path,
so that swapped files are noticed, and may list files beside it that belong to it. A folder has
the list `SHA256SUMS`, which `sha256sum --check` reads; its first line, a comment, is the checksum of the other lines.
"""

import contextlib
import ctypes
import errno
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from layerprobe.errors import DamagedStoreError, DataError, FormatError, StoreError, another_folder
from layerprobe.files.atomic import TEMPORARY, file_sha256, flock, inside, problem_with, store_errors, sync, write_whole
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import Checksum, from_dict, parse_json, sealed, unsealed

T = TypeVar("T")


def write_kept(path: Path, value: Any, *, root: Path, files: Iterable[str] = ()) -> None:
    """Write a result below `root`, whole or not at all, with its checksum and those of files beside it."""
    inside(root, path)
    with store_errors("read", path.parent):
        sums = {name: file_sha256(path.parent / name) for name in files}
    write_whole(path, sealed(value, name=_relative(root, path), files=sums))


def read_kept(kind: type[T], path: Path, *, root: Path) -> T | None:
    """Return the result in a file below `root`, or below a subfolder of it; None if there is no file.

    Raises:
        FormatError: If another version of layerprobe wrote the file.
        DamagedStoreError: If the file was altered, or is not of that type.
    """
    inside(root, path)
    with store_errors("read", path):
        try:
            data = read_document(path, limit=None)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        content, checksum = _checked(data)
        for problem in kept_problems(path, checksum, root=root):
            raise DataError(problem)
        return cast("T", from_dict(kind, content))
    except FormatError as error:
        raise FormatError(f"{path} cannot be read: {error}, or {another_folder()}") from error
    except ValueError as error:  # includes DataError
        raise DamagedStoreError(f"{path} cannot be read ({error})") from error


def _checked(data: bytes) -> tuple[Any, Checksum]:
    """Return the content of a stored result and its checksum."""
    try:
        content, checksum = unsealed(parse_json(data.decode()))
    except UnicodeDecodeError as error:
        raise DataError("it is not UTF-8") from error
    if checksum is None:
        raise DataError("it has no checksum")
    return content, checksum


def parsed_as(kind: type[T], data: bytes) -> T:
    """Return a stored result as a value of a type."""
    try:
        return cast("T", from_dict(kind, _checked(data)[0]))
    except DataError as error:
        raise DataError(f"expected a {kind.__name__} as JSON: {error}") from error


def kept_problems(path: Path, checksum: Checksum, *, root: Path) -> Iterable[str]:
    """Yield the problems of a stored result's location and of the files that belong to it."""
    # both paths end alike, as far as both are known
    ends = zip(reversed(checksum.name.split("/")), reversed(_relative(root, path).split("/")), strict=False)
    if checksum.name and any(stored != computed for stored, computed in ends):
        yield f"it was saved as {checksum.name}: it was moved, or another file was copied over it"
    for name, sha256 in checksum.files.items():
        # its files lie beside it: no name may lead elsewhere
        problem = problem_with(path.parent / Path(name).name, sha256=sha256)
        if problem:
            yield f"its file {name}: {problem}"


def _relative(root: Path, path: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


SUMS = "SHA256SUMS"
"""Name of the list of checksums in a folder."""
FREE = ("README.md", SUMS)
"""Files without a checksum: users may edit a model card."""

# Rust libraries (safetensors, tokenizers) report a failed write in their own exceptions, which end like this.
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")
_PARTS = ("old", "new")
# Flags of renameat2: relative to the working directory, and swap; macOS's renamex_np uses the same number to swap.
_HERE, _SWAP = -100, 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# First line of our lists, also of damaged ones; other lists begin with a file.
_OURS = re.compile(r"(#.*|.* of the lines below|)$", re.MULTILINE)


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a folder beside `path` to write to; once everything is written and durable, it becomes `path`.

    It gets a list of checksums, see `folder_problems`. If anything raises, including an interruption, the folder is
    removed and `path` stays as it was. The next process that writes there removes what a killed process left.

    Args:
        path: Folder to make, with its parents. It may exist if empty.
        replace: Whether `path` may be a folder with files; it is removed once the new one has its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary, descriptor = _begin(path)
    old = _beside(path, "old")
    try:
        yield temporary
        _share(temporary)
        files = [(file.relative_to(temporary).as_posix(), file) for file in temporary.rglob("*") if file.is_file()]
        lines = "".join(f"{file_sha256(file)}  {name}\n" for name, file in sorted(files) if name not in FREE)
        (temporary / SUMS).write_text(f"{_headed(lines)}\n{lines}", encoding="utf-8", newline="\n")
        for written in (*temporary.rglob("*"), temporary):
            sync(written)
        filled = path.is_dir() and any(path.iterdir())
        if not (replace and filled and _exchange(temporary, path)):
            if replace and filled:
                path.rename(old)
            elif path.is_dir():
                path.rmdir()  # an empty folder; Windows cannot rename onto it
            temporary.rename(path)
        sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        # a failed clean-up must not hide the original error
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _beside(path: Path, what: str) -> Path:
    """Return a new name beside a folder; leftovers of killed processes are recognised by it."""
    return path.with_name(f"{TEMPORARY}{what}-{path.name[:100]}-{secrets.token_hex(6)}")


def _begin(path: Path) -> tuple[Path, int | None]:
    """Return an empty folder beside `path`, and a descriptor that locks it while this process lives."""
    while True:
        temporary = _beside(path, "new")
        temporary.mkdir()
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # another process removed it before it was locked
            return temporary, _lock(temporary)


def _lock(folder: Path) -> int | None:
    """Lock a folder; return None if the file system or the platform has no locks.

    Raises:
        BlockingIOError: Another process holds the lock.
        FileNotFoundError: The folder has been removed.
    """
    if os.name == "nt":  # folders cannot be opened there
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flock(descriptor)
        folder.stat()
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(path: Path) -> None:
    """Clean up after a process that was killed while writing a folder: restore the old version, remove the new one."""
    left = {what: sorted(path.parent.glob(f"{TEMPORARY}{what}-{glob.escape(path.name[:100])}-*")) for what in _PARTS}
    if left["old"] and not path.exists():
        left["old"].pop().rename(path)
    for folder in (*left["old"], *left["new"]):
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            descriptor = _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders atomically; return False if the system or the file system cannot."""
    names = os.fsencode(first), os.fsencode(second)
    try:
        library = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return not library.renamex_np(*names, _SWAP)
        return not library.renameat2(_HERE, names[0], _HERE, names[1], _SWAP)
    except (AttributeError, OSError, TypeError):  # Windows, and C libraries without it
        return False


def folder_problems(path: Path) -> Iterator[str]:
    """Yield the problems of a folder's files by its list of checksums, one line per file; nothing without a list.

    Lists by other tools, such as the output of `sha256sum *`, are ignored.
    """
    text = _read_sums(path)
    if text is None:
        return
    first, _, lines = text.partition("\n")
    if first != _headed(lines):
        yield f"{path / SUMS}: it was damaged or edited"
        return
    for line in lines.splitlines():
        sha256, _, name = line.partition("  ")
        # the cache of the hub uses links
        real = Path(os.path.realpath(path / name))
        if problem := problem_with(real, sha256=sha256):
            yield f"{path / name}: {problem}"


def listed_files(path: Path) -> frozenset[str]:
    """Return the file names in a folder's list of checksums; nothing if the list is damaged, or not ours."""
    first, _, lines = (_read_sums(path) or "").partition("\n")
    return frozenset(line.partition("  ")[2] for line in lines.splitlines() if first == _headed(lines))


def _read_sums(folder: Path) -> str | None:
    file = folder / SUMS
    with store_errors("read", file):
        text = read_document(file, limit=None).decode(errors="replace") if file.exists() else None
    return text if text is not None and _OURS.match(text) else None


def _share(folder: Path) -> None:
    """Give the files of a new folder the permissions of the umask; safetensors restricts them to the owner."""
    allowed = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_file() and not path.is_symlink() and mode | allowed != mode:
            path.chmod(mode | allowed)


def _headed(lines: str) -> str:
    return f"# {hashlib.sha256(lines.encode()).hexdigest()} of the lines below"


@contextlib.contextmanager
def folder_errors(path: Path, *, advice: str) -> Iterator[None]:
    """Turn a failed write, also by a Rust library, into one line: the folder, the reason, and `advice`."""
    try:
        yield
    except Exception as error:
        number = error_number(error)
        if number is None:
            raise
        first = "free space, or " if number in _FULL else ""
        raise StoreError(f"cannot write the folder {path}: {os.strerror(number)}: {first}{advice}") from error


def error_number(error: Exception) -> int | None:
    """Return the operating system's number of an error, also from a Rust library; None without one."""
    if isinstance(error, OSError):
        return error.errno
    match = _RUST_ERROR.search(str(error))
    return int(match[1]) if match else None
