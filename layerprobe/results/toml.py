"""A chain -> TOML, which `load_chain` reads. Knows values, no files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from layerprobe.results.chains import AdaptStep, Chain


def chain_to_toml(chain: Chain) -> str:
    """Return a chain as TOML, with every setting: a default of a later version changes nothing.

    Example:
        >>> from layerprobe.results import FinetuneStep, TaskSettings
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


def toml_value(value: Any) -> str:
    """Return a text, number, truth value or tuple of such as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # TOML's strings are JSON's, but for one character that JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
