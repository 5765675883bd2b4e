"""Colours, axes and style of all figures, and a figure while it is drawn. Knows Plotly and layers, no kind of chart."""

import html
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from layerprobe.names import percentage
from layerprobe.results import words
from layerprobe.results.conclusion import Choice
from layerprobe.results.table import Bounds, Chart, Column, Line, Table

# Blue, vermilion, green and grey differ for every kind of colour vision; shapes repeat the meaning of colours.
INK, FAINT, GRID, PAPER = "#1c2126", "#5b6570", "#e3e5e8", "#ffffff"
MODEL, REFERENCE, DROP, CHOSEN = "#0069a8", "#77808c", "#c44e00", "#00795a"
SHADE, CANDIDATE, TRANSPARENT = "rgba(196,78,0,0.09)", "rgba(0,121,90,0.13)", "rgba(0,0,0,0)"
INTERVAL, BAND = "rgba(0,105,168,0.26)", "rgba(0,105,168,0.12)"
NEGATIVE = "#f6d5bd"
SEQUENTIAL = ("#f5f8fb", "#cadcec", "#8db8d9", "#4189bf", "#0d5a96", "#062f57")
STYLES = (
    (MODEL, INTERVAL, "circle", "solid"),
    (DROP, SHADE, "x", "dash"),
    ("#7d3c98", "rgba(125,60,152,0.15)", "triangle-up", "dash"),
    ("#7a5c00", "rgba(122,92,0,0.15)", "star", "dashdot"),
    ("#3f6b6b", "rgba(63,107,107,0.15)", "hexagon", "longdash"),
)
"""Colour, shade, symbol and dash of curves, in turn."""

DARK = {
    INK: "#e7e9ec",
    FAINT: "#a3abb5",
    GRID: "#2c3239",
    PAPER: "#14171a",
    MODEL: "#56b4e9",
    REFERENCE: "#9aa3ae",
    DROP: "#f58a4c",
    CHOSEN: "#3cc99b",
    SHADE: "rgba(245,138,76,0.11)",
    CANDIDATE: "rgba(60,201,155,0.16)",
    INTERVAL: "rgba(86,180,233,0.30)",
    BAND: "rgba(86,180,233,0.14)",
    STYLES[2][0]: "#c99be0",
    STYLES[2][1]: "rgba(201,155,224,0.16)",
    STYLES[3][0]: "#d9bb55",
    STYLES[3][1]: "rgba(217,187,85,0.16)",
    STYLES[4][0]: "#8cc3c3",
    STYLES[4][1]: "rgba(140,195,195,0.16)",
    NEGATIVE: "#5a3420",
    **dict(zip(SEQUENTIAL, ("#1b2026", "#1d3a54", "#215f8f", "#3c8cc4", "#83bde6", "#dcefff"), strict=True)),
}
"""The colour on a dark page for each colour of the figures."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def text(name: str, width: int = 10_000) -> str:
    """Return a name, wrapped and escaped for Plotly, whose texts allow some HTML and mathematics in dollar signs."""
    return "<br>".join(html.escape(line, quote=False).replace("$", "&#36;") for line in textwrap.wrap(name, width))


def tick_step(n: float) -> int:
    """Return the step between labels on an axis of n numbers: few enough labels for a phone."""
    return next(step for step in (1, 2, 4, 8, 16, 32) if n <= 14 * step or step == 32)


def number_axis(axis: Any, title: str, n: int, *, narrow: bool = False) -> None:
    """Set up an axis of the numbers below n, such as layers; narrow: on half the width of a figure."""
    axis.update(title_text=text(title), dtick=tick_step(2 * n - 4 if narrow else n), tick0=0, range=[-0.5, n - 0.5])


def colour_scale(low: float, high: float) -> list[list[Any]]:
    """Return the colours from low (0 or negative) to high; negative values have another hue."""
    zero, steps = -low / (high - low), len(SEQUENTIAL) - 1
    # 1 minus a part, as Plotly refuses a scale that rounding ends just under 1
    positive: list[list[Any]] = [[1 - (1 - zero) * (1 - i / steps), colour] for i, colour in enumerate(SEQUENTIAL)]
    return [[0.0, NEGATIVE], *positive] if zero > 0 else positive


def shade(figure: go.Figure, layers: Sequence[int], colour: str) -> None:
    """Shade layers; adjacent layers get one shade."""
    for first in (layer for layer in layers if layer - 1 not in layers):
        last = next(layer for layer in layers if layer >= first and layer + 1 not in layers)
        figure.add_vrect(x0=first - 0.5, x1=last + 0.5, fillcolor=colour, line_width=0, layer="below")


def empty() -> go.Figure:
    """Return a figure without content, with the style of its axes."""
    return styled(go.Figure(layout={"xaxis": {}, "yaxis": {}}))


def styled(figure: go.Figure) -> go.Figure:
    """Return the figure in the colours and type of the report."""
    lines = {"gridcolor": GRID, "linecolor": FAINT, "tickcolor": FAINT, "zeroline": False, "automargin": True}
    title = {"font": {"size": 13}, "standoff": 10}
    axis = lines | {"tickfont": {"color": FAINT}, "tickangle": 0, "title": title}
    below = {"x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        margin={"l": 48, "r": 12, "t": 46, "b": 44},
        hoverlabel={"bgcolor": PAPER, "bordercolor": FAINT, "font": {"color": INK, "family": FONT}, "align": "left"},
        legend=below | {"orientation": "h", "bgcolor": TRANSPARENT},
        modebar={"bgcolor": TRANSPARENT, "color": FAINT, "activecolor": INK},
        uirevision="result",
    )
    return figure


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its caption."""

    name: str
    """Its name, unique on the page."""
    plot: go.Figure
    finding: str
    """A description of the data, also for readers who cannot see the figure."""
    reading: str = ""
    """An explanation of its marks."""
    kind: str = "plot"
    """CSS class of the plot."""
    style: str | None = None
    """CSS of the plot."""


