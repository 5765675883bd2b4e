"""Results to and from JSON, and their digests.

A dataclass may name class attributes in `json_tags`, which JSON then has beside the fields, and have a class method
`class_of`, which returns the class and its fields for such JSON: so a value of one of several classes is read back.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from layerprobe.errors import DataError

T = TypeVar("T")

RARE = {"json": "unless default"}
"""Metadata of a field that JSON has only where it is not the default."""
CHECKSUM = "checksum"
"""The field of a kept result that says where it is kept and what its sha256 is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """What a kept result says of itself."""

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
        return {name: to_dict(getattr(value, name)) for name in names}
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    if isinstance(value, Sequence):
        return [to_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def _left_out(field: dataclasses.Field[Any], value: Any) -> bool:
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

    Raises:
        DataError: If a number is not finite: results never hold NaN.
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
        return typing.cast(T, _build(kind, unsealed(parse_json(text))[0]))
    except (ValueError, TypeError, RecursionError) as error:
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
        raise ValueError(f"expected each key once, got {_shown(twice)} again")
    return values


def sealed(value: Any, *, name: str = "", files: Mapping[str, str] | None = None, indent: int | None = 2) -> bytes:
    """Return a value as `to_bytes` does, a JSON object with its `Checksum` as one more field.

    Raises:
        DataError: If a number is not finite.
    """
    content = json.loads(to_bytes(value))  # as it will be read
    about = {"name": name, "files": dict(files or {})}
    return to_bytes({**content, CHECKSUM: {**about, "sha256": digest([content, about])}}, indent=indent)


def unsealed(data: Any) -> tuple[Any, Checksum | None]:
    """Return what `sealed` wrote, parsed, without its checksum, and that; None where there is none.

    Raises:
        DataError: If the checksum is not that of the content.
    """
    if not isinstance(data, dict) or CHECKSUM not in data:
        return data, None
    content = {key: value for key, value in data.items() if key != CHECKSUM}
    checksum: Checksum = from_dict(Checksum, data[CHECKSUM])
    if digest([content, {"name": checksum.name, "files": checksum.files}]) != checksum.sha256:
        raise DataError("its checksum is not that of its content, which was damaged or changed by hand")
    return content, checksum


def from_dict(kind: Any, data: Any) -> Any:
    """Return the value of type `kind` that `to_dict` gave.

    Raises:
        DataError: If it is not of that type.
    """
    try:
        return _build(kind, data)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(str(error)) from error


def _build(kind: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (types.UnionType, typing.Union):  # a Literal | None is the latter
        if data is None:
            return None
        options = [option for option in arguments if option is not type(None)]
        return _build(options[0] if len(options) == 1 else _fitting(options, data), data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        values = _checked(dict, data)
        if hasattr(kind, "class_of"):
            kind, values = kind.class_of(values)
        hints = typing.get_type_hints(kind)
        if unknown := values.keys() - {f.name for f in dataclasses.fields(kind)}:
            raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
        needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}  # neither is given
        if missing := needed - values.keys():
            raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        return kind(**{name: _build(hints[name], item) for name, item in values.items()})
    if origin in (tuple, Sequence):
        items = _checked(list, data)
        kinds = [arguments[0]] * len(items) if origin is Sequence or arguments[-1] is Ellipsis else arguments
        if len(items) != len(kinds):
            raise ValueError(f"{_shown(data)} has {len(items)} items, not {len(kinds)}")
        return tuple(_build(item_kind, item) for item_kind, item in zip(kinds, items, strict=True))
    if origin is dict:
        return {_build(arguments[0], key): _build(arguments[1], item) for key, item in _checked(dict, data).items()}
    if origin is Literal:
        if data not in arguments:
            raise ValueError(f"{_shown(data)} is none of {arguments}")
        return data
    if kind is float and type(data) is int and abs(data) < 2**1023:
        return float(data)
    if kind is float and not math.isfinite(_checked(float, data)):
        raise ValueError(f"{data} is not finite")
    return _checked(kind, data)


def _fitting(options: list[Any], data: Any) -> Any:
    """Return the one of several classes whose fields the data has."""
    names = _checked(dict, data).keys()
    for option in options:
        if names <= typing.get_type_hints(option).keys():
            return option
    raise ValueError(f"{_shown(data)} is none of {', '.join(option.__name__ for option in options)}")


def _checked(kind: type[T], data: Any) -> T:
    # exactly that type: True is no int here
    if type(data) is not kind:
        raise TypeError(f"{_shown(data)} is no {kind.__name__}")
    return data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


def digest(value: Any) -> str:
    """Return the sha256 of a value's JSON form, keys sorted."""
    text = json.dumps(to_dict(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
