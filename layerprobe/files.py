"""Files written whole or not at all, and their checksums. Knows bytes and paths, not what is in them."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from layerprobe.errors import StoreError

TEMPORARY = ".tmp-"
"""What the names of files and folders begin with while they are written."""
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space, or choose another folder with --cache-dir"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
        "choose another folder with --cache-dir or LAYERPROBE_CACHE",
    ),
}


@contextlib.contextmanager
def store_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into one line that names the path, the reason and what to do.

    Raises:
        StoreError: In its place.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the disk and the permissions")
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}: {advice}") from error


def from_home(path: str | Path) -> Path:
    """Return a path with ~ as the user's home; ~name stays as it is where there is no such user.

    Examples:
        >>> from_home("~nobody-of-that-name/x.toml").as_posix()
        '~nobody-of-that-name/x.toml'
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for unknown users


def make_directory(path: Path) -> None:
    """Make a directory with its parents.

    Raises:
        StoreError: If it cannot be made.
    """
    with store_errors("make the folder", path):
        path.mkdir(parents=True, exist_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of the store: whole or not at all.

    Raises:
        StoreError: If that fails; then nothing of it is left.
    """
    with store_errors("write", path):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, make it durable and give it its name.

    Raises:
        OSError: If that fails; then nothing of it is left.
    """
    temporary = temporary_path(path)
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    finally:
        # A failure to tidy up must not hide the failure itself.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path`."""
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")


def sync(path: Path) -> None:
    """Make a file or directory durable."""
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    # Windows makes durable only what is open for writing
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written in a folder; only where no other process writes there."""
    for left in folder.glob(f"{TEMPORARY}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # it is in nobody's way
                left.unlink()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem_with(path: Path, *, size: int, sha256: str | None) -> str | None:
    """Return what is wrong with a file, or None; without a sha256 only the size is compared."""
    try:
        on_disk = path.stat().st_size
        if on_disk != size:
            return f"{size} bytes expected, {on_disk} found"
        if sha256 is not None and sha256_of(path) != sha256:
            return "its checksum is not that of the manifest"
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return None
