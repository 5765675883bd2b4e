"""The base class of results: a line, a notebook view, a table, a plot and a page. Knows no result."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from layerprobe.errors import DataError, one_line
from layerprobe.files.serialisation import to_dict, to_json
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.markup import Markup, element
from layerprobe.results.table import Table, imported

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

T = TypeVar("T")
PlotlySource = Literal["embedded", "cdn"]
"""Source of Plotly on a page: embedded, or loaded from the network."""
IMAGES = (".png", ".svg", ".pdf")
"""Endings of image files."""
ROWS = 40
"""Rows of a table in a notebook; longer tables lose their middle."""


class Shown(abc.ABC):
    """A result with a summary, a table, plots and a page.

    A subclass has a conclusion, which `words` turns into texts, and a table, the source of terminal, page, notebook,
    CSV and DataFrames. It is a dataclass with `repr=False`, since a dataclass would write its own `__repr__`.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def conclusion(self) -> Conclusion:
        """The conclusion as numbers: verdict, facts, checks and next steps."""

    @property
    def summary(self) -> str:
        """The result in one line: headline and certainty."""
        headline, certainty = words.headline(self.conclusion), words.certainty(self.conclusion)
        return f"{headline} ({certainty[:1].lower()}{certainty[1:]})" if certainty else headline

    @property
    @abc.abstractmethod
    def table(self) -> Table:
        """All numbers as one long table, with charts of its columns; the first chart shows the answer."""

    @property
    def details(self) -> Sequence[Table]:
        """Further tables with titles and charts, such as the table of runs."""
        return ()

    @property
    def sources(self) -> Mapping[str, str]:
        """Sources of the numbers by name: models with revisions, digests of data, settings, versions."""
        return {}

    @property
    def verdict(self) -> Verdict:
        """Confidence in the conclusion: decided, probable, undecided, failed or nothing to do."""
        return self.conclusion.verdict

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Key numbers by name, such as `facts["gain"].value` with its `interval`."""
        return self.conclusion.facts

    def __str__(self) -> str:
        text: str = imported("layerprobe.results.terminal").shown(self)
        return text

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        return str(imported("layerprobe.results.notebook").shown(self))

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame, with the columns of its CSV.

        Raises:
            LayerProbeError: If pandas is not installed.
        """
        return self.table.to_pandas()

    def to_json(self) -> str:
        """Return the result as JSON, with its conclusion; `layerprobe.load` reads it back."""
        conclusion = self.conclusion
        texts = {"headline": words.headline(conclusion), "certainty": words.certainty(conclusion)}
        return to_json({**to_dict(self), "conclusion": texts | to_dict(conclusion)})

    def plot(self, name: str | None = None) -> go.Figure:
        """Return a figure of its page: the first one, or the first of this name, such as front.

        Raises:
            DataError: If there is no such figure, for example because nothing was scored.
            LayerProbeError: If plotly is not installed.
        """
        figures = imported("layerprobe.results.draw").figures(self)
        plots: list[go.Figure] = [figure.plot for figure in figures if name is None or figure.name == str(name)]
        if not plots:
            wanted = "something" if name is None else one_line(f"{name!s:.40}") or "''"
            there = "one with " + ", ".join(figure.name for figure in figures) if figures else self.summary
            raise DataError(f"expected a {type(self).__name__} with {wanted} to plot, got {there}")
        return plots[0]

    def explore(self) -> Markup:
        """Return single items for a notebook: the outputs of two layers side by side, and a map of the texts.

        Raises:
            DataError: If the result has no items, for example because it was read from a file.
            LayerProbeError: If plotly is not installed.
        """
        return element(
            "iframe",
            srcdoc=imported("layerprobe.results.document").items_alone(self),
            sandbox="allow-scripts allow-downloads",
            style="width: 100%; height: 60rem; border: 0",
        )

    def save_html(self, path: str | Path, *, plotly: PlotlySource = "embedded", texts: bool | None = None) -> Path:
        """Write the page of the result and return the path; see `layerprobe.results.document.write_page`.

        Args:
            path: File to write; .png, .svg and .pdf hold the first figure alone, as `plot` returns it.
            plotly: Whether to embed Plotly in the page or load it from the network.
            texts: Whether to show single items with their texts, where these are known; by default if that adds at most
                1.5 MB.

        Raises:
            LayerProbeError: If plotly is not installed, or the file cannot be written.
        """
        written: Path = imported("layerprobe.results.document").write_page(self, path, plotly=plotly, texts=texts)
        return written


OneLayer = int | str | Shown
"""A layer: its number, or a result that chooses one."""
Layers = OneLayer | Sequence[int | Shown]
"""Layers: numbers, a text such as 3,6,9-12, or results that choose one each."""


def is_image(path: str | Path) -> bool:
    """Return whether a file has an ending of `IMAGES`."""
    return Path(path).suffix.lower() in IMAGES


def mask_left_out(layers: Collection[int], values: Sequence[T]) -> list[T | None]:
    """Return values by layer, with None for layers that are left out.

    Examples:
        >>> mask_left_out(range(1, 3), (0.5, 0.5, 0.4, 0.4))
        [None, 0.5, 0.4, None]
    """
    return [value if layer in layers else None for layer, value in enumerate(values)]


class LeavesOut:
    """A value that repeats the nearest layer for layers left out; its JSON has null for them."""

    __slots__ = ()
    first_layer: Any
    collapsed: Any
    by_layer: ClassVar[tuple[str, ...]]
    """Names of fields, its own or of its parts, with one value per layer, or such lists by name."""

    def as_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values in their JSON form."""
        first, last = self.first_layer, self.collapsed
        nulls: dict[str, Any] = _changed(values, self.by_layer, lambda v: mask_left_out(range(first, len(v) - last), v))
        return nulls

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type, dict[str, Any]]:
        """Return this class and its fields from JSON."""
        return cls, _changed(data, cls.by_layer, _repeated)


def _changed(value: Any, names: Collection[str], change: Callable[[list[Any]], list[Any]], here: bool = False) -> Any:
    """Return plain data with the lists in some fields changed, also where a field maps names to lists."""
    if isinstance(value, dict):
        return {name: _changed(item, names, change, here or name in names) for name, item in value.items()}
    if isinstance(value, list):
        return change(value) if here else [_changed(item, names, change) for item in value]
    return value


def _repeated(values: list[Any]) -> list[Any]:
    layers = [layer for layer, value in enumerate(values) if value is not None]
    return [values[min(max(layer, layers[0]), layers[-1])] for layer in range(len(values))] if layers else values
