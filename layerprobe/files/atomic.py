"""Files, results and folders written whole or not at all, with checksums; changed or damaged ones raise an error.

Knows bytes, paths and JSON, not their meaning. A stored JSON file has a checksum, contains the end of its own path,
so that swapped files are noticed, and may list files beside it that belong to it. A folder has
the list `SHA256SUMS`, which `sha256sum --check` reads; its first line, a comment, is the checksum of the other lines.
"""

import contextlib
import ctypes
import errno
import functools
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from layerprobe.errors import DamagedStoreError, DataError, FormatError, LayerProbeError, StoreError, another_folder
from layerprobe.files.inputs import open_regular, read_document
from layerprobe.files.serialisation import Checksum, from_dict, parse_json, sealed, unsealed
from layerprobe.process import limit_advice

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

TEMPORARY = ".tmp-"
"""Prefix of files and folders during writing."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE)
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def store_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into one line with the path, the reason and advice."""
    try:
        yield
    except OSError as error:
        advice = f"free space, or {another_folder()}" if error.errno in _FULL else another_folder()
        if doing == "lock" and error.errno in _NO_LOCKS:
            advice = f"the file system does not support locks: {advice}, on a local disk"
        elif limit := limit_advice(error):
            advice = limit
        elif error.errno not in (*_FULL, *_UNUSABLE):
            advice = "check the disk and the permissions"
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}: {advice}") from error


def readable_size(n_bytes: int) -> str:
    """Return a number of bytes in a readable unit.

    Examples:
        >>> readable_size(1_300_000)
        '1.2 MiB'
    """
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def inside(root: Path, path: Path) -> Path:
    """Return `path`, which lies below `root`, if neither it nor any folder in between is a link.

    Nothing below the root is then written or removed elsewhere. The root and its parents may be links.
    """
    with store_errors("read", path):
        real = Path(os.path.realpath(path))
        if real != Path(os.path.realpath(root)) / os.path.relpath(path, root):
            raise StoreError(
                f"expected {path} itself, got a link to {real}: remove the link; only {root} itself may be one"
            )
    return path


def tree_bytes(folder: Path) -> int:
    """Return the size of all files below a folder, without following links; 0 if it does not exist."""
    size = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # such as another process's temporary file
                size += os.lstat(os.path.join(name, file)).st_size  # noqa: PTH118 - of any name
    return size


def make_directory(path: Path) -> None:
    """Make a directory with its parents."""
    with store_errors("make the folder", path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def locked(root: Path, path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file below `root`; yield False if another process holds the lock and `wait` is not set."""
    from filelock import FileLock, Timeout

    lock = FileLock(inside(root, path))
    make_directory(path.parent)
    with store_errors("lock", path):
        _check_lockable(path)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=-1 if wait else 0)
    if not lock.is_locked:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _check_lockable(path: Path) -> None:
    """Raise OSError if a file cannot be made or locked; filelock could wait for it for ever."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(BlockingIOError):
            flock(descriptor)
    finally:
        os.close(descriptor)


def flock(descriptor: int) -> None:
    """Lock an open file or folder if the platform can; raise BlockingIOError if another process holds the lock."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of the store, whole or not at all."""
    with store_errors("write", path):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, make it durable and rename it; it keeps the mode of the file it replaces.

    A link with that name is replaced.
    """
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")
    try:
        earlier = path.is_file() and not path.is_symlink()
        temporary.touch(0o600 if earlier else 0o666)
        if earlier:
            with contextlib.suppress(OSError, AttributeError):  # only root can change owners, and Windows has none
                shutil.chown(temporary, path.stat().st_uid, path.stat().st_gid)
            shutil.copymode(path, temporary)
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    finally:
        # A failed clean-up must not hide the original error.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync(path.parent)


_IN_THE_WAY = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
}


def obstacle(path: Path) -> str:
    """Return why a user's file cannot be written at a path; empty if it can, with its parents."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            kind = stat.S_IFMT(path.lstat().st_mode)
            if kind != stat.S_IFREG:
                return _IN_THE_WAY.get(kind) or f"it is a link to {os.path.realpath(path)}"
        nearest = next(place for place in path.absolute().parents if os.path.lexists(place))
        if not nearest.is_dir():
            return f"{nearest} is not a folder"
        barred = (place for place in (nearest, path) if os.path.lexists(place) and not os.access(place, os.W_OK))
        return next((f"{place} is not writable" for place in barred), "")
    except (OSError, ValueError) as error:  # such as a path with a NUL
        return getattr(error, "strerror", None) or str(error)


def write_file(path: Path, data: bytes) -> Path:
    """Write a user's file, with its parents, whole or not at all, and return its path.

    Raises:
        LayerProbeError: If it cannot be written, or is not a regular file.
    """
    reason = obstacle(path)
    try:
        if not reason:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise LayerProbeError(f"cannot write {path}: {reason}: choose another path")
    return path


def sync(path: Path) -> None:
    """Make a file or directory durable; some file systems cannot do so for directories."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open directories
        return
    # Windows syncs only files that are open for writing
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove half-written files of a killed process from a folder that no other process writes to."""
    for left in folder.glob(f"{TEMPORARY}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # it does no harm
                left.unlink()


def reserve(file: IO[bytes], n_bytes: int) -> None:
    """Reserve disk space for an open file, if the platform can; writing to a map beyond it would kill the process."""
    if not hasattr(os, "posix_fallocate") or not n_bytes:
        return
    try:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # the file system cannot
            raise


# Seconds after a change within which another change may not alter the file's times.
_RECENT = 2.0


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes, read once per process unless the file changes.

    Changes show in its inode, its size and the times of its last changes, one of which cannot be reset by hand.
    Nothing is remembered between processes: a disk error changes no time.
    """
    status = path.stat()
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if abs(time.time_ns() - changed) < _RECENT * 1e9:
        return file_sha256(path)
    return _cached_sha256(path, identity)


@functools.lru_cache(maxsize=2**16)
def _cached_sha256(path: Path, identity: tuple[int, ...]) -> str:
    return file_sha256(path)


def problem_with(path: Path, *, size: int | None = None, sha256: str | None = None) -> str | None:
    """Return the problem of a file, or None; an omitted size or sha256 is not compared. See `known_sha256`."""
    with store_errors("read", path):
        try:
            if path.is_symlink():
                return "it is a link"
            on_disk = path.stat()
            if not stat.S_ISREG(on_disk.st_mode):
                return "it is not a file"
            if size is not None and on_disk.st_size != size:
                return f"{size} bytes expected, {on_disk.st_size} found"
            if sha256 is not None and known_sha256(path) != sha256:
                return "its checksum does not match the recorded one"
        except (FileNotFoundError, NotADirectoryError):
            return "the file is missing"
    return None


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
        first = "free space, or " if number in (*_FULL, errno.EFBIG) else ""
        raise StoreError(f"cannot write the folder {path}: {os.strerror(number)}: {first}{advice}") from error


def error_number(error: Exception) -> int | None:
    """Return the operating system's number of an error, also from a Rust library; None without one."""
    if isinstance(error, OSError):
        return error.errno
    match = _RUST_ERROR.search(str(error))
    return int(match[1]) if match else None
