"""Figures of sweeps. Knows Plotly and curves over layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.style import COLOURS, DASHES, SYMBOLS, layer_axis, styled, text
from layerprobe.sweeps.values import SweepCurve

OFFSET, WIDTH = 0.12, 0.2
"""Where the dots of seeds begin beside the mean, and how far they go."""


def sweep_curves(curves: Sequence[SweepCurve], labels: Sequence[str]) -> go.Figure:
    """Return test scores by layer on one task: a line of means for each model, and every seed as a dot.

    Args:
        curves: Of one task, a model each.
        labels: Of the models.
    """
    figure = go.Figure()
    for index, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        figure.add_traces([_seeds(curve, label, index), _means(curve, label, index)])
    layers = {found.layer for curve in curves for found in curve.outcomes}
    layers |= {failed.layer for curve in curves for failed in curve.failed}
    layer_axis(figure, max(layers, default=0) + 1)
    figure.update_yaxes(title=f"Test {metric_title(curves[0].primary)} × 100")
    return styled(figure)


def _seeds(curve: SweepCurve, label: str, index: int) -> go.Scatter:
    dots = [point for outcome in curve.outcomes for point in _dots(outcome)]
    return go.Scatter(
        x=[x for x, _, _, _ in dots],
        y=[score for _, score, _, _ in dots],
        customdata=[[layer, seed] for _, _, layer, seed in dots],
        name=f"{text(label)}, seeds",
        mode="markers",
        legendgroup=str(index),
        showlegend=False,
        marker={"size": 5, "color": COLOURS[index % len(COLOURS)], "opacity": 0.5},
        hovertemplate="layer %{customdata[0]}, seed %{customdata[1]}<br>%{y:.2f}<extra></extra>",
    )


def _dots(outcome: LayerOutcome) -> list[tuple[float, float, int, int]]:
    """Return x, score, layer and seed of every run."""
    step = WIDTH / max(len(outcome.seeds) - 1, 1)
    pairs = enumerate(zip(outcome.scores, outcome.seeds, strict=True))
    return [(outcome.layer + OFFSET + i * step, score, outcome.layer, seed) for i, (score, seed) in pairs]


def _means(curve: SweepCurve, label: str, index: int) -> go.Scatter:
    colour = COLOURS[index % len(COLOURS)]
    return go.Scatter(
        x=[outcome.layer for outcome in curve.outcomes],
        y=[outcome.mean for outcome in curve.outcomes],
        hovertext=[
            f"{numbers.number(outcome.mean)}<br>{numbers.interval(outcome.interval)}" for outcome in curve.outcomes
        ],
        name=text(label),
        mode="lines+markers",
        legendgroup=str(index),
        showlegend=True,
        line={"color": colour, "width": 1.5, "dash": DASHES[index // len(COLOURS) % len(DASHES)]},
        marker={"size": 8, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]},
        error_y=_bars(curve.outcomes, colour),
        hovertemplate="layer %{x}: %{hovertext}<extra></extra>",
    )


def _bars(outcomes: Sequence[LayerOutcome], colour: str) -> dict[str, Any]:
    ends = [outcome.interval or (outcome.mean, outcome.mean) for outcome in outcomes]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - outcome.mean for outcome, (_, high) in zip(outcomes, ends, strict=True)],
        "arrayminus": [outcome.mean - low for outcome, (low, _) in zip(outcomes, ends, strict=True)],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
    }
