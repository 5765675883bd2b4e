"""A TOML file -> a chain. Knows the file's keys and what they may hold; runs nothing."""

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
from layerprobe.results import AdaptationProtocol, AdaptStep, Chain, FinetuneStep, Protocol, TaskSettings
from layerprobe.tasks.tables import SUFFIXES

T = TypeVar("T")

_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_PATHS = ("validation", "test")


def load_chain(path: str | Path) -> Chain:
    """Read a chain from a TOML file; paths in it are relative to the file.

        model = "google/electra-base-discriminator"
        reference = "google-bert/bert-base-cased"   # CKA against it; none by default
        layers = [3, 9, 12]                         # or "all", the default
        seeds = 5                                   # or a list of them
        control = [0]                               # the same from random weights; none by default
        [[step]]
        adapt = ["captions.txt"]                    # with the fields of AdaptationProtocol, and seed
        max_steps = 200
        [[step]]
        finetune = "words"                          # with the fields of TaskSettings and Protocol
        merge = true
        epochs = 50
        batch_size = 128
        [[step]]
        finetune = "stsb"

    Further keys are those of `Chain`: name, random_init, baseline, cka.

    Args:
        path: The file.

    Raises:
        DataError: If the file cannot be read, is no TOML, or a key is missing, unknown or not what it should be.
    """
    file = from_home(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the chain {path}: {error}; expected a TOML file") from error
    return chain_from_toml(text, name=file.stem, folder=file.parent, where=str(path))


def chain_from_toml(text: str, *, name: str = "chain", folder: Path | None = None, where: str = "the chain") -> Chain:
    r"""Return the chain that a TOML text describes.

    Args:
        text: As `chain_to_toml` writes it; what is left out is the default.
        name: Of the chain, where the text has none.
        folder: What relative paths are relative to; by default they stay as they are.
        where: What messages call the text.

    Raises:
        DataError: If it is no TOML, or a key is missing, unknown or not what it should be.

    Example:
        >>> chain = chain_from_toml('model = "bert"\nseeds = 2\n[[step]]\nfinetune = "stsb"\nepochs = 3')
        >>> chain.seeds, chain.finetunings[0].protocol.epochs
        ((0, 1), 3)
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is no TOML: {error}") from error
    keys = _Keys(where, data, folder)
    steps = keys.take("step", _tables, "tables [[step]]", missing="at least one table [[step]]")
    values: dict[str, Any] = {"name": keys.take("name", _text, "a text", default=name)}
    values["model"] = keys.model("model", missing="model, a hub id or a folder")
    values["reference"] = keys.model("reference")
    values["layers"] = keys.take("layers", _layers, 'a list of whole numbers or "all"', default=None)
    values["seeds"] = keys.take("seeds", _seeds, "a number of seeds or a list of them", default=None)
    values["control"] = keys.take("control", _integers, "a list of seeds", default=None)
    values["random_init"] = keys.take("random_init", _of_kind(int), "a whole number", default=None)
    for switch in ("baseline", "cka"):
        values[switch] = keys.take(switch, _of_kind(bool), "true or false", default=None)
    keys.done()
    read = (_step(_Keys(f"{where}, step {number}", step, folder)) for number, step in enumerate(steps, 1))
    given = {key: value for key, value in values.items() if value is not None}
    return _made(Chain, where, steps=tuple(read), **given)


def _step(keys: _Keys) -> AdaptStep | FinetuneStep:
    kinds = [kind for kind in ("adapt", "finetune") if kind in keys.data]
    if len(kinds) != 1:
        raise DataError(f"{keys.where}: expected either adapt or finetune, got {' and '.join(kinds) or 'neither'}")
    if kinds == ["adapt"]:
        texts = keys.take("adapt", _texts, "a file or a list of files")
        seed = keys.take("seed", _of_kind(int), "a whole number", default=0)
        how = keys.fields(AdaptationProtocol)
        keys.done()
        return _made(AdaptStep, keys.where, texts=tuple(map(keys.path, texts)), protocol=how, seed=seed)
    source = keys.take("finetune", _text, "a file, a folder, stsb or the hub id of a data set")
    values: dict[str, Any] = {"source": keys.source(source)}
    values["columns"] = keys.take("columns", _columns, "a text such as s1,s2,score or a list", default=None)
    values["score_range"] = keys.take("score_range", _two_numbers, "two numbers such as [0, 5]", default=None)
    task = keys.fields(TaskSettings, values, paths=_PATHS)
    protocol = keys.fields(Protocol)
    keys.done()
    return _made(FinetuneStep, keys.where, task=task, protocol=protocol)


class _Keys:
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
        return _made(kind, self.where, **values)

    def model(self, key: str, missing: str | None = None) -> str | None:
        """Return a hub id as it is, and a folder with its path."""
        otherwise = {"default": None} if missing is None else {"missing": missing}
        name: str | None = self.take(key, _text, "a text: a hub id or a folder", **otherwise)
        if name is None or self.folder is None:
            return name
        return self.path(name) if name.startswith(".") or (self.folder / name).is_dir() else name

    def source(self, name: str) -> str:
        """Return a file or folder with its path, and anything else, such as a hub id, as it is."""
        if self.folder is None:
            return name
        is_path = name.startswith(".") or Path(name).suffix.lower() in SUFFIXES or (self.folder / name).exists()
        return self.path(name) if is_path else name

    def path(self, name: str) -> str:
        """Return a path, relative ones from the folder of the file, so that it holds wherever it is written again."""
        return name if self.folder is None or name.startswith("~") else str((self.folder / name).absolute())

    def done(self) -> None:
        """Raise DataError if there are keys that nothing took."""
        if unknown := [key for key in self.data if key not in self.known]:
            raise DataError(f"{self.where}: {', '.join(unknown)} is no key here, expected {', '.join(self.known)}")


def _made(kind: type[T], where: str, /, **values: Any) -> T:
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
    return _of_kind(hint), _WORDS[hint]


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError
    return str(value)


def _of_kind(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:  # True is no whole number
            raise TypeError
        return value

    return read


_text = _of_kind(str)


def _items(value: Any, kind: type[Any]) -> tuple[Any, ...]:
    return tuple(map(_of_kind(kind), _of_kind(list)(value)))


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    return _items(value, dict)


def _integers(value: Any) -> tuple[int, ...]:
    return _items(value, int)


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _items(value, str)


def _layers(value: Any) -> tuple[int, ...] | None:
    return None if value == "all" else _integers(value)


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is not int:
        return _integers(value)
    if not 1 <= value <= 1000:
        raise ValueError
    return tuple(range(value))


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(str(part) if type(part) is int else _text(part) for part in _of_kind(list)(value))


def _two_numbers(value: Any) -> tuple[float, float]:
    low, high = _items(value, float)
    return low, high
