"""The page of a result that declares it, see `declared_page`. Knows no result.

A result says in `page` what is not in its sentences and its table: fields of a `Page`, with `sections` and `sources`
as plain values. A section is its heading and tables: the charts of each are drawn above it, and the table is folded;
a part of the result's own table, by its title, is not written again.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from layerprobe.results.draw import drawn
from layerprobe.results.markup import element
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.table import Table
from layerprobe.results.values import Page, Part


def declared_page(result: Any) -> Page:
    """Return the page of a result: its first figure is the first chart of `first`, by default of its table."""
    declared = dict(result.page)
    sections, sources = declared.pop("sections", {}), declared.pop("sources", {})
    first, toml = declared.pop("first", result.table), declared.pop("toml", "")
    provenance: list[Part] = [definitions(sources)]
    if toml:
        provenance.append(folded("What was done, as a file", element("pre", element("code", toml))))
    figures = [drawn(first, chart) for chart in first.charts] if first is not None and len(first) else []
    listed = [
        section(f"section-{number}", heading, *(part for table in tables for part in _parts(table, result.table.title)))
        for number, (heading, tables) in enumerate(sections.items())
    ]
    if len(figures) > 1:
        listed.insert(0, section("figures", first.title, *figures[1:]))
    return page_of(
        result,
        table=replace(result.table, charts=()),
        first=figures[0] if figures else None,
        sections=listed,
        provenance=tuple(provenance),
        **declared,
    )


def _parts(table: Table, written: str) -> Iterator[Part]:
    if len(table):
        yield from (drawn(table, chart) for chart in table.charts)
        yield folded(table.title, table_of(table)) if table.title != written else None
