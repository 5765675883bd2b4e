"""Convert values to and from the plain data of JSON and TOML, and digest them: the only reader of both.

A dataclass may list attributes in `json_tags`, which JSON has beside the fields and the reader ignores, and define a
class method `class_of`, which returns the class and its fields for such JSON: this is how a value of one of several
classes is read. It may define a method `as_plain`, which returns its fields in the form that JSON stores and
`class_of` reads.
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
from layerprobe.files.inputs import SETTINGS, from_home, read_document
from layerprobe.names import nearest, some
from layerprobe.versions import FORMAT_VERSION

T = TypeVar("T")

RARE = {"json": "unless default"}
"""Metadata of a field that JSON contains only if it differs from the default."""
UNSAVED = {"json": "never"}
"""Metadata of a field that JSON never contains."""
_WORDS = {
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
}
_COUNTS = {2: "two", 3: "three"}
CHECKSUM = "checksum"
"""Name of the field of a stored result with its location and sha256."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Location and checksums of a stored result."""

    format: int
    """`FORMAT_VERSION` of the layerprobe that wrote the result."""
    name: str
    """End of the result's path, such as similarity/KEY.json; empty for results that may lie anywhere."""
    files: dict[str, str]
    """sha256 of each file that belongs to the result, by its name in the folder."""
    sha256: str
    """`digest` of the result, the name and the files."""


