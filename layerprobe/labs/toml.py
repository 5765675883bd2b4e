"""A TOML file -> a lab study. Knows the file's keys and what they may hold; runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerprobe.errors import DataError
from layerprobe.files import from_home
from layerprobe.finetuning.values import Protocol
from layerprobe.labs.values import LANGUAGE, LabStudy
from layerprobe.pretraining.values import SIZES, EncoderSize, PretrainingProtocol
from layerprobe.tasks.values import TaskSettings
from layerprobe.toml import Keys, as_integers, as_items, as_seeds, as_table, as_text, as_texts, made, parsed, read_toml


def load_lab(path: str | Path) -> LabStudy:
    """Read a lab study from a TOML file; paths in it are relative to the file.

        corpus = "language"                   # or a file or a list of files; column = "text" in a table
        objectives = ["mlm", "rtd"]           # mlm is among them
        seeds = 2                             # of the pretraining; or a list of them
        generator_sizes = [0.25]
        finetuning_seeds = 3
        [sizes]
        tiny = "tiny"                         # a preset, or
        short = { n_blocks = 6, hidden_size = 64, heads = 4, intermediate_size = 256 }
        [pretraining]                         # fields of PretrainingProtocol
        steps = 2500
        [task]                                # fields of TaskSettings
        source = "language"                   # sentence pairs of the embedded language, or a file or data set
        examples = [1500, 500, 1000]          # training, validation and test, at most
        [budget.gentle]                       # fields of Protocol; any number of budgets
        epochs = 3

    Args:
        path: The file.

    Raises:
        DataError: If the file cannot be read, is no TOML, or a key is missing, unknown or not what it should be.
    """
    file = from_home(path)
    where = str(path)
    keys = Keys(where, parsed(read_toml(file, "the study"), where), file.parent)
    values: dict[str, Any] = {"name": keys.take("name", as_text, "a text", default=file.stem)}
    corpus = keys.take("corpus", as_texts, f'"{LANGUAGE}", a file or a list of files', default=(LANGUAGE,))
    values["corpus"] = corpus if corpus == (LANGUAGE,) else tuple(map(keys.source, corpus))
    values["column"] = keys.take("column", as_text, "a text", default=None)
    values["objectives"] = keys.take("objectives", _names, "a list of names of objectives", default=None)
    values["generator_sizes"] = keys.take("generator_sizes", _numbers, "a list of numbers", default=None)
    for key in ("seeds", "finetuning_seeds"):
        values[key] = keys.take(key, as_seeds, "a number of seeds or a list of them", default=None)
    sizes = keys.take("sizes", as_table, "a table of sizes", missing="a table [sizes]")
    pretraining = keys.take("pretraining", as_table, "a table", default={})
    task = keys.take("task", as_table, "a table", default={"source": LANGUAGE})
    budgets = keys.take("budget", as_table, "tables [budget.NAME]", missing="at least one table [budget.NAME]")
    keys.done()
    values["sizes"] = {name: _size(f"{where}, size {name}", size) for name, size in sizes.items()}
    values["pretraining"] = _pretraining(Keys(f"{where}, pretraining", pretraining, None))
    values["task"], values["examples"] = _task(Keys(f"{where}, task", task, file.parent))
    values["budgets"] = {name: _budget(f"{where}, budget {name}", budget) for name, budget in budgets.items()}
    return made(LabStudy, where, **{key: value for key, value in values.items() if value is not None})


def _size(where: str, value: Any) -> EncoderSize:
    if isinstance(value, str) and value in SIZES:
        return SIZES[value]
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected one of {', '.join(SIZES)} or a table, got {value!r}")
    keys = Keys(where, value, None)
    needed = ("n_blocks", "hidden_size", "heads", "intermediate_size")
    if missing := [key for key in needed if key not in value]:
        raise DataError(f"{where}: expected {', '.join(missing)}, got none")
    size = keys.fields(EncoderSize)
    keys.done()
    return size


def _pretraining(keys: Keys) -> PretrainingProtocol:
    """Return the protocol; what differs from model to model is no key of it."""
    own = PretrainingProtocol()
    given = {"objective": own.objective, "size": own.size, "generator_size": own.generator_size}
    protocol = keys.fields(PretrainingProtocol, given)
    keys.done()
    return protocol


def _task(keys: Keys) -> tuple[TaskSettings, tuple[int, int, int] | None]:
    source = keys.take("source", as_text, f'"{LANGUAGE}", a file, a folder, stsb or the hub id of a data set')
    examples = keys.take("examples", _three_integers, "three whole numbers such as [1500, 500, 1000]", default=None)
    task = keys.task(source if source == LANGUAGE else keys.source(source))
    keys.done()
    return task, examples


def _budget(where: str, value: Any) -> Protocol:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a table, got {value!r}")
    keys = Keys(where, value, None)
    protocol = keys.fields(Protocol)
    keys.done()
    return protocol


def _names(value: Any) -> tuple[str, ...]:
    return as_items(value, str)


def _numbers(value: Any) -> tuple[float, ...]:
    return as_items(value, float)


def _three_integers(value: Any) -> tuple[int, int, int]:
    train, validation, test = as_integers(value)
    return train, validation, test
