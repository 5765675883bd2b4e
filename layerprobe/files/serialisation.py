"""Plain data of JSON and TOML to values and back, and the digests of values: the one reader of both.

A dataclass may name attributes in `json_tags`, which JSON then has beside the fields and reading leaves out, and have a
class method `class_of`, which returns the class and its fields for such JSON: so a value of one of several classes is
read back. It may have a method `as_plain`, which returns its fields in the form that JSON has them in, and `class_of`
reads.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
import sys
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from layerprobe.errors import DataError, FormatError, LayerProbeError
from layerprobe.files.atomic import from_home
from layerprobe.files.inputs import SETTINGS, read_document
from layerprobe.names import nearest, some
from layerprobe.versions import FORMAT_VERSION

T = TypeVar("T")

RARE = {"json": "unless default"}
"""Metadata of a field that JSON has only where it is not the default."""
IN_MEMORY = {"json": "never"}
"""Metadata of a field that JSON never has, and that is not read from it."""
_WORDS = {
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
}
_COUNTS = {2: "two", 3: "three"}
CHECKSUM = "checksum"
"""The field of a kept result that says where it is kept and what its sha256 is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """What a kept result says of itself."""

    format: int
    """`FORMAT_VERSION` of the layerprobe that wrote it."""
    name: str
    """Where it is kept: the end of its path, such as similarity/KEY.json; empty where it may lie anywhere."""
    files: dict[str, str]
    """sha256 of files that belong to it, by their names in its folder."""
    sha256: str
    """Of the result, the name and the files, by `digest`."""


def to_dict(value: Any) -> Any:
    """Return `value` as what `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [
            *getattr(value, "json_tags", ()),
            *(f.name for f in dataclasses.fields(value) if not _left_out(f, value)),
        ]
        values = {name: to_dict(getattr(value, name)) for name in names}
        return value.as_plain(values) if hasattr(value, "as_plain") else values
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    numpy = sys.modules.get("numpy")  # which the command line's --help does not load
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, Sequence):
        return [to_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def _left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.metadata == IN_MEMORY:
        return True
    return field.metadata == RARE and getattr(value, field.name) == field.default


def to_json(value: Any) -> str:
    """Return `value` as JSON text that UTF-8 can encode.

    Raises:
        DataError: If a number is not finite: results never hold NaN.
    """
    return to_bytes(value).decode()


def to_bytes(value: Any, *, indent: int | None = 2) -> bytes:
    r"""Return `value` as JSON in UTF-8, on a single line where `indent` is None.

    A folder name that is no UTF-8 holds lone surrogates; they are written as JSON's escape, such as `\udc80`.
    """
    try:
        text = json.dumps(to_dict(value), indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise DataError(f"expected finite numbers in a {type(value).__name__}, got NaN or infinity") from error
    return text.encode("utf-8", "backslashreplace")


def from_json(kind: type[T], text: str) -> T:
    """Return the value of type `kind` that `to_json` or `sealed` wrote.

    Raises:
        DataError: If the text is not JSON, not of that type, or not what its checksum is of.

    Examples:
        >>> from layerprobe.finetuning.values import Protocol
        >>> from_json(Protocol, to_json(Protocol(epochs=3))).epochs
        3
    """
    try:
        return typing.cast(T, from_dict(kind, unsealed(parse_json(text))[0]))
    except DataError as error:
        raise DataError(f"expected a {kind.__name__} as JSON: {error}") from error


def parse_json(text: str | bytes) -> Any:
    r"""Return what a JSON text holds.

    Raises:
        DataError: If it is no JSON, nested too deeply for Python, has a number that is not finite or of too many
            digits, or names a key twice.

    Examples:
        >>> parse_json('{"layers": [3, 6]}')
        {'layers': [3, 6]}
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct)
    except RecursionError:
        raise DataError("its lists and objects are nested too deeply") from None
    except ValueError as error:
        raise DataError(str(error)) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"expected a finite number or null, got {name}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"expected each key once, got {as_json_line(twice)} again")
    return values


