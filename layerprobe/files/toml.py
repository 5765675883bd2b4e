"""Tables of a TOML file -> values, key by key, and back. Knows what a key may hold, not what it means."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files.atomic import from_home
from layerprobe.files.inputs import SETTINGS, read_document
from layerprobe.tasks.tables import CONLL_SUFFIXES, SUFFIXES
from layerprobe.tasks.values import TaskSettings

T = TypeVar("T")

DEPTH = 16
"""Tables and lists within each other, at most."""
# Part of a key, or a string on one line.
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?)"""
# Comments and strings on several lines, to step over them; then keys such as a."b".c, each read once.
_TOKENS = (
    r"\#[^\n]*+",
    r""""{3}(?:[^"\\]|\\.|"{1,2}(?!"))*+"{0,5}""",
    r"""'{3}(?:[^']|'{1,2}(?!'))*+'{0,5}""",
    rf"(?P<key>{_PART}(?:[ \t]*\.[ \t]*{_PART})*+)",
)
_TOKEN = re.compile("|".join(_TOKENS), re.DOTALL)
_WORDS = {
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
}
_COUNTS = {2: "two", 3: "three"}
_MISSING = object()


# ---- what a key may hold ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """What a key may hold."""

    read: Callable[[Any], Any]
    """Returns the value; raises ValueError, TypeError, OverflowError or KeyError for anything else."""
    expected: str
    """What messages call it."""


