"""Figures declared by the columns of a table. Knows axes and captions; draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layerprobe.errors import DataError

if TYPE_CHECKING:
    from layerprobe.results.table import Table


@dataclass(frozen=True, slots=True)
class Quantity:
    """The kind of number in a column: only numbers of one unit and one split share an axis."""

    unit: str
    """Their unit, such as `Spearman × 100` or `ms`."""
    split: str = ""
    """The split they were measured on: validation, test or all; empty where there is none."""
    best: Literal["higher", "lower", ""] = ""
    """The better direction; empty if there is none."""

    @property
    def title(self) -> str:
        """The title of their axis.

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
    """The column of the numbers to draw."""
    interval: str = ""
    """The column of its intervals."""
    band: str = ""
    """The column of wider intervals, which hold for the whole curve at once."""
    seeds: str = ""
    """The column of scores by seed, one tuple per row."""
    run: str = ""
    """The column that marks numbers measured in a run; the others are inferred and drawn hollow."""
    joined: bool = True
    """Whether a line joins the points."""
    mark: Literal["", "diamond"] = ""
    """The shape of the points; used for a split other than that of the first line."""
    name: str = ""
    """Its name in the legend; by default the title of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of some columns of a table.

    Rows without a number are left out; rows without an x become horizontal lines. Rows that the table marks look
    different, and the caption explains them.
    """

    lines: tuple[Line, ...]
    name: str = "chart"
    """Its name, unique on a page."""
    heading: str = ""
    """The heading of its section; the first chart of a page needs none."""
    kind: Literal["line", "bars", "cost", "map", "staircase"] = "line"
    """line: joined points over x; bars: from 0; cost: labelled points of quality against a cost, on a logarithmic axis;
    map: colours by x and y; staircase: one row per model size, with its blocks (x) and lines of agreement and loss."""
    x: str = "layer"
    y: str = ""
    """The column of the vertical axis of a map."""
    where: tuple[tuple[str, object], ...] = ()
    """Columns and the values that rows must have there to be drawn."""
    by: str = ""
    """The column, or columns separated by spaces, with one curve per value, such as model."""
    label: str = ""
    """The column with the labels of points against a cost; by default the first one."""
    x_interval: str = ""
    """The column with the intervals of x."""
    band: bool = False
    """Whether intervals are drawn as shades instead of bars."""
    floor: str = ""
    """The column with the score of a trivial baseline."""
    limit: float | None = None
    """A limit to draw as a line, such as the largest loss allowed."""
    zero: str = ""
    """The name of a line at 0, such as the whole model."""
    chosen: str = "chosen"
    """Caption of the rows that the table marks as chosen; `drops` and `enough` likewise."""
    drops: str = "drop layers"
    enough: str = "the smallest that is good enough"
    hover: tuple[str, ...] = ()
    """Further columns to show on hover."""

    def quantity(self, table: Table) -> Quantity:
        """Return the quantity on its axis; points of another split need a shape of their own."""
        lines = [line for line in self.lines if line is self.lines[0] or not (line.mark or self.kind == "staircase")]
        drawn = {line.column: table.column(line.column) for line in lines}
        quantities = {name: column.quantity or Quantity(column.head) for name, column in drawn.items()}
        if len({(quantity.split, quantity.unit) for quantity in quantities.values()}) > 1:
            listing = ", ".join(f"{name} ({quantity.title})" for name, quantity in quantities.items())
            raise DataError(f"expected columns of one split and unit on one axis, got {listing}: draw a chart for each")
        return next(iter(quantities.values()))
