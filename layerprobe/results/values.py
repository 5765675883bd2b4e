"""What a page is made of. Knows its parts and their order, not what they say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from layerprobe.results.markup import Markup
from layerprobe.results.table import Table


@dataclass(frozen=True, slots=True)
class Card:
    """A number in large type."""

    label: str
    value: str
    detail: str
    """Where it is from, or how certain it is."""


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
    """A result as one page. Text is escaped, Markup is not."""

    title: str
    """Of the browser's tab."""
    overline: str
    """What kind of result it is."""
    heading: str
    lead: tuple[str, ...]
    """What was found, in sentences of large type."""
    first: Figure | None = None
    """The figure that shows it, right below."""
    remarks: tuple[str, ...] = ()
    """Paragraphs below."""
    cards: Mapping[str, tuple[Card, ...]] = field(default_factory=dict)
    """Rows of cards by heading, which is empty where there is one row."""
    warnings: tuple[str, ...] = ()
    """Each is shown once."""
    sections: tuple[Section, ...]
    provenance: tuple[Part, ...] = ()
    """Where the numbers come from."""
    terms: tuple[str, ...]
    """Words to explain; see `layerprobe.results.glossary`."""
    result: Any
    """What it is of, which the page offers as JSON."""
    data_label: str = "Everything"
    numbers: Table | None = None
    """By default the table of the result."""
    stem: str
    """Name of downloaded files, without ending."""

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
