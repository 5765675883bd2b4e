"""Pieces of figures that more than one page draws. Knows Plotly, not what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.metrics.seeds import SeedScores
from layerprobe.pages import numbers
from layerprobe.pages.style import TRANSPARENT

MANY = 8
"""More seeds than these get smaller dots, more room, and are not written out where one points at a mean."""


def error_bars(found: Iterable[SeedScores], colour: str) -> dict[str, Any]:
    """Return the intervals of the means."""
    return bars([(one.mean, *(one.interval or (one.mean, one.mean))) for one in found], colour)


def bars(bounds: Sequence[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """Return bars from values with their lower and upper ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in bounds],
        "arrayminus": [value - low for value, low, _ in bounds],
        "color": colour,
        "thickness": 1.5,
        "width": 5,
    }


def outcome_text(layer: int, found: SeedScores) -> str:
    """Return what is shown of an outcome that is pointed at."""
    each = f"<br>by seed {numbers.by_seed(found.values)}" if 1 < len(found.values) <= MANY else ""
    return f"layer {layer}: {numbers.mean_and_std(found)}<br>{numbers.interval(found.interval)}{each}"


def area(lower: Sequence[float], upper: Sequence[float], *, name: str, colour: str, **options: Any) -> go.Scatter:
    """Return the ground between two curves: along the upper one and back along the lower one."""
    layers = list(range(len(lower)))
    return go.Scatter(
        x=[*layers, *reversed(layers)],
        y=[*upper, *reversed(lower)],
        name=name,
        mode="lines",
        fill="toself",
        fillcolor=colour,
        line={"color": TRANSPARENT, "width": 0},
        hoverinfo="skip",
        **options,
    )