class Curve(NamedTuple):
    """One curve with its rows and its look."""

    name: str
    rows: tuple[int, ...]
    """Numbers of the rows with a number and an x."""
    line: Line
    colour: str
    shade: str
    symbol: str
    dash: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart that is being drawn: its rows, the figure, and notes for the caption."""

    table: Table
    chart: Chart
    figure: go.Figure
    notes: list[str]

    @property
    def is_layers(self) -> bool:
        """Whether its axis is the layers."""
        return self.chart.x == "layer" and self.chart.kind != "cost" and is_numeric(self.table.column("layer"))

    def mark(self, row: int) -> str:
        """Return the mark of a row in the table."""
        return (self.table.marks[row] if self.table.marks else None) or ""

    def numbers(self, name: str, rows: Iterable[int]) -> list[float]:
        """Return the numbers of a column in the scale of its axis."""
        column = self.table.column(name)
        return [column.scale * column.values[row] for row in rows]  # type: ignore[operator]

    def ends(self, name: str, rows: Sequence[int], values: Sequence[float], shape: str) -> list[Bounds]:
        """Return the interval of each row, of length 0 for a row without one; empty if no row has one."""
        if not name:
            return []
        column = self.table.column(name, interval=True)
        bounds: list[Bounds | None] = [column.values[row] for row in rows]  # type: ignore[misc]
        if all(bound is None for bound in bounds):
            return []
        self.notes.append(f"{shape}: {f'{column.head} {column.over}'.strip()}.")
        return [
            (column.scale * bound[0], column.scale * bound[1]) if bound else (value, value)
            for bound, value in zip(bounds, values, strict=True)
        ]

    def place(self, row: int) -> float:
        """Return the position of a row on the axis: its number, or the rank of its name."""
        column = self.table.column(self.chart.x)
        value = column.values[row]
        if isinstance(value, (int, float)):
            return column.scale * value
        return list(dict.fromkeys(column.cells)).index(column.cells[row])

    def write(self, note: str, x: float, up: int, *, colour: str = INK, size: int = 12, **about: Any) -> None:
        """Write a note at x, `up` pixels above the lower end of the plot."""
        font, place = {"color": colour, "size": size}, {"y": 0, "yref": "paper"} | about
        self.figure.add_annotation(text=note, x=x, yshift=up, showarrow=False, font=font, **place)

    def points(self, name: str, x: Sequence[float], y: Sequence[float | None], **about: Any) -> None:
        """Draw points or a line, toggled in the legend with others of the same name."""
        about = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name} | about
        self.figure.add_scatter(x=x, y=y, name=text(name), **about)

    def done(self, finding: str, **look: str) -> Figure:
        """Return the figure with its caption."""
        self.figure.update_traces(hovertemplate="%{hovertext}<extra></extra>")
        reading = " ".join(dict.fromkeys(self.notes))
        return Figure(self.chart.name, self.figure, words.typeset_text(finding), reading, **look)


def is_numeric(column: Column) -> bool:
    """Return whether all values of a column are numbers or missing."""
    return all(isinstance(value, (int, float)) for value in column.values if value is not None)


def draw_axes(d: Drawing, curves: Sequence[Curve]) -> None:
    """Set up the axis of layers, costs, names or numbers."""
    column = d.table.column(d.chart.x)
    rows = [row for curve in curves for row in curve.rows]
    axis = d.figure.update_xaxes
    if d.is_layers:
        n = 1 + max((int(column.values[row]) for row in rows), default=0)  # type: ignore[call-overload]
        number_axis(d.figure.layout.xaxis, "Layer (blocks kept)", n)
        return
    axis(title_text=text(column.quantity.title if column.quantity else words.capitalised(column.head)))
    if d.chart.kind == "cost":
        costs = [cost for cost in d.numbers(d.chart.x, rows) if cost > 0] or [1.0]
        low = min(costs)
        times = max(costs) / min(costs)
        ticks = {float(f"{low * times ** (step / 3):.2g}") for step in range(4)}  # few enough for a phone
        axis(type="log", tickformat="~s" if max(costs) >= 1000 else "~g", tickvals=sorted(ticks))
    elif not is_numeric(column):
        names = list(dict.fromkeys(column.cells))
        axis(range=[-0.5, len(names) - 0.5], tickangle=None)
        axis(tickvals=list(range(len(names))), ticktext=[text(name, 14) for name in names])
    elif rows and all(isinstance(column.values[row], int) for row in rows):
        n = max(d.numbers(column.name, rows)) - min(d.numbers(column.name, rows)) + 1
        axis(dtick=tick_step(n) if n <= 100 else None)  # else Plotly's own


def shade_marked(d: Drawing) -> None:
    """Shade the layers that may be the best, and the drop layers."""
    marked = list(zip(d.table.column("layer").values, d.table.marks, strict=False))
    best: list[Any] = [layer for layer, mark in marked if mark in ("chosen", "enough", "candidate")]
    drops: list[Any] = [layer for layer, mark in marked if mark == "drop"]
    if "candidate" in d.table.marks:
        shade(d.figure, best, CANDIDATE)
        d.notes.append(f"Green{' background' if d.chart.kind == 'bars' else ''}: may be the best.")
    if drops:
        shade(d.figure, drops, SHADE)
        what = f"{d.chart.drops.removesuffix(' layers')} {'from' if len(drops) > 1 else 'at'} layer {drops[0]}"
        d.write(what, drops[-1] + 0.5, 0, y=1, xanchor="right", yanchor="bottom", colour=DROP)


def draw_model(d: Drawing, curves: Sequence[Curve], choice: Choice, level: float | None) -> None:
    """Draw the blocks of the model below the plot, kept ones filled, and the cut with its gain."""
    n, last = choice.n_blocks, len(choice.blocks)
    step = tick_step(n + 1)
    deep = step > 1  # numbers have no room inside the blocks
    d.figure.update_xaxes(range=[-0.5, n + 0.5], title_text="", showticklabels=False, showgrid=False, ticks="")
    pixels = {"yref": "paper", "ysizemode": "pixel", "yanchor": 0}
    for block in range(1, n + 1):
        stays = block in choice.blocks
        colour = CHOSEN if stays else FAINT
        ends = {"x0": block - 0.46, "x1": block + 0.46}
        line = {"color": colour, "width": 1, "dash": "solid" if stays else "dot"}
        fill = colour if stays else TRANSPARENT
        d.figure.add_shape(type="rect", y0=-10, y1=-34, fillcolor=fill, line=line, **ends, **pixels)
        if block % step == 0:
            colour = PAPER if stays and not deep else FAINT
            d.write(str(block), block, -42 if deep else -22, colour=colour, yanchor="middle")
    d.write("embeddings", 0.44, -22, size=11, colour=FAINT, xanchor="right", yanchor="middle")
    below = -56 if deep else -40
    is_cut = choice.blocks == tuple(range(1, last + 1)) and last < n
    if is_cut:
        line = {"color": INK, "width": 2.5}
        d.figure.add_shape(type="line", x0=last + 0.5, x1=last + 0.5, y0=-4, y1=-38, line=line, **pixels)
        row = next((row for row in range(len(d.table)) if d.mark(row) == "chosen"), None)
        worth = " · ".join(
            f"{curve.name} {words.typeset(d.table.column(curve.line.column).cells[row])}"
            for curve in curves
            if row in curve.rows and (curve.line.mark or curve.line is d.chart.lines[0])
        )
        side = _side(last, n)
        cut = "<b>cut here?</b>" if choice.is_guess else "<b>cut here</b>"
        d.write(f"{cut}<br>{text(worth)}", last + 0.5, below, xanchor=side, align=side, yanchor="top")
    d.figure.update_layout(margin_b=(84 if is_cut else 46) + 16 * deep + 26 * (len(curves) > 1))
    if choice.candidates:
        first, end = choice.candidates[0], choice.candidates[-1]
        shade(d.figure, choice.candidates, CANDIDATE)
        among = "the best is one of these" if end > first else "the best"
        among += f" ({percentage(level)})" if level else ""
        if end - first + 1 == len(choice.candidates):
            side = _side((first + end) / 2, n)
            at = {"left": first - 0.5, "center": (first + end) / 2, "right": end + 0.5}[side]
            d.write(f"<b>{among}</b>", at, 0, y=1, xanchor=side, yanchor="bottom", colour=CHOSEN)
        else:
            d.notes.append(f"Green background: {among}.")
    d.notes.append("The axis shows the blocks of the model.")


def _side(layer: float, n_blocks: int) -> str:
    """Return the side at which a text at a layer is anchored, so that it stays inside the figure."""
    return "left" if layer < n_blocks / 3 else "right" if layer > 2 * n_blocks / 3 else "center"
