"""Pages, sections and figures. Knows their order, not their content."""

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from layerprobe.results.blocks import Blocks
from layerprobe.results.markup import Markup
from layerprobe.results.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its caption."""

    name: str
    """Unique on the page."""
    plot: go.Figure
    finding: str
    """What it shows, also for those who cannot see it."""
    reading: str = ""
    """How to read it."""
    kind: str = "plot"
    """CSS class of the plot."""
    style: str | None = None
    """CSS of the plot."""


Part = Figure | Markup | None
"""What stands in a section; None is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page under its own heading; one without content is left out."""

    name: str
    """Unique on the page."""
    heading: str
    parts: tuple[Part, ...]
    kind: str | None = None
    """CSS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A result as one page, from its verdict to where its numbers come from. Text is escaped, Markup is not."""

    heading: str
    """The verdict."""
    kind: str
    """What kind of result it is."""
    about: str = ""
    """Whose result it is: model and task."""
    lead: tuple[str, ...] = ()
    """The verdict in sentences of large type."""
    facts: tuple[str, ...] = ()
    """Score, size and speed, in one line."""
    blocks: Blocks | None = None
    """Which blocks are kept."""
    fatal: tuple[str, ...] = ()
    """Warnings without which the verdict would mislead: they are never folded."""
    first: Figure | None = None
    """The figure that shows it, right below."""
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    """Each is shown once, folded."""
    account: tuple[str, ...] = ()
    """How it was decided, in paragraphs, folded."""
    provenance: tuple[Part, ...] = ()
    """Where the numbers come from, folded."""
    items: str = ""
    """Single items and what layers output for them, as the page's script reads them; empty where it has none."""
    result: Any
    """What it is of, which the page offers as JSON."""
    numbers: Table | None = None
    """By default the table of the result."""
    stem: str
    """Name of downloaded files, without ending."""

    @property
    def title(self) -> str:
        """Of the browser's tab: the verdict, and whose it is."""
        return f"{self.heading} · {self.about}" if self.about and self.about not in self.heading else self.heading

    @property
    def table(self) -> Table:
        """The numbers, which the page offers as CSV."""
        table: Table = self.result.table if self.numbers is None else self.numbers
        return table

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, in their order."""
        below = (part for section in self.sections for part in section.parts if isinstance(part, Figure))
        return (*(() if self.first is None else (self.first,)), *below)
