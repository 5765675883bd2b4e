"""Tables of a TOML file -> values, key by key, and back. Knows what a key may hold, not what it means."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files.atomic import from_home
from layerprobe.files.inputs import SETTINGS, read_document
from layerprobe.files.serialisation import Reader, check_keys, described, fields_of, from_dict

T = TypeVar("T")

_MISSING = object()


# ---- what a key may hold ------------------------------------------------------------------------------


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


# ---- tables -------------------------------------------------------------------------------------------


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


# ---- files --------------------------------------------------------------------------------------------


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