def sealed(value: Any, *, name: str = "", files: Mapping[str, str] | None = None, indent: int | None = 2) -> bytes:
    """Return a value as `to_bytes` does, a JSON object with its `Checksum` as one more field."""
    content = json.loads(to_bytes(value))  # as it will be read
    about = {"format": FORMAT_VERSION, "name": name, "files": dict(files or {})}
    return to_bytes({**content, CHECKSUM: {**about, "sha256": digest([content, about])}}, indent=indent)


def unsealed(data: Any) -> tuple[Any, Checksum | None]:
    """Return what `sealed` wrote, parsed, without its checksum, and that; None where there is none.

    Raises:
        FormatError: If another version of layerprobe wrote it.
        DataError: If it is not what the checksum is of.
    """
    if not isinstance(data, dict) or CHECKSUM not in data:
        return data, None
    content = {key: value for key, value in data.items() if key != CHECKSUM}
    written = data[CHECKSUM].get("format", FORMAT_VERSION - 1) if isinstance(data[CHECKSUM], dict) else None
    if type(written) is int and written != FORMAT_VERSION:
        older = written < FORMAT_VERSION
        raise FormatError(
            f"{'an older' if older else 'a newer'} layerprobe wrote it, and this one reads format {FORMAT_VERSION} "
            f"alone: {'remove it and make it again' if older else 'upgrade layerprobe'}"
        )
    checksum: Checksum = from_dict(Checksum, data[CHECKSUM])
    about = {"format": checksum.format, "name": checksum.name, "files": checksum.files}
    if digest([content, about]) != checksum.sha256:
        raise DataError("its checksum is not that of its content, which was damaged or changed by hand")
    return content, checksum


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """What plain data may be where its type does not say it, such as a number of seeds or a list of them."""

    read: Callable[[Any], Any]
    """Returns the value; raises ValueError, TypeError, OverflowError or KeyError for anything else."""
    expected: str
    """What messages call it."""


def from_dict(kind: Any, data: Any, *, key: str = "") -> Any:
    """Return the value of type `kind` that the data of a JSON or TOML file stands for.

    Args:
        kind: A dataclass, text, truth value, number, Literal, dict, tuple or sequence of such, one of these | None, a
            union of dataclasses with fields of their own, or a `Reader`. True is no number, and a whole number is also
            a float; numbers are finite.
        data: As `to_dict` gives it, or a TOML file holds it.
        key: Where it stands, for messages.

    Raises:
        DataError: If it is not of that type: with the key, what was expected there and what was found; or if the values
            do not go together.

    Examples:
        >>> from_dict(tuple[float, ...], [1, 2.5])
        (1.0, 2.5)
    """
    try:
        return _build(kind, data, key)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(str(error)) from error


def _build(kind: Any, data: Any, key: str) -> Any:
    if isinstance(kind, TypeVar):
        kind = functools.reduce(operator.or_, kind.__constraints__)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if isinstance(kind, Reader):
        try:
            return kind.read(data)
        except (ValueError, TypeError, OverflowError, KeyError):
            raise _unexpected(kind, data, key) from None
    if origin in (types.UnionType, typing.Union):  # a Literal | None is the latter
        return None if data is None else _build(_fitting(kind, data, key), data, key)
    if not _fits(kind, data):
        raise _unexpected(kind, data, key)
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, key)
    if origin in (tuple, Sequence):
        return _items(kind, data, key)
    if origin is dict:
        of, values = arguments
        return {_build(of, name, key): _build(values, item, _below(key, name)) for name, item in data.items()}
    return float(data) if kind is float else data


