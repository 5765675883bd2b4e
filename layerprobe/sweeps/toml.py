"""A sweep as a value and as a TOML file. Knows what is to be run, runs nothing."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerprobe.encoders.options import Options
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files import from_home
from layerprobe.finetuning.values import Protocol
from layerprobe.serialisation import from_dict
from layerprobe.sweeps.values import OPTIONS, Sweep, SweepModel
from layerprobe.tasks.tables import SUFFIXES
from layerprobe.tasks.values import TaskSettings
from layerprobe.toml import toml_value

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_LISTS = {int: "whole numbers", str: "texts"}


def load_sweep(path: str | Path) -> Sweep:
    """Return the sweep that a TOML file describes.

        layers = [6, 12]                 # or "all"
        seeds = 3                        # from 0 on, or a list of them

        [[models]]
        id = "google/electra-base-discriminator"
        layers = [0, 12]                 # or "all", instead of those above; random_init = 0 for random weights

        [[tasks]]
        source = "stsb"                  # also columns, kind, merge, score_range, validation, test, split_seed

        [protocol]
        epochs = 3                       # and the other fields of `Protocol`

        [options]
        dtype = "bfloat16"               # pooling, prompt, device, attn, batch_tokens, trust_remote_code

    Only models and tasks must be there. Files and folders are relative to the TOML file.

    Raises:
        DataError: If the file cannot be read, or a key or a value is not what it should be.
    """
    file = from_home(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read the sweep {file}: {error.strerror or error}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise DataError(f"{file} is no TOML: {error}") from error
    try:
        return _sweep(data, file.parent)
    except LayerProbeError as error:
        raise DataError(f"{file}: {error}") from error


def _sweep(data: Mapping[str, Any], folder: Path) -> Sweep:
    _check_keys(data, ("layers", "seeds", "models", "tasks", "protocol", "options"), "")
    values: dict[str, Any] = {}
    if "layers" in data:
        values["layers"] = _layers(data["layers"], "layers")
    if "seeds" in data:
        values["seeds"] = _seeds(data["seeds"])
    models = _tables(data, "models", "id")
    if any(table.get("layers") == "all" for _, table in models):
        # a model without layers has those of the sweep: where one is to have all, the others name theirs
        models = [(where, {"layers": data.get("layers", "all"), **table}) for where, table in models]
        values["layers"] = None
    options = _fields(Options, _table(data, "options"), "options", only=OPTIONS)
    protocol = _fields(Protocol, {"pooling": options.get("pooling", "mean"), **_table(data, "protocol")}, "protocol")
    return Sweep(
        models=tuple(_model(table, where, folder) for where, table in models),
        tasks=tuple(_task(table, where, folder) for where, table in _tables(data, "tasks", "source")),
        protocol=Protocol(**protocol),
        options=Options(**options),
        **values,
    )


def _model(table: Mapping[str, Any], where: str, folder: Path) -> SweepModel:
    if table.get("layers") == "all":
        table = {key: value for key, value in table.items() if key != "layers"}
    return SweepModel(**_with_paths_of(folder, _fields(SweepModel, table, where)))


def _task(table: Mapping[str, Any], where: str, folder: Path) -> TaskSettings:
    columns = table.get("columns")
    if isinstance(columns, str):  # as the command line has them
        table = {**table, "columns": [column.strip() for column in columns.split(",")]}
    fields = _with_paths_of(folder, _fields(TaskSettings, table, where))
    try:
        return TaskSettings(**fields)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _with_paths_of(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    paths = ("id", "source", "validation", "test")
    return {key: _beside(folder, value) if key in paths and value else value for key, value in fields.items()}


def _beside(folder: Path, name: str) -> str:
    """Return what is meant by `name` in a file of `folder`: a path beside it, or a name of the hub."""
    path = folder / from_home(name)
    is_path = path.exists() or name.startswith((".", "~")) or path.suffix.lower() in SUFFIXES
    return str(path) if is_path else name


def _fields(kind: type, table: Mapping[str, Any], where: str, *, only: tuple[str, ...] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    _check_keys(table, only or tuple(hints), where)
    found = {}
    for key, value in table.items():
        try:
            found[key] = from_dict(hints[key], value)
        except DataError as error:
            raise DataError(f"{where}.{key}: expected {_named(hints[key])}, got {value!r}") from error
    return found


def _named(hint: Any) -> str:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if hint in _KINDS:
        return _KINDS[hint]
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(options)}"
    if typing.get_origin(hint) is tuple:
        return f"a list of {_LISTS[options[0]]}" if options[-1] is Ellipsis else "two numbers"
    return _named(options[0])


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        prefix = f"{where}." if where else ""
        raise DataError(f"unknown key {prefix}{unknown[0]}: expected {', '.join(known)}")


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise DataError(f"{key}: expected a table [{key}], got {table!r}")
    return table


def _tables(data: Mapping[str, Any], key: str, needed: str) -> list[tuple[str, dict[str, Any]]]:
    tables = data.get(key)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{key}: expected at least one table [[{key}]] with {needed}, got {tables!r}")
    for number, table in enumerate(tables, 1):
        if not isinstance(table.get(needed), str) or not table[needed]:
            raise DataError(f"{key} {number}: expected {needed}, a text, got {table.get(needed)!r}")
    return [(f"{key} {number}", table) for number, table in enumerate(tables, 1)]


def _layers(value: Any, where: str) -> tuple[int, ...] | None:
    if value == "all":
        return None
    return _integers(value, where, 'a list of layers such as [3, 6], or "all"')


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is int and 1 <= value <= 1000:
        return tuple(range(value))
    return _integers(value, "seeds", "how many seeds, up to 1000, or a list of them such as [0, 1]")


def _integers(value: Any, where: str, expected: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise DataError(f"{where}: expected {expected}, got {value!r}")
    return tuple(value)


def sweep_toml(sweep: Sweep) -> str:
    """Return the TOML that `load_sweep` reads as `sweep`, without what is left at its default.

    The folder of the runs is not in it. Paths are absolute, so that the file may lie anywhere.

    Example:
        >>> print(sweep_toml(Sweep(models=(SweepModel(id="bert"),), tasks=(TaskSettings(source="stsb"),), seeds=(0,))))
        seeds = [0]
        <BLANKLINE>
        [[models]]
        id = "bert"
        <BLANKLINE>
        [[tasks]]
        source = "stsb"
        <BLANKLINE>
    """
    top = {"layers": sweep.layers, "seeds": sweep.seeds}
    blocks = [_lines({key: value for key, value in top.items() if value is not None})]
    here = Path.cwd()
    for name, values in (("models", sweep.models), ("tasks", sweep.tasks)):
        blocks += [[f"[[{name}]]", *_lines(_with_paths_of(here, _changed(value)))] for value in values]
    options = {key: value for key, value in _changed(sweep.options).items() if key in OPTIONS}
    for name, table in (("protocol", _changed(sweep.protocol)), ("options", options)):
        blocks += [[f"[{name}]", *_lines(table)]] if table else []
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _changed(value: Any) -> dict[str, Any]:
    fields = dataclasses.fields(value)
    return {f.name: getattr(value, f.name) for f in fields if getattr(value, f.name) != f.default}


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in table.items()]
