"""Tables of a TOML file, read key by key, with errors of one line. Knows what a key may hold, not what it means."""

from __future__ import annotations

import functools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from layerprobe.errors import DataError
from layerprobe.files import from_home
from layerprobe.tasks.tables import SUFFIXES
from layerprobe.tasks.values import TaskSettings

T = TypeVar("T")

_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def read_toml(path: str | Path, what: str) -> str:
    """Return the text of a TOML file.

    Args:
        path: The file.
        what: What messages call it, such as "the chain".

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return from_home(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {what} {path}: {error}; expected a TOML file") from error


def parsed(text: str, where: str) -> dict[str, Any]:
    """Return the top table of a TOML text.

    Raises:
        DataError: If it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is no TOML: {error}") from error


class Keys:
    """A table of the file, from which keys are taken one by one."""

    def __init__(self, where: str, data: Mapping[str, Any], folder: Path | None) -> None:
        self.where, self.data, self.folder = where, data, folder
        self.known: list[str] = []

    def take(self, key: str, read: Callable[[Any], Any], expected: str, **otherwise: Any) -> Any:
        """Return what `read` makes of a key; it raises ValueError or TypeError for what is not as expected."""
        self.known.append(key)
        if key not in self.data:
            if "default" in otherwise:
                return otherwise["default"]
            raise DataError(f"{self.where}: expected {otherwise.get('missing', key)}, got none")
        try:
            return read(self.data[key])
        except (ValueError, TypeError):
            got = json.dumps(self.data[key], ensure_ascii=False, default=str)
            raise DataError(f"{self.where}: expected {key} to be {expected}, got {got[:80]}") from None

    def fields(self, kind: type[T], values: dict[str, Any] | None = None, *, paths: tuple[str, ...] = ()) -> T:
        """Return a value of `kind` from the keys that are called like its fields."""
        values = dict(values or {})
        for name, hint in typing.get_type_hints(kind).items():
            if name in values:
                continue
            read, expected = _reader(hint)
            found = self.take(name, read, expected, default=None)
            if name in self.data:
                values[name] = self.path(found) if name in paths else found
        return made(kind, self.where, **values)

    def model(self, key: str, missing: str | None = None) -> str | None:
        """Return a hub id as it is, and a folder with its path."""
        otherwise = {"default": None} if missing is None else {"missing": missing}
        name: str | None = self.take(key, as_text, "a text: a hub id or a folder", **otherwise)
        if name is None or self.folder is None:
            return name
        return self.path(name) if name.startswith(".") or (self.folder / name).is_dir() else name

    def source(self, name: str) -> str:
        """Return a file or folder with its path, and anything else, such as a hub id, as it is."""
        if self.folder is None:
            return name
        is_path = name.startswith(".") or Path(name).suffix.lower() in SUFFIXES or (self.folder / name).exists()
        return self.path(name) if is_path else name

    def task(self, source: str) -> TaskSettings:
        """Return the task of a source from the keys that are called like the other fields of TaskSettings."""
        values: dict[str, Any] = {"source": source}
        values["columns"] = self.take("columns", as_columns, "a text such as s1,s2,score or a list", default=None)
        values["score_range"] = self.take("score_range", as_two_numbers, "two numbers such as [0, 5]", default=None)
        return self.fields(TaskSettings, values, paths=("validation", "test"))

    def path(self, name: str) -> str:
        """Return a path, relative ones from the folder of the file, so that it holds wherever it is written again."""
        return name if self.folder is None or name.startswith("~") else str((self.folder / name).absolute())

    def done(self) -> None:
        """Raise DataError if there are keys that nothing took."""
        if unknown := [key for key in self.data if key not in self.known]:
            raise DataError(f"{self.where}: {', '.join(unknown)} is no key here, expected {', '.join(self.known)}")


def made(kind: type[T], where: str, /, **values: Any) -> T:
    """Return a value of `kind`; what is wrong with it is told with where it stands."""
    try:
        return kind(**values)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _reader(hint: Any) -> tuple[Callable[[Any], Any], str]:
    """Return what reads a key whose field has this type, and what is expected there."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return functools.partial(_one_of, choices), f"one of {', '.join(choices)}"
    return of_kind(hint), _WORDS[hint]


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError
    return str(value)


def of_kind(kind: type[Any]) -> Callable[[Any], Any]:
    """Return a reader of a value of just this type; a whole number also is a float."""

    def read(value: Any) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:  # True is no whole number
            raise TypeError
        return value

    return read


as_text = of_kind(str)
as_table = of_kind(dict)


def as_items(value: Any, kind: type[Any]) -> tuple[Any, ...]:
    """Read a list of values of one type."""
    return tuple(map(of_kind(kind), of_kind(list)(value)))


def as_tables(value: Any) -> tuple[dict[str, Any], ...]:
    """Read a list of tables."""
    return as_items(value, dict)


def as_integers(value: Any) -> tuple[int, ...]:
    """Read a list of whole numbers."""
    return as_items(value, int)


def as_texts(value: Any) -> tuple[str, ...]:
    """Read a text or a list of texts."""
    return (value,) if isinstance(value, str) else as_items(value, str)


def as_seeds(value: Any) -> tuple[int, ...]:
    """Read a list of seeds, or how many there are, from 0."""
    if type(value) is not int:
        return as_integers(value)
    if not 1 <= value <= 1000:
        raise ValueError
    return tuple(range(value))


def as_columns(value: Any) -> tuple[str, ...]:
    """Read names of columns, or their numbers, of a list or with commas between."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(str(part) if type(part) is int else as_text(part) for part in of_kind(list)(value))


def as_two_numbers(value: Any) -> tuple[float, float]:
    """Read a list of two numbers."""
    low, high = as_items(value, float)
    return low, high


def toml_value(value: Any) -> str:
    """Return a text, number, truth value or tuple of such as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # TOML's strings are JSON's, but for one character that JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