def _fits(kind: Any, data: Any) -> bool:
    """Return whether data is of the plain type that stands for a type, and just of that: True is no number."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return data in typing.get_args(kind)
    if kind is float:
        return type(data) in (int, float) and abs(data) <= sys.float_info.max  # NaN is not
    if dataclasses.is_dataclass(kind) or origin is dict:
        return type(data) is dict
    return type(data) is (list if origin in (tuple, Sequence) else kind)


def _record(kind: Any, data: Mapping[str, Any], key: str) -> Any:
    if hasattr(kind, "class_of"):
        kind, data = kind.class_of(data)
    fields, tags = fields_of(kind), getattr(kind, "json_tags", ())
    data = {name: item for name, item in data.items() if name in fields or name not in tags}
    check_keys(data, fields, key=key)
    for name, (hint, needed) in fields.items():
        if needed and name not in data:
            raise DataError(f"expected {_below(key, name)}, {described(hint)}, got none")
    values = {name: _build(fields[name][0], item, _below(key, name)) for name, item in data.items()}
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{key}: {error}" if key else str(error)) from error


@functools.cache
def fields_of(kind: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether it has no default."""
    hints = typing.get_type_hints(kind)
    read = (f for f in dataclasses.fields(kind) if f.metadata != IN_MEMORY)
    return {f.name: (hints[f.name], f.default is f.default_factory) for f in read}


def check_keys(data: Iterable[str], names: Collection[str], *, key: str = "") -> None:
    """Check that all keys of a table are expected ones."""
    if unknown := [name for name in data if name not in names]:
        where = f"{key}: " if key else ""
        expected = ", ".join(names) or "none"
        raise DataError(f"{where}unknown key {some(unknown)}, expected {expected}{nearest(unknown[0], names)}")


def _items(kind: Any, items: list[Any], key: str) -> tuple[Any, ...]:
    kinds = typing.get_args(kind)
    if kinds[-1] is ... or typing.get_origin(kind) is Sequence:
        kinds = kinds[:1] * len(items)
    if len(items) != len(kinds):
        raise _unexpected(kind, items, key)
    return tuple(_build(of, item, f"{key}[{i}]") for i, (of, item) in enumerate(zip(kinds, items, strict=True)))


def _fitting(union: Any, data: Any, key: str) -> Any:
    """Return the type of a union that data is of: the only one beside None, a plain one, or a class with its fields."""
    options = [option for option in typing.get_args(union) if option is not type(None)]
    if len(options) == 1:
        return options[0]
    for option in options:
        record = dataclasses.is_dataclass(option)
        if _fits(option, data) and (not record or data.keys() <= fields_of(option).keys()):
            return option
    raise _unexpected(union, data, key)


