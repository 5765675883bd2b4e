"""Results that show themselves: in a line, in a notebook, as a table, a plot and a page. Knows none of them."""

from __future__ import annotations

import abc
import html
import importlib.util
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from layerprobe.errors import DataError
from layerprobe.files.serialisation import to_dict, to_json
from layerprobe.registry import Registry
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.markup import Markup, element
from layerprobe.results.table import Table, imported, no_minus_zero

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from layerprobe.results.blocks import Blocks

T = TypeVar("T")
PlotlySource = Literal["embedded", "cdn"]
"""Where a page has Plotly from: it carries it, or loads it from the network."""
IMAGES = (".png", ".svg", ".pdf")
"""Endings of files of a figure alone."""
PAGES: Registry[FunctionType] = Registry(
    "layerprobe.pages", FunctionType, what="page", shipped="layerprobe.report:PAGES"
)
"""What makes the page of a result, by the name of its class."""
LISTED = 16
"""Numbers in a line at most."""
_CLAUSE = re.compile(r"(?<=[^\s]{2})(?:: |; |\. |\.$)")
ROWS = 40
"""Of a table in a notebook; the middle of a longer one is left out."""


class Shown(abc.ABC):
    """A result that shows itself.

    A subclass says in one line what it is, and has a table, from which the terminal, CSV, JSON rows, DataFrames and
    notebooks are made; its page is a row in `PAGES`. It is a dataclass with `repr=False`, as a dataclass writes a
    `__repr__` of its own otherwise.
    """

    __slots__ = ()

    @property
    def conclusion(self) -> Conclusion:
        """What it says, as numbers: verdict, facts, checks and next steps."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """The result in one line: the headline, and how certain it is."""
        headline, certainty = words.headline(self.conclusion), words.certainty(self.conclusion)
        return f"{headline} ({certainty})" if certainty else headline

    @property
    @abc.abstractmethod
    def table(self) -> Table:
        """Its numbers, one long table, with the charts of its columns; the first chart is that of the answer."""

    @property
    def details(self) -> Sequence[Table]:
        """Further tables, each with its title and charts, such as that of the runs."""
        return ()

    @property
    def sources(self) -> Mapping[str, str]:
        """Where its numbers come from, by name: models with revisions, digests of data, settings, versions."""
        return {}

    @property
    def verdict(self) -> Verdict:
        """How much is known of what it says."""
        return self.conclusion.verdict

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Its numbers by name, such as `facts["gain"].value` with its `interval`."""
        return self.conclusion.facts

    def __str__(self) -> str:
        if not has_conclusion(self):
            return repr(self)
        text: str = imported("layerprobe.results.terminal").shown(self)
        return text

    @property
    def parts(self) -> Sequence[Table | str]:
        """What a terminal shows of it, one below the other: the answer and its table."""
        return getattr(self, "sentence", self.summary), "", self.table

    @property
    def heading(self) -> str:
        """Its verdict in a few words, which is the title of its page: by default the first clause of its sentence."""
        return clauses(getattr(self, "sentence", "") or self.summary)[0]

    @property
    def rest(self) -> str:
        """What its sentence says beyond the heading."""
        return clauses(getattr(self, "sentence", "") or self.summary)[1]

    @property
    def blocks(self) -> Blocks | None:
        """Which blocks of the model it says to keep; None where it says nothing of that."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        if has_conclusion(self):
            return str(imported("layerprobe.results.notebook").shown(self))
        table = self.table
        frame = imported("pandas").DataFrame(list(table.lines), columns=[column.head for column in table.shown])
        notes = "".join(f"\n<p>{html.escape(note)}</p>" for note in table.notes)
        markup = f"<p>{html.escape(self.summary)}</p>\n{frame.to_html(index=False, max_rows=ROWS)}{notes}"
        return f"{markup}\n{self._plot_html()}"

    def _plot_html(self) -> str:
        """Return its first figure for a notebook, which loads Plotly from the network; empty where there is none."""
        if importlib.util.find_spec("plotly") is None:
            return ""
        figures = make_page(self).figures
        return str(figures[0].plot.to_html(full_html=False, include_plotlyjs="cdn")) if figures else ""

    def to_pandas(self) -> pd.DataFrame:
        """Return its table, as its page offers it as CSV, too.

        Raises:
            LayerProbeError: If pandas is not installed.
        """
        return self.table.to_pandas()

    def to_json(self) -> str:
        """Return it as JSON, with its conclusion; `layerprobe.load` reads it back."""
        if not has_conclusion(self):
            return to_json(self)
        conclusion = self.conclusion
        texts = {"headline": words.headline(conclusion), "certainty": words.certainty(conclusion)}
        return to_json({**to_dict(self), "conclusion": texts | to_dict(conclusion)})

    def plot(self) -> go.Figure:
        """Return the first figure of its page.

        Raises:
            DataError: If there is nothing to plot, as where nothing was scored.
            LayerProbeError: If plotly is not installed.
        """
        figures = imported("layerprobe.results.draw").figures(self) if has_conclusion(self) else make_page(self).figures
        if not figures:
            raise DataError(f"expected a {type(self).__name__} with something to plot, got {self.summary}")
        figure: go.Figure = figures[0].plot
        return figure

    def explore(self) -> Markup:
        """Return its single items for a notebook: what two layers make of each, side by side, and a map of them.

        Raises:
            DataError: If it knows no items, as where it was read from a file.
            LayerProbeError: If plotly is not installed.
        """
        return element(
            "iframe",
            srcdoc=imported("layerprobe.results.document").items_alone(self),
            sandbox="allow-scripts allow-downloads",
            style="width: 100%; height: 60rem; border: 0",
        )

    def save_html(self, path: str | Path, *, plotly: PlotlySource = "embedded", texts: bool | None = None) -> Path:
        """Write its page and return the path; see `layerprobe.results.page.write_page`.

        Args:
            path: Where to; .png, .svg and .pdf are its first figure alone, as `plot` returns it.
            plotly: Whether the page carries Plotly, or loads it from the network.
            texts: Whether it shows single items, with their texts, where these are known; by default where that adds no
                more than 1.5 MB.

        Raises:
            LayerProbeError: If plotly is not installed, or the file cannot be written.
        """
        if has_conclusion(self):
            of_result: Path = imported("layerprobe.results.document").write_page(self, path, plotly=plotly, texts=texts)
            return of_result
        texts = False if is_image(path) else texts
        made = imported("layerprobe.results.explore").with_items(make_page(self), texts=texts)
        written: Path = imported("layerprobe.results.page").write_page(made, path, plotly=plotly)
        return written


def has_conclusion(result: Shown) -> bool:
    """Return whether a result says what it has as numbers."""
    return type(result).conclusion is not Shown.conclusion


OneLayer = int | str | Shown
"""A layer: its number, or a result that chooses one."""
Layers = OneLayer | Sequence[int | Shown]
"""Layers: numbers, a text such as 3,6,9-12, or results that choose one each."""


def is_image(path: str | Path) -> bool:
    """Return whether a file is named as one of `IMAGES`."""
    return Path(path).suffix.lower() in IMAGES


def clauses(sentence: str) -> tuple[str, str]:
    """Return the first clause of a sentence, as a heading without brackets, and what that does not say.

    Examples:
        >>> clauses("Layer 5 scores best: Spearman 63.92 (95% 60.72 to 66.82). No other.")
        ('Layer 5 scores best', 'Spearman 63.92 (95% 60.72 to 66.82). No other.')
        >>> clauses("It adds 2.1 (95% 1.0 to 3.2) points.")
        ('It adds 2.1 points', 'It adds 2.1 (95% 1.0 to 3.2) points.')
    """
    first, *rest = _CLAUSE.split(sentence, maxsplit=1)
    heading = re.sub(r" \([^()]*\)", "", first)
    further = sentence if heading != first else "".join(rest)
    return heading, further[:1].upper() + further[1:]


def of_layers(layers: Collection[int], values: Sequence[T]) -> list[T | None]:
    """Return values by layer with None for the layers that are left out.

    Examples:
        >>> of_layers(range(1, 3), (0.5, 0.5, 0.4, 0.4))
        [None, 0.5, 0.4, None]
    """
    return [value if layer in layers else None for layer, value in enumerate(values)]


class LeavesOut:
    """A value whose JSON has null for layers that are left out, where it repeats the nearest one that is not."""

    __slots__ = ()
    first_layer: Any
    collapsed: Any
    by_layer: ClassVar[tuple[str, ...]]
    """Fields, of its own or of its parts, with a value a layer, or several of them by name."""

    def as_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values as JSON has them."""
        first, last = self.first_layer, self.collapsed
        nulls: dict[str, Any] = _changed(values, self.by_layer, lambda v: of_layers(range(first, len(v) - last), v))
        return nulls

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type, dict[str, Any]]:
        """Return the fields of JSON."""
        return cls, _changed(data, cls.by_layer, _repeated)


