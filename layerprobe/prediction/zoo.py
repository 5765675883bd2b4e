"""The zoo on disk: one JSON file. Knows the file, not what predictors make of it."""

from __future__ import annotations

from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.files import write_whole
from layerprobe.results import Zoo, from_json, to_bytes

SHIPPED = Path(__file__).parent / "zoo.json"
"""The zoo that comes with layerprobe."""


def read_zoo(path: str | Path | None = None) -> Zoo:
    """Return a zoo that `write_zoo` wrote.

    Args:
        path: The file; by default the one that comes with layerprobe.

    Raises:
        DataError: If there is no such file, or it holds no zoo.
    """
    file = Path(path) if path is not None else SHIPPED
    if path is None and not file.exists():
        raise DataError("no zoo comes with this version of layerprobe: expected the file of one, such as zoo.json")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise DataError(f"cannot read {file} as a zoo: {reason}") from error
    try:
        return from_json(Zoo, text)
    except DataError as error:
        raise DataError(f"{file} holds no zoo: {error}") from error


def write_zoo(zoo: Zoo, path: str | Path) -> None:
    """Write a zoo on one line, whole or not at all.

    Raises:
        DataError: If a number is not finite.
        StoreError: If it cannot be written.
    """
    write_whole(Path(path), to_bytes(zoo, indent=None))