def described(kind: Any, *, many: bool = False) -> str:
    """Return what messages call a type.

    Examples:
        >>> described(tuple[float, float]), described(tuple[tuple[int, ...], ...] | None)
        ('two numbers in a list', 'a list of lists of whole numbers')
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, Reader):
        return kind.expected
    if origin in (types.UnionType, typing.Union):
        kinds = (described(option, many=many) for option in arguments if option is not type(None))
        return " or ".join(dict.fromkeys(kinds))
    if origin is Literal:
        return f"{'some' if many else 'one'} of {', '.join(map(str, arguments))}"
    if origin in (tuple, Sequence):
        items, lists = described(arguments[0], many=True), "lists" if many else "a list"
        fixed = origin is tuple and arguments[-1] is not ...
        return f"{_COUNTS.get(len(arguments), len(arguments))} {items} in {lists}" if fixed else f"{lists} of {items}"
    return _WORDS.get(kind, ("a table", "tables"))[many]


def _unexpected(kind: Any, data: Any, key: str) -> DataError:
    return DataError(f"expected {f'{key} to be ' if key else ''}{described(kind)}, got {as_json_line(data)}")


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else str(name)


def as_json_line(data: Any) -> str:
    """Return data as messages show it: as JSON, on one line, cut off where it is long."""
    text = json.dumps(data, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def digest(value: Any) -> str:
    """Return the sha256 of a value's JSON form, keys sorted."""
    text = json.dumps(to_dict(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ---- what a key of a TOML file may hold -----------------------------------------------------------------


_MISSING = object()


def text(convert: Callable[[str], str], expected: str = "a text") -> Reader:
    """Return the reader of a text that is converted, such as to a path."""
    return Reader(lambda value: convert(from_dict(str, value)), expected)


def texts(convert: Callable[[str], str], expected: str) -> Reader:
    """Return the reader of a text or a list of texts, each of which is converted."""

    def read(value: Any) -> tuple[str, ...]:
        return tuple(map(convert, from_dict(tuple[str, ...], [value] if isinstance(value, str) else value)))

    return Reader(read, expected)


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is int and not 1 <= value <= 1000:
        raise ValueError
    seeds: tuple[int, ...] = from_dict(tuple[int, ...], list(range(value)) if type(value) is int else value)
    return seeds


def _layers(value: Any) -> tuple[int, ...] | None:
    layers: tuple[int, ...] | None = None if value == "all" else from_dict(tuple[int, ...], value)
    return layers


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not value:
        raise ValueError
    tables: tuple[dict[str, Any], ...] = from_dict(tuple[dict[str, Any], ...], value)
    return tables


LAYERS = Reader(_layers, 'a list of whole numbers or "all"')
"""None stands for all."""
SEEDS = Reader(_seeds, "a number of seeds, up to 1000, or a list of them")


# ---- tables of a TOML file ------------------------------------------------------------------------------


class Keys:
    """A table of the file, from which keys are taken one by one."""

    def __init__(self, where: str, data: Mapping[str, Any], folder: Path | None) -> None:
        self.where, self.data, self.folder = where, data, folder
        self.taken: list[str] = []
        self.path = functools.partial(path_from, folder)

    def take(self, key: str, kind: Any, *, default: Any = _MISSING) -> Any:
        """Return what a key holds, or the default.

        Args:
            key: Its name.
            kind: What it may hold: a type or a reader, as `from_dict` takes it.
            default: What it is where it is missing.
        """
        self.taken.append(key)
        if key in self.data:
            return self.made(from_dict, kind, self.data[key], key=key)
        if default is _MISSING:
            raise DataError(f"{self.where}: expected {key}, {described(kind)}, got none")
        return default

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
        taken = dict(values or {})
        for name, (hint, needed) in fields_of(kind).items():  # type: ignore[arg-type]
            if name in taken or (only and name not in only):
                continue
            value = self.take(name, (readers or {}).get(name, hint), default=_MISSING if needed else None)
            if name in self.data:
                taken[name] = value
        return self.made(kind, **taken)

    def whole(self, kind: type[T], values: Mapping[str, Any] | None = None, **how: Any) -> T:
        """Return what `fields` returns, of a table that holds nothing else."""
        value = self.fields(kind, values, **how)
        self.done()
        return value

    def made(self, make: Callable[..., T], /, *values: Any, **named: Any) -> T:
        """Return what is made of values; the message on what is wrong with them says where they stand."""
        try:
            return make(*values, **named)
        except LayerProbeError as error:
            raise DataError(f"{self.where}: {error}") from error

    def done(self) -> None:
        """Raise DataError if there are keys that nothing took."""
        self.made(check_keys, self.data, self.taken)

    def table(self, key: str, **default: Mapping[str, Any]) -> Keys:
        """Return the table of a key; `default` stands for one that is missing."""
        data = self.take(key, Reader(functools.partial(from_dict, dict[str, Any]), f"a table [{key}]"), **default)
        return Keys(f"{self.where}, {key}", data, self.folder)

    def tables(self, key: str) -> list[Keys]:
        """Return the tables [[key]], at least one."""
        tables = self.take(key, Reader(_tables, f"at least one table [[{key}]]"))
        return [Keys(f"{self.where}, {key} {number}", data, self.folder) for number, data in enumerate(tables, 1)]


def path_from(folder: Path | None, name: str) -> str:
    """Return a path, relative ones from the folder; as it is without one."""
    return name if folder is None else str(folder / from_home(name))


def read_toml(path: str | Path, what: str) -> Keys:
    """Return the top table of a TOML file, which messages call `what`; relative paths in it are from its folder."""
    file = from_home(path)
    try:
        content = read_document(file, SETTINGS).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {what} {path}: {reason}; expected a TOML file") from error
    try:
        data = tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and a number of too many digits
        raise DataError(f"{path} is no TOML: {error}") from error
    return Keys(str(path), data, file.parent.absolute())