def reader(hint: Any) -> Reader:
    """Return the reader of a field's type: text, truth value, number, Literal, a tuple of such, or one of these | None.

    Examples:
        >>> reader(tuple[float, float]).expected
        'two numbers in a list'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (hint,) = (option for option in arguments if option is not type(None))
        return reader(hint)
    if origin is tuple:
        item, count = arguments[0], None if arguments[-1] is Ellipsis else len(arguments)
        words = _words(item, many=True)
        expected = f"a list of {words}" if count is None else f"{_COUNTS[count]} {words} in a list"
        return Reader(functools.partial(_items, reader(item).read, count), expected)
    read = functools.partial(_one_of, arguments) if origin is Literal else functools.partial(_exactly, hint)
    return Reader(read, _words(hint))


def _words(hint: Any, *, many: bool = False) -> str:
    if typing.get_origin(hint) is Literal:
        return f"{'some' if many else 'one'} of {', '.join(typing.get_args(hint))}"
    return _WORDS[hint][many]


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError
    return str(value)


def _exactly(kind: type[Any], value: Any) -> Any:
    """Return a value of just this type; a whole number also is a float."""
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:  # True is no whole number
        raise TypeError
    if kind is float and not math.isfinite(value):
        raise ValueError
    return value


def _items(read: Callable[[Any], Any], count: int | None, value: Any) -> tuple[Any, ...]:
    items = tuple(map(read, _exactly(list, value)))
    if count not in (None, len(items)):
        raise ValueError
    return items


def text(convert: Callable[[str], str], expected: str = "a text") -> Reader:
    """Return the reader of a text that is converted, such as to a path."""
    return Reader(lambda value: convert(_exactly(str, value)), expected)


def texts(convert: Callable[[str], str], expected: str) -> Reader:
    """Return the reader of a text or a list of texts, each of which is converted."""

    def read(value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else _exactly(list, value)
        return tuple(convert(_exactly(str, item)) for item in items)

    return Reader(read, expected)


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is not int:
        return _items(functools.partial(_exactly, int), None, value)
    if not 1 <= value <= 1000:
        raise ValueError
    return tuple(range(value))


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(str(part) if type(part) is int else _exactly(str, part) for part in _exactly(list, value))


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not value:
        raise ValueError
    return _items(functools.partial(_exactly, dict), None, value)


_INTEGERS = reader(tuple[int, ...])
LAYERS = Reader(lambda value: None if value == "all" else _INTEGERS.read(value), f'{_INTEGERS.expected} or "all"')
"""None stands for all."""
SEEDS = Reader(_seeds, "a number of seeds, up to 1000, or a list of them")
COLUMNS = Reader(_columns, "a text such as s1,s2,score or a list of names or numbers")


# ---- tables -------------------------------------------------------------------------------------------


class Keys:
    """A table of the file, from which keys are taken one by one."""

    def __init__(self, where: str, data: Mapping[str, Any], folder: Path | None) -> None:
        self.where, self.data, self.folder = where, data, folder
        self.known: list[str] = []
        self.path = functools.partial(path_from, folder)
        self.source = functools.partial(source_from, folder)

    def take(self, key: str, reader: Reader, *, default: Any = _MISSING) -> Any:
        """Return what a key holds, or the default.

        Raises:
            DataError: If the key is missing and has no default, or holds something else than expected.
        """
        self.known.append(key)
        if key not in self.data:
            if default is _MISSING:
                raise DataError(f"{self.where}: expected {key}, {reader.expected}, got none")
            return default
        try:
            return reader.read(self.data[key])
        except (ValueError, TypeError, OverflowError, KeyError):
            got = json.dumps(self.data[key], ensure_ascii=False, default=str)
            raise DataError(f"{self.where}: expected {key} to be {reader.expected}, got {got[:80]}") from None

    def fields(
        self,
        kind: type[T],
        values: Mapping[str, Any] | None = None,
        *,
        only: Sequence[str] = (),
        readers: Mapping[str, Reader] | None = None,
    ) -> T:
        """Return a value of `kind` from the keys that are called like its fields.

        Args:
            kind: A dataclass.
            values: Fields that are no keys.
            only: The fields that are keys; by default all others.
            readers: By field, where its type does not say what the key may hold.
        """
        taken, hints = dict(values or {}), typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            name, needed = field.name, field.default is field.default_factory  # neither is given
            if name in taken or (only and name not in only):
                continue
            how = (readers or {}).get(name) or reader(hints[name])
            value = self.take(name, how, default=_MISSING if needed else None)
            if name in self.data:
                taken[name] = value
        return self.made(kind, **taken)

    def whole(self, kind: type[T], values: Mapping[str, Any] | None = None, **how: Any) -> T:
        """Return what `fields` returns, of a table that holds nothing else."""
        value = self.fields(kind, values, **how)
        self.done()
        return value

    def made(self, kind: Callable[..., T], /, **values: Any) -> T:
        """Return a value of `kind`; the message on what is wrong with it says where it stands."""
        try:
            return kind(**values)
        except LayerProbeError as error:
            raise DataError(f"{self.where}: {error}") from error

    def done(self) -> None:
        """Raise DataError if there are keys that nothing took."""
        if unknown := [key for key in self.data if key not in self.known]:
            raise DataError(f"{self.where}: unknown key {', '.join(unknown)}, expected {', '.join(self.known)}")

    def table(self, key: str, **default: Mapping[str, Any]) -> Keys:
        """Return the table of a key; `default` stands for one that is missing."""
        data = self.take(key, Reader(functools.partial(_exactly, dict), f"a table [{key}]"), **default)
        return Keys(f"{self.where}, {key}", data, self.folder)

    def tables(self, key: str) -> list[Keys]:
        """Return the tables [[key]], at least one."""
        tables = self.take(key, Reader(_tables, f"at least one table [[{key}]]"))
        return [Keys(f"{self.where}, {key} {number}", data, self.folder) for number, data in enumerate(tables, 1)]

    def task(self, source: str) -> TaskSettings:
        """Return the task of a source from the keys that are called like the other fields of TaskSettings."""
        readers = {"columns": COLUMNS, "validation": text(self.path), "test": text(self.path)}
        return self.fields(TaskSettings, {"source": source}, readers=readers)


def path_from(folder: Path | None, name: str) -> str:
    """Return a path, relative ones from the folder; as it is without one."""
    return name if folder is None else str(folder / from_home(name))


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


# ---- files --------------------------------------------------------------------------------------------


def read_toml(path: str | Path, what: str, *, absolute: bool = False) -> Keys:
    """Return the top table of a TOML file.

    Args:
        path: The file.
        what: What messages call it, such as "the chain".
        absolute: Whether the paths in it become absolute, so that they hold wherever they are written again.

    Raises:
        DataError: If it cannot be read or is no TOML.
    """
    file = from_home(path)
    try:
        content = read_document(file, SETTINGS).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {what} {path}: {reason}; expected a TOML file") from error
    return parse_toml(content, where=str(path), folder=file.parent.absolute() if absolute else file.parent)


def parse_toml(content: str, *, where: str, folder: Path | None = None) -> Keys:
    """Return the top table of a TOML text.

    Args:
        content: The text.
        where: What messages call it.
        folder: What relative paths are relative to; by default they stay as they are.

    Raises:
        DataError: If it is no TOML, or nested too deeply.
    """
    try:
        if any(token["key"] and len(re.findall(_PART, token["key"])) > DEPTH for token in _TOKEN.finditer(content)):
            raise RecursionError  # tomllib needs memory of the square of that
        data = tomllib.loads(content)
        level: list[Any] = [data]
        for _ in range(DEPTH):
            level = [item for value in level for item in _parts(value)]
        if level:
            raise RecursionError
    except RecursionError:
        raise DataError(f"{where}: expected tables and lists nested at most {DEPTH} deep, got more") from None
    except ValueError as error:  # TOMLDecodeError, and a number of too many digits
        raise DataError(f"{where} is no TOML: {error}") from error
    return Keys(where, data, folder)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def to_toml(*tables: tuple[str, Mapping[str, Any]]) -> str:
    r"""Return tables as TOML: the header of each, such as [[step]], and its keys; None and empty tables are left out.

    Examples:
        >>> to_toml(("", {"layers": (3, 6), "prompt": None}), ("[options]", {"pooling": "cls"}))
        'layers = [3, 6]\n\n[options]\npooling = "cls"\n'
    """
    blocks = []
    for header, values in tables:
        lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
        blocks += ["\n".join([header, *lines] if header else lines) + "\n"] if lines else []
    return "\n".join(blocks)


def toml_value(value: Any) -> str:
    """Return a text, number, truth value or tuple of such as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # TOML's strings are JSON's, but for one character that JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def field_values(value: Any, *, changed: bool = False) -> dict[str, Any]:
    """Return the fields of a dataclass by name; only those that differ from their defaults where `changed`."""
    values = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {field.name: item for field, item in values.items() if not changed or item != field.default}