def to_dict(value: Any) -> Any:
    """Return `value` as plain data that `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [
            *getattr(value, "json_tags", ()),
            *(f.name for f in dataclasses.fields(value) if not _left_out(f, value)),
        ]
        values = {name: to_dict(getattr(value, name)) for name in names}
        return value.as_plain(values) if hasattr(value, "as_plain") else values
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    numpy = sys.modules.get("numpy")  # not loaded by the command line's --help
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, Sequence):
        return [to_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def _left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.metadata == UNSAVED:
        return True
    return field.metadata == RARE and getattr(value, field.name) == field.default


def to_json(value: Any) -> str:
    """Return `value` as JSON text that UTF-8 can encode.

    Raises:
        DataError: If a number is not finite: results never hold NaN.
    """
    return to_bytes(value).decode()


def to_bytes(value: Any, *, indent: int | None = 2) -> bytes:
    r"""Return `value` as JSON in UTF-8, on a single line if `indent` is None.

    A folder name that is not UTF-8 has lone surrogates; they are written as JSON's escape, such as `\udc80`.
    """
    try:
        text = json.dumps(to_dict(value), indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise DataError(f"expected finite numbers in a {type(value).__name__}, got NaN or infinity") from error
    return text.encode("utf-8", "backslashreplace")


def from_json(kind: type[T], text: str) -> T:
    """Return the value of type `kind` that `to_json` or `sealed` wrote.

    Raises:
        DataError: If the text is not JSON, not of that type, or does not match its checksum.

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
    r"""Return the content of a JSON text.

    Raises:
        DataError: If it is not JSON, is nested too deeply for Python, contains a number that is not finite or has too
            many digits, or repeats a key.

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
        raise ValueError(f"expected each key once, got {json_line(twice)} again")
    return values


def sealed(value: Any, *, name: str = "", files: Mapping[str, str] | None = None, indent: int | None = 2) -> bytes:
    """Return a value as `to_bytes` does, a JSON object with its `Checksum` as an additional field."""
    content = json.loads(to_bytes(value))  # as a reader will see it
    about = {"format": FORMAT_VERSION, "name": name, "files": dict(files or {})}
    return to_bytes({**content, CHECKSUM: {**about, "sha256": digest([content, about])}}, indent=indent)


def unsealed(data: Any) -> tuple[Any, Checksum | None]:
    """Split what `sealed` wrote, parsed, into the data and its checksum; None without a checksum.

    Raises:
        FormatError: If another version of layerprobe wrote the data.
        DataError: If the data does not match its checksum.
    """
    if not isinstance(data, dict) or CHECKSUM not in data:
        return data, None
    content = {key: value for key, value in data.items() if key != CHECKSUM}
    written = data[CHECKSUM].get("format", FORMAT_VERSION - 1) if isinstance(data[CHECKSUM], dict) else None
    if type(written) is int and written != FORMAT_VERSION:
        older = written < FORMAT_VERSION
        raise FormatError(
            f"{'an older' if older else 'a newer'} layerprobe wrote it, and this version reads only format "
            f"{FORMAT_VERSION}: {'delete it and run again' if older else 'upgrade layerprobe'}"
        )
    checksum: Checksum = from_dict(Checksum, data[CHECKSUM])
    about = {"format": checksum.format, "name": checksum.name, "files": checksum.files}
    if digest([content, about]) != checksum.sha256:
        raise DataError("its checksum does not match its content: it was damaged or edited")
    return content, checksum


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """Plain data that a type cannot describe, such as a number of seeds or a list of them."""

    read: Callable[[Any], Any]
    """Returns the value; raises ValueError, TypeError, OverflowError or KeyError for invalid data."""
    expected: str
    """Description of valid data, for messages."""


def from_dict(kind: Any, data: Any, *, key: str = "") -> Any:
    """Convert the data of a JSON or TOML file to a value of type `kind`.

    Args:
        kind: A dataclass, text, truth value, number, Literal, dict, tuple or sequence of such, one of these | None, a
            union of dataclasses with distinct fields, or a `Reader`. True is not a number; a whole number is also
            a float; numbers are finite.
        data: Output of `to_dict`, or content of a TOML file.
        key: Location of the data, for messages.

    Raises:
        DataError: If the data is not of that type: with the key, the expected type and the data; or if the values
            contradict each other.

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
    """Return whether data is of exactly the plain type that represents a type: True is not a number."""
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
    fields = field_types(kind)
    tags = getattr(kind, "json_tags", ())
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
def field_types(kind: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether it has no default."""
    hints = typing.get_type_hints(kind)
    read = (f for f in dataclasses.fields(kind) if f.metadata != UNSAVED)
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
    """Return the member of a union that fits the data: the only one beside None, a plain type, or a class."""
    options = [option for option in typing.get_args(union) if option is not type(None)]
    if len(options) == 1:
        return options[0]
    for option in options:
        record = dataclasses.is_dataclass(option)
        if _fits(option, data) and (not record or data.keys() <= field_types(option).keys()):
            return option
    raise _unexpected(union, data, key)


def described(kind: Any, *, many: bool = False) -> str:
    """Return the name of a type in messages.

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
        items = described(arguments[0], many=True)
        lists = "lists" if many else "a list"
        fixed = origin is tuple and arguments[-1] is not ...
        return f"{_COUNTS.get(len(arguments), len(arguments))} {items} in {lists}" if fixed else f"{lists} of {items}"
    return _WORDS.get(kind, ("a table", "tables"))[many]


def _unexpected(kind: Any, data: Any, key: str) -> DataError:
    return DataError(f"expected {f'{key} to be ' if key else ''}{described(kind)}, got {json_line(data)}")


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else str(name)


def json_line(data: Any) -> str:
    """Return data as JSON on one line, shortened where it is long, for messages."""
    text = json.dumps(data, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def digest(value: Any) -> str:
    """Return the sha256 of a value's JSON form, keys sorted."""
    text = json.dumps(to_dict(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_MISSING = object()


def text(convert: Callable[[str], str], expected: str = "a text") -> Reader:
    """Return the reader of a text that is converted, for example to a path."""
    return Reader(lambda value: convert(from_dict(str, value)), expected)


def texts(convert: Callable[[str], str], expected: str) -> Reader:
    """Return the reader of a text or a list of texts, each of them converted."""

    def read(value: Any) -> tuple[str, ...]:
        return tuple(map(convert, from_dict(tuple[str, ...], [value] if isinstance(value, str) else value)))

    return Reader(read, expected)


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is int and not 1 <= value <= 1000:
        raise ValueError
    return from_dict(tuple[int, ...], list(range(value)) if type(value) is int else value)


def _layers(value: Any) -> tuple[int, ...] | None:
    return None if value == "all" else from_dict(tuple[int, ...], value)


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not value:
        raise ValueError
    return from_dict(tuple[dict[str, Any], ...], value)


LAYERS = Reader(_layers, 'a list of whole numbers or "all"')
"""None means all."""
SEEDS = Reader(_seeds, "a number of seeds, up to 1000, or a list of them")


class Keys:
    """A table of the file, whose keys are taken one by one."""

    def __init__(self, where: str, data: Mapping[str, Any], folder: Path | None) -> None:
        self.where = where
        self.data = data
        self.folder = folder
        self.taken: list[str] = []
        self.path = functools.partial(path_from, folder)

    def take(self, key: str, kind: Any, *, default: Any = _MISSING) -> Any:
        """Return the value of a key, or the default.

        Args:
            key: Name of the key.
            kind: Expected type, or a reader, as in `from_dict`.
            default: Value of a missing key.
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
        """Return a value of `kind` from the keys named like its fields.

        Args:
            kind: A dataclass.
            values: Fields that are not keys.
            only: Fields that are keys; by default all others.
            readers: Reader by field, for fields whose type does not describe the key.
        """
        taken = dict(values or {})
        for name, (hint, needed) in field_types(kind).items():  # type: ignore[arg-type]
            if name in taken or (only and name not in only):
                continue
            value = self.take(name, (readers or {}).get(name, hint), default=_MISSING if needed else None)
            if name in self.data:
                taken[name] = value
        return self.made(kind, **taken)

    def whole(self, kind: type[T], values: Mapping[str, Any] | None = None, **how: Any) -> T:
        """Return the same as `fields`, for a table with no other keys."""
        value = self.fields(kind, values, **how)
        self.done()
        return value

    def made(self, make: Callable[..., T], /, *values: Any, **named: Any) -> T:
        """Return the result of `make`; its error messages begin with the location of the table."""
        try:
            return make(*values, **named)
        except LayerProbeError as error:
            raise DataError(f"{self.where}: {error}") from error

    def done(self) -> None:
        """Raise DataError if the table has unused keys."""
        self.made(check_keys, self.data, self.taken)

    def table(self, key: str, **default: Mapping[str, Any]) -> Keys:
        """Return the table of a key; `default` replaces a missing one."""
        data = self.take(key, Reader(functools.partial(from_dict, dict[str, Any]), f"a table [{key}]"), **default)
        return Keys(f"{self.where}, {key}", data, self.folder)

    def tables(self, key: str) -> list[Keys]:
        """Return the tables [[key]], at least one."""
        tables = self.take(key, Reader(_tables, f"at least one table [[{key}]]"))
        return [Keys(f"{self.where}, {key} {number}", data, self.folder) for number, data in enumerate(tables, 1)]


def path_from(folder: Path | None, name: str) -> str:
    """Return a path; relative ones are resolved from the folder, if given."""
    return name if folder is None else str(folder / from_home(name))


def read_toml(path: str | Path, what: str) -> Keys:
    """Return the top table of a TOML file, which messages call `what`; paths in it are relative to its folder."""
    file = from_home(path)
    try:
        content = read_document(file, SETTINGS).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {what} {path}: {reason}; expected a TOML file") from error
    try:
        data = tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number with too many digits
        raise DataError(f"{path} is not valid TOML: {error}") from error
    return Keys(str(path), data, file.parent.absolute())
