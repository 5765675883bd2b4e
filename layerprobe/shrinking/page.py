"""A smaller model as a page: which blocks go, what each costs, and what the smaller model loses. Knows its results."""

import shlex
from collections.abc import Mapping
from typing import Any

from layerprobe.report.facts import about
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import section, table_of
from layerprobe.results.table import Table
from layerprobe.results.values import Page, Section
from layerprobe.shrinking.equal import EqualSize
from layerprobe.shrinking.values import TRAINING, Shrunk
from layerprobe.stats.sentences import at_most


def shrunk_page(result: Shrunk) -> Page:
    """Return the page of a model made smaller."""
    small, loss, whole = result.smaller, result.smaller.loss, result.model
    lost = "" if loss is None else f"loss {numbers.number(loss.value)}, {at_most(loss.most, loss.margin)} (95 %)"
    fewer = numbers.percent(round(1 - small.parameters / whole.parameters[-1], 2))
    tables = [*([result.ways] if result.front else []), *([result.order] if result.removals else [])]
    return page_of(
        result,
        kind="a smaller model",
        about=about(whole.name, result.task or result.texts),
        facts=(lost, f"{numbers.millions(small.parameters)} parameters, {fewer} fewer", small.faster),
        sections=tuple(map(_with_charts, tables)),
        account=(result.account,),
        makes=lambda record: _export(result, record),
    )


def _export(result: Shrunk, record: Mapping[str, Any]) -> str:
    """Return what writes the model of a row as a folder, trained before where it must be; empty where nothing does."""
    blocks: tuple[int, ...] = record.get("blocks", ())
    whole, protocol = result.model, result.protocol
    if "run_by" not in record:
        folders = {size.blocks: size.folders[0] for size in result.tried}
        return shlex.join(["layerprobe", "export", folders[blocks], "smaller"]) if blocks in folders else ""
    options, folder = list[str](), whole.name
    fewer_tokens = record["tokens"] is not None and record["tokens"] < max(way.tokens or 0 for way in result.front)
    if len(blocks) < whole.n_blocks or fewer_tokens:
        options = ["--size", ",".join(map(str, blocks)) if len(blocks) < whole.n_blocks else "all"]
        options += ["--vocabulary", str(record["tokens"])] if fewer_tokens else []
        options += ["--dimensions", str(record["dimensions"])] if record["dimensions"] < whole.hidden_size else []
        options += [
            word
            for name in ("epochs", "learning_rate", "batch_size")
            if getattr(protocol, name) != getattr(TRAINING, name)
            for word in (f"--{name.replace('_', '-')}", f"{getattr(protocol, name):g}")
        ]
        options += ["--seeds", ",".join(map(str, result.seeds))] if len(result.seeds) > 1 else []
        folder = "smaller"
    files = [] if result.texts.startswith("the training split of ") else result.texts.split(", ")
    data = [word for file in files for word in ("--texts", file)] + (["-t", result.task] if result.task else [])
    parts = [["layerprobe", "shrink", whole.name, *data, *options, "-o", folder]] if options else []
    backend, _, how = record["run_by"].partition(" ")
    if how == "int8" and (record["dimensions"] == whole.hidden_size or options):
        parts.append(["layerprobe", "export", folder, "smaller-int8", "--layer", str(len(blocks)), "--int8", backend])
    return " && ".join(map(shlex.join, parts))


def _with_charts(table: Table) -> Section:
    charts = [drawn(table, chart) for chart in table.charts]
    return section(charts[0].name, table.title, *charts, table_of(table))


def equal_page(result: EqualSize) -> Page:
    """Return the page of the first blocks and others of the same number, fine-tuned alike."""
    return page_of(result, kind="blocks of equal size")
