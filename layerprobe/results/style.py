"""Colours, axes and the look that all figures share. Knows Plotly and depths, not what is drawn."""

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

# Blue, vermilion, green and grey differ for every kind of colour vision; shapes repeat what colours say.
INK, FAINT, GRID, PAPER = "#1c2126", "#5b6570", "#e3e5e8", "#ffffff"
MODEL, REFERENCE, DROP, CHOSEN = "#0069a8", "#77808c", "#c44e00", "#00795a"
SHADE, CANDIDATE, TRANSPARENT = "rgba(196,78,0,0.09)", "rgba(0,121,90,0.13)", "rgba(0,0,0,0)"
INTERVAL, BAND = "rgba(0,105,168,0.26)", "rgba(0,105,168,0.12)"
NEGATIVE = "#f6d5bd"
SEQUENTIAL = ("#f5f8fb", "#cadcec", "#8db8d9", "#4189bf", "#0d5a96", "#062f57")
FURTHER = (
    ("#7d3c98", "rgba(125,60,152,0.15)", "dash"),
    ("#7a5c00", "rgba(122,92,0,0.15)", "dashdot"),
    ("#3f6b6b", "rgba(63,107,107,0.15)", "longdash"),
)
"""Line, shade and dash of further references, in turn."""

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
    FURTHER[0][0]: "#c99be0",
    FURTHER[0][1]: "rgba(201,155,224,0.16)",
    FURTHER[1][0]: "#d9bb55",
    FURTHER[1][1]: "rgba(217,187,85,0.16)",
    FURTHER[2][0]: "#8cc3c3",
    FURTHER[2][1]: "rgba(140,195,195,0.16)",
    NEGATIVE: "#5a3420",
    SEQUENTIAL[0]: "#1b2026",
    SEQUENTIAL[1]: "#1d3a54",
    SEQUENTIAL[2]: "#215f8f",
    SEQUENTIAL[3]: "#3c8cc4",
    SEQUENTIAL[4]: "#83bde6",
    SEQUENTIAL[5]: "#dcefff",
}
"""What a dark page draws in place of each colour of the figures."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""By length, the longest first."""


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def text(name: str) -> str:
    """Return a name as Plotly's text, which is HTML of a kind, and which is mathematics between dollar signs."""
    return html.escape(name, quote=False).replace("$", "&#36;")


def tick_step(n: int) -> int:
    """Return the step between labelled numbers of an axis: few enough labels for a phone."""
    return next(step for step in (1, 2, 4, 8, n) if n <= 14 * step)


def layer_axis(figure: go.Figure, n_layers: int) -> None:
    """Make the horizontal axis that of the model's layers."""
    figure.update_xaxes(
        title_text="Layer (blocks kept)", range=[-0.5, n_layers - 0.5], dtick=tick_step(n_layers), tick0=0
    )


def square_axis(axis: Any, title: str, n_layers: int) -> None:
    """Make an axis that of the rows or columns of a map."""
    axis.update(title_text=title, dtick=tick_step(n_layers), tick0=0, showgrid=False, range=[-0.5, n_layers - 0.5])


def shade(figure: go.Figure, layers: Sequence[int], colour: str) -> None:
    """Shade layers, those side by side as one."""
    for first in (layer for layer in layers if layer - 1 not in layers):
        last = next(layer for layer in layers if layer >= first and layer + 1 not in layers)
        figure.add_vrect(x0=first - 0.5, x1=last + 0.5, fillcolor=colour, line_width=0, layer="below")


def styled(figure: go.Figure) -> go.Figure:
    """Return the figure in the colours and type of the report."""
    axis = {
        "gridcolor": GRID,
        "linecolor": FAINT,
        "tickcolor": FAINT,
        "tickfont": {"color": FAINT},
        "tickangle": 0,
        "zeroline": False,
        "automargin": True,
        "title": {"font": {"size": 13}, "standoff": 10},
    }
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        margin={"l": 48, "r": 12, "t": 46, "b": 44},
        hoverlabel={"bgcolor": PAPER, "bordercolor": FAINT, "font": {"color": INK, "family": FONT}, "align": "left"},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "bgcolor": TRANSPARENT,
        },
        modebar={"bgcolor": TRANSPARENT, "color": FAINT, "activecolor": INK},
        uirevision="result",
    )
    return figure
