"""A chain -> TOML, which `load_chain` reads. Knows values, no files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerprobe.adaptation.values import AdaptationProtocol
from layerprobe.chains.values import AdaptStep, Chain, FinetuneStep
from layerprobe.errors import DataError
from layerprobe.files import from_home
from layerprobe.finetuning.values import Protocol
from layerprobe.toml import (
    Keys,
    as_integers,
    as_seeds,
    as_tables,
    as_text,
    as_texts,
    made,
    of_kind,
    parsed,
    read_toml,
    toml_value,
)


def chain_to_toml(chain: Chain) -> str:
    """Return a chain as TOML, with every setting: a default of a later version changes nothing.

    Example:
        >>> from layerprobe.chains.values import FinetuneStep
        >>> from layerprobe.tasks.values import TaskSettings
        >>> step = FinetuneStep(task=TaskSettings(source="stsb"))
        >>> chain_to_toml(Chain(name="plain", model="bert", steps=(step,))).splitlines()[:3]
        ['name = "plain"', 'model = "bert"', 'layers = "all"']
    """
    top = {f.name: getattr(chain, f.name) for f in dataclasses.fields(chain) if f.name != "steps"}
    tables = [_lines({**top, "layers": "all" if chain.layers is None else chain.layers})]
    for step in chain.steps:
        if isinstance(step, AdaptStep):
            values = {"adapt": step.texts, "seed": step.seed}
        else:
            settings = _values(step.task)
            values = {"finetune": settings.pop("source"), **settings}
        tables.append("[[step]]\n" + _lines({**values, **_values(step.protocol)}))
    return "\n".join(tables)


def _values(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items() if value is not None)


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
    text = read_toml(file, "the chain")
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
    keys = Keys(where, parsed(text, where), folder)
    steps = keys.take("step", as_tables, "tables [[step]]", missing="at least one table [[step]]")
    values: dict[str, Any] = {"name": keys.take("name", as_text, "a text", default=name)}
    values["model"] = keys.model("model", missing="model, a hub id or a folder")
    values["reference"] = keys.model("reference")
    values["layers"] = keys.take("layers", _layers, 'a list of whole numbers or "all"', default=None)
    values["seeds"] = keys.take("seeds", as_seeds, "a number of seeds or a list of them", default=None)
    values["control"] = keys.take("control", as_integers, "a list of seeds", default=None)
    values["random_init"] = keys.take("random_init", of_kind(int), "a whole number", default=None)
    for switch in ("baseline", "cka"):
        values[switch] = keys.take(switch, of_kind(bool), "true or false", default=None)
    keys.done()
    read = (_step(Keys(f"{where}, step {number}", step, folder)) for number, step in enumerate(steps, 1))
    given = {key: value for key, value in values.items() if value is not None}
    return made(Chain, where, steps=tuple(read), **given)


def _step(keys: Keys) -> AdaptStep | FinetuneStep:
    kinds = [kind for kind in ("adapt", "finetune") if kind in keys.data]
    if len(kinds) != 1:
        raise DataError(f"{keys.where}: expected either adapt or finetune, got {' and '.join(kinds) or 'neither'}")
    if kinds == ["adapt"]:
        texts = keys.take("adapt", as_texts, "a file or a list of files")
        seed = keys.take("seed", of_kind(int), "a whole number", default=0)
        how = keys.fields(AdaptationProtocol)
        keys.done()
        return made(AdaptStep, keys.where, texts=tuple(map(keys.path, texts)), protocol=how, seed=seed)
    source = keys.take("finetune", as_text, "a file, a folder, stsb or the hub id of a data set")
    task = keys.task(keys.source(source))
    protocol = keys.fields(Protocol)
    keys.done()
    return made(FinetuneStep, keys.where, task=task, protocol=protocol)


def _layers(value: Any) -> tuple[int, ...] | None:
    return None if value == "all" else as_integers(value)
