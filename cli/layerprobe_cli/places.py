"""Files and folders that a command will write: what is in their way is reported before the work and not after it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from layerprobe.checks import check_extra
from layerprobe.errors import DataError
from layerprobe.files.atomic import obstacle
from layerprobe.results.shown import IMAGES, is_image


def file_to_write(path: Path | None) -> Path | None:
    """Return a file that will be written."""
    return path and _free(path, path)


def folder_to_write(path: Path | None) -> Path | None:
    """Return a folder that files will be written to."""
    return path and _free(path, path / "file")


def _free(path: Path, file: Path) -> Path:
    if reason := obstacle(file):
        raise typer.BadParameter(f"expected a place to write to, got {path}: {reason}")
    return path


def report_file(path: Path | None) -> Path | None:
    """Return the file of a page, or of its first figure, for which a package is needed."""
    if path is not None and is_image(path):
        check_extra("figures", needed_by=f"--report {path}")
    elif path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"expected a file that ends in .html, {', '.join(IMAGES)}, got {path}")
    return file_to_write(path)


KEEP_NOTHING = ("predict", "score", "compare", "probe", "profile", "check", "export")
"""Commands whose results are wanted alone, and not what the store keeps of the work."""


@contextlib.contextmanager
def usable_cache(command: str, cache_dir: object) -> Iterator[str]:
    """Let a command that keeps nothing use a folder of its own where the usual cache cannot be written; say so."""
    reason = ""
    if command in KEEP_NOTHING and not cache_dir and not os.environ.get("LAYERPROBE_CACHE"):
        from layerprobe.store.store import Store

        root = Store().root
        reason = obstacle(root / "locks" / "any.lock")
    if not reason:
        yield ""
        return
    with TemporaryDirectory(prefix="layerprobe-", ignore_cleanup_errors=True) as folder:
        os.environ["LAYERPROBE_CACHE"] = folder
        try:
            yield f"nothing is kept for the next command, as {root} cannot be written: {reason}"
        finally:
            del os.environ["LAYERPROBE_CACHE"]


def new_folder(folder: Path | None) -> Path | None:
    """Return a folder to write; one that holds the files of others is refused before torch is loaded."""
    with contextlib.suppress(OSError):
        if folder and folder.is_dir() and any(folder.iterdir()) and not (folder / "README.md").is_file():
            if (folder / "config.json").is_file():
                raise DataError(f"{folder} holds a model: if that is the one to export, it comes first")
            raise DataError(f"{folder} is not empty and holds no model that layerprobe wrote: choose another folder")
    return folder
