"""Results that show themselves: in a line, in a notebook, as a table, a plot and a page. Knows none of them."""

from __future__ import annotations

import abc
import html
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from layerprobe.errors import DataError, LayerProbeError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PlotlySource = Literal["embedded", "cdn"]
"""Where a page has Plotly from: it carries it, or loads it from the network."""
LISTED = 16
"""Numbers in a line at most."""
ROWS = 40
"""Of a table in a notebook; the middle of a longer one is left out."""


class Shown(abc.ABC):
    """A result that shows itself.

    A subclass says in one line what it is, and names the function that makes its page, from which all else follows. It
    is a dataclass with `repr=False`, as a dataclass writes a `__repr__` of its own otherwise.
    """

    __slots__ = ()

    page_function: ClassVar[str]
    """`module:function` that makes the page of a result."""

    @property
    @abc.abstractmethod
    def summary(self) -> str:
        """What it is and what it says, in one line."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        table = self.to_pandas().dropna(axis="columns", how="all")
        shown = table.to_html(index=False, max_rows=ROWS, float_format="{:.4g}".format, na_rep="")
        return f"<p>{html.escape(self.summary)}</p>\n{shown}"

    def to_pandas(self) -> pd.DataFrame:
        """Return the table of its page, which the page offers as CSV, too.

        Raises:
            LayerProbeError: If pandas or plotly is not installed.
        """
        table: str = self._page().table
        read: pd.DataFrame = _imported("pandas").read_csv(io.StringIO(table), keep_default_na=False, na_values=[""])
        return read

    def plot(self) -> go.Figure:
        """Return the first figure of its page.

        Raises:
            DataError: If there is nothing to plot, as where nothing was scored.
            LayerProbeError: If plotly is not installed.
        """
        figures = self._page().figures
        if not figures:
            raise DataError(f"expected a {type(self).__name__} with something to plot, got {self.summary}")
        figure: go.Figure = figures[0].plot
        return figure

    def save_html(self, path: str | Path, *, plotly: PlotlySource = "embedded") -> Path:
        """Write its page and return the path; see `layerprobe.results.page.write_page`.

        Raises:
            LayerProbeError: If plotly is not installed, or the file cannot be written.
        """
        return save_page(path, self.page_function, self, plotly=plotly)

    def _page(self) -> Any:
        return make_page(self.page_function, self)


def from_layer(first: int, values: Sequence[float]) -> list[float | None]:
    """Return values by layer with None for the layers before the first one that has a value of its own.

    Examples:
        >>> from_layer(1, (0.5, 0.5, 0.4))
        [None, 0.5, 0.4]
    """
    return [None if layer < first else value for layer, value in enumerate(values)]


def from_cell(first: tuple[int, int], values: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return a map of layers with None in the rows and columns before the first that have values of their own."""
    row, column = first
    return [from_layer(len(each) if i < row else column, each) for i, each in enumerate(values)]


def brief(values: Sequence[float | None], form: str = ".2f") -> str:
    """Return numbers by layer in a line, of more than `LISTED` the first and the last ones.

    Examples:
        >>> brief([0.914, 0.5, None]), brief(range(30), "d")
        ('0.91 0.50 -', '0 1 2 3 4 5 6 7 … 22 23 24 25 26 27 28 29')
    """
    shown = ["-" if value is None else f"{value:{form}}" for value in values]
    if len(shown) > LISTED:
        shown[LISTED // 2 : -LISTED // 2] = ["…"]
    return " ".join(shown)


def save_page(
    path: str | Path, function: str, *results: object, plotly: PlotlySource = "embedded", **about: Any
) -> Path:
    """Write the page that a function makes of results, and return the path; see `make_page`."""
    page = make_page(function, *results, **about)
    written: Path = _imported("layerprobe.results.page").write_page(page, path, plotly=plotly)
    return written


def make_page(function: str, *results: object, **about: Any) -> Any:
    """Return the page that a function makes of results; it is named `module:function`, and imported only now.

    Raises:
        LayerProbeError: If plotly is not installed.
    """
    module, _, name = function.partition(":")
    return getattr(_imported(module), name)(*results, **about)


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("layerprobe"):
            raise
        package = error.name.partition(".")[0]
        raise LayerProbeError(
            f"expected {package}, which shows results, to be installed: pip install {package}"
        ) from error
