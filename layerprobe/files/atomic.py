"""Files written whole or not at all, and their checksums. Knows bytes and paths, not their meaning."""

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from layerprobe.errors import DataError, LayerProbeError, StoreError, another_folder
from layerprobe.files.inputs import open_regular
from layerprobe.process import limit_advice

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

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
