"""Figures declared by the columns of a table. Knows what may share an axis and what a caption says; draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layerprobe.errors import DataError

if TYPE_CHECKING:
    from layerprobe.results.table import Table


@dataclass(frozen=True, slots=True)
class Quantity:
    """What the numbers of a column are: only numbers of one unit and one split share an axis."""

    unit: str
    """What they are in, such as `Spearman × 100` or `ms`."""
    split: str = ""
    """The split that they are measured on: validation, test, or all; empty where there is none."""
    best: Literal["higher", "lower", ""] = ""
    """Which numbers are better."""

    @property
    def title(self) -> str:
        """The title of an axis of them.

        Examples:
            >>> Quantity("Spearman × 100", "test").title
            'Test Spearman × 100'
        """
        split = "" if self.split == "all" else self.split
        title = f"{split} {self.unit}".strip()
        first = title.split()[0]  # nDCG stays as it is
        return title if first != first.lower() else f"{title[:1].upper()}{title[1:]}"


@dataclass(frozen=True, slots=True)
class Line:
    """One curve, or one set of points, of a chart."""

    column: str
    """What is drawn."""
    interval: str = ""
    """The column of its intervals."""
    band: str = ""
    """The column of wider ones, which hold for the whole curve at once."""
    seeds: str = ""
    """The column of the scores of its seeds, a tuple a row."""
    run: str = ""
    """The column that says which numbers are of a run: the others are inferred, and drawn hollow."""
    joined: bool = True
    """Whether a line joins the points."""
    mark: Literal["", "diamond"] = ""
    """The shape of the points, where they are of another split than those of the first line."""
    name: str = ""
    """In the legend; by default the title of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of some columns of a table.

    Rows without a number are left out; those without an x are lines across. The rows that the table marks look
    different, and the caption says how.
    """

    lines: tuple[Line, ...]
    name: str = "chart"
    """Unique on a page."""
    heading: str = ""
    """Of its section, where it is not the first of a page."""
    kind: Literal["line", "bars", "cost", "map", "staircase"] = "line"
    """line: over x, joined; bars: from 0; cost: labelled points of quality against a cost on a logarithmic axis; map:
    colours by x and y; staircase: a row a size of a model, with x its blocks, and lines of agreement and of loss."""
    x: str = "layer"
    y: str = ""
    """Of a map."""
    where: tuple[tuple[str, object], ...] = ()
    """Columns, and the value that rows must have there to be drawn."""
    by: str = ""
    """The column, or columns with a space between, that tell the curves of a line apart, such as model."""
    label: str = ""
    """The column that points of a cost are labelled by; by default the first one."""
    x_interval: str = ""
    """The column of the intervals of x."""
    band: bool = False
    """Whether intervals are shades, not bars."""
    floor: str = ""
    """The column of what a trivial answer scores."""
    limit: float | None = None
    """What a number may be at most, or has to be."""
    zero: str = ""
    """What a line at 0 is of, such as the whole model."""
    chosen: str = "chosen"
    """What the rows are that the table marks so."""
    drops: str = "drop layers"
    enough: str = "the smallest that will do"
    hover: tuple[str, ...] = ()
    """Further columns that are shown where one points at."""

    def quantity(self, table: Table) -> Quantity:
        """Return the quantity on its axis; points of another split have a shape of their own."""
        lines = [line for line in self.lines if line is self.lines[0] or not (line.mark or self.kind == "staircase")]
        drawn = {line.column: table.column(line.column) for line in lines}
        quantities = {name: column.quantity or Quantity(column.head) for name, column in drawn.items()}
        if len({(quantity.split, quantity.unit) for quantity in quantities.values()}) > 1:
            listing = ", ".join(f"{name} ({quantity.title})" for name, quantity in quantities.items())
            raise DataError(f"expected columns of one split and unit on one axis, got {listing}: draw a chart of each")
        return next(iter(quantities.values()))
