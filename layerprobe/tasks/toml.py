"""Tasks and models in a TOML file: where they come from, and how a task is read. Loads nothing."""

import functools
from pathlib import Path
from typing import Any

from layerprobe.files.serialisation import Reader, from_dict
from layerprobe.files.toml import Keys, path_from, text
from layerprobe.tasks.tables import CONLL_SUFFIXES, SUFFIXES
from layerprobe.tasks.values import TaskSettings


def taken_task(keys: Keys, key: str = "source", *, named: str = "") -> TaskSettings:
    """Return the task whose source a key of a table names, and whose other settings are keys beside it.

    Args:
        keys: The table.
        key: That of the source.
        named: A source that is the name of something else than a file or data set.
    """
    also = f'"{named}", ' if named else ""
    expected = f"{also}a file, a folder, stsb or the hub id of a data set"
    source = keys.take(key, text(lambda name: name if name == named else source_from(keys.folder, name), expected))
    readers = {"columns": COLUMNS, "validation": text(keys.path), "test": text(keys.path)}
    return keys.fields(TaskSettings, {"source": source}, readers=readers)


def model_reader(keys: Keys) -> Reader:
    """Return the reader of a model: a folder, from the file's own on, or a hub id."""
    return text(functools.partial(source_from, keys.folder), "a hub id or a folder")


def source_from(folder: Path | None, name: str) -> str:
    """Return a file or folder with its path, and anything else, such as a hub id, as it is."""
    if folder is None or not name:
        return name
    is_path = (
        name.startswith((".", "~"))
        or Path(name).suffix.lower() in (*SUFFIXES, *CONLL_SUFFIXES)
        or (folder / name).exists()
    )
    return path_from(folder, name) if is_path else name


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    parts = [str(part) if type(part) is int else part for part in from_dict(tuple[Any, ...], value)]
    columns: tuple[str, ...] = from_dict(tuple[str, ...], parts)
    return columns


COLUMNS = Reader(_columns, "a text such as s1,s2,score or a list of names or numbers")