def _changed(value: Any, names: Collection[str], change: Callable[[list[Any]], list[Any]], here: bool = False) -> Any:
    """Return plain data with the lists of some fields changed, and those by name in a mapping there."""
    if isinstance(value, dict):
        return {name: _changed(item, names, change, here or name in names) for name, item in value.items()}
    if isinstance(value, list):
        return change(value) if here else [_changed(item, names, change) for item in value]
    return value


def _repeated(values: list[Any]) -> list[Any]:
    layers = [layer for layer, value in enumerate(values) if value is not None]
    return [values[min(max(layer, layers[0]), layers[-1])] for layer in range(len(values))] if layers else values


def of_cells(layers: tuple[range, range], values: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return a map of layers with None in the rows and columns of layers that are left out."""
    rows, columns = layers
    return [of_layers(columns if i in rows else (), line) for i, line in enumerate(values)]


def brief(values: Sequence[float | None], form: str = ".2f") -> str:
    """Return numbers by layer in a line, of more than `LISTED` the first and the last ones.

    Examples:
        >>> brief([0.914, 0.5, None]), brief(range(30), "d")
        ('0.91 0.50 -', '0 1 2 3 4 5 6 7 … 22 23 24 25 26 27 28 29')
    """
    cells = ["-" if value is None else f"{value:{no_minus_zero(form)}}" for value in values]
    if len(cells) > LISTED:
        cells[LISTED // 2 : -LISTED // 2] = ["…"]
    return " ".join(cells)


def make_page(result: object, *further: object, page: str | None = None, **about: Any) -> Any:
    """Return the page of a result, by its row in `PAGES`: the name of its class, or the one given.

    Raises:
        LayerProbeError: If plotly is not installed.
    """
    imported("plotly")
    return PAGES[page or type(result).__name__](result, *further, **about)
