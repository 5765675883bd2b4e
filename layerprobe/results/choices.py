"""What the script of a page shows of a point, block or row that a reader chooses. Knows pages and tables, no result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from layerprobe.results.numbers import typeset
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Page


def choices(page: Page) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the rows that can be chosen, of the page's table and of those of its figures, and what makes each."""
    tables, figures = [page.table], dict[str, int]()
    for figure in page.figures:
        if figure.table is not None:
            if figure.table not in tables:
                tables.append(figure.table)
            figures[figure.name] = tables.index(figure.table)
    made_by = page.makes or (lambda record: "")
    commands = [[made_by(record) for record in table.records()] for table in tables]
    return {"figures": figures, "tables": [_rows(page, table) for table in tables]}, commands


def _rows(page: Page, table: Table) -> dict[str, Any]:
    naming = _naming(table)
    columns = [column for column in table.columns if (column.shown and column not in naming) or _is_measured(column)]
    cells = list(zip(*(map(typeset, column.cells) for column in columns), strict=True))
    blocks = [_blocks(record) for record in table.records()] if page.blocks and table == page.table else []
    return {
        "heads": [column.head for column in columns],
        "names": list(_names(naming)),
        "cells": cells,
        "blocks": blocks,
        "chosen": table.marks.index("chosen") if "chosen" in table.marks else None,
    }


def _is_measured(column: Column) -> bool:
    """Return whether a column that is in files alone has numbers: neither flags nor numbers of seeds."""
    values = [value for value in column.values if value is not None]
    numeric = all(isinstance(value, float) or (isinstance(value, tuple) and column.interval) for value in values)
    return bool(values) and numeric


def _blocks(record: dict[str, Any]) -> list[int]:
    """Return the blocks that a row keeps: those up to its layer, or those that it names."""
    if isinstance(kept := record.get("layer"), int):
        return list(range(1, kept + 1))
    return list(record.get("blocks") or ())


def _naming(table: Table) -> list[Column]:
    """Return the columns that tell rows apart: the first ones, as few as do."""
    naming = list[Column]()
    for column in table.shown:
        if column.name != "parameters":
            naming.append(column)
        if len(set(zip(*(named.cells for named in naming), strict=True))) == len(table):
            break
    return naming


def _names(naming: Sequence[Column]) -> Iterator[str]:
    """Yield the name of each row, numbers with what they are of."""
    for row in zip(*(named.cells for named in naming), strict=True):
        yield ", ".join(
            f"{column.head} {typeset(cell)}" if cell[:1].isdigit() else cell
            for column, cell in zip(naming, row, strict=True)
            if cell
        )
