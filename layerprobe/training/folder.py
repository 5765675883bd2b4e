"""Where a trained model is to be written, and what is there. Knows folders; knows nothing of training."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from layerprobe.errors import DataError
from layerprobe.files import from_home
from layerprobe.folders import folder_errors
from layerprobe.serialisation import from_json

T = TypeVar("T")


def check_target(
    out: Path, kind: type[T], *, record: str, what: str, overwrite: bool, source: Path | None = None
) -> tuple[Path, T | None]:
    """Return the real path of a folder that may be written, and the record of the model that is there.

    Args:
        out: The folder.
        kind: What the record is.
        record: The name of its file.
        what: What the model is called in messages, such as adapted model.
        overwrite: Whether such a model there may be replaced; nothing else ever is.
        source: A local model that must not be replaced by what becomes of it.

    Raises:
        DataError: If there is something else, or a file.
        StoreError: If the folder cannot be read.
    """
    target = Path(os.path.realpath(from_home(out)))
    with folder_errors(out, advice=f"choose another place for the {what}"):
        if not target.exists():
            return target, None
        if not target.is_dir():
            raise DataError(f"expected a folder for the {what}, got the file {out}")
        if not any(target.iterdir()):
            return target, None
    try:
        found = from_json(kind, (target / record).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # DataError is a ValueError
        raise DataError(
            f"{out} is not empty and holds no {what}, so it is not replaced: choose another folder"
        ) from error
    if overwrite and source is not None and target in (real := Path(os.path.realpath(source)), *real.parents):
        raise DataError(f"{out} holds the model itself, so it is not replaced: choose another folder")
    return target, found


def as_block(lines: Iterable[str]) -> str:
    """Return lines as an indented block, in which Markdown sees no markup."""
    return "\n".join(f"    {' '.join(line.splitlines())}".rstrip() for line in lines)
