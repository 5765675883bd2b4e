"""Colours, axes and style of all figures. Knows Plotly and layers, no chart."""

import html
import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

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
