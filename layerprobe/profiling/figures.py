"""Figures of what truncated models cost to serve. Knows Plotly and profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import Metric, metric_title
from layerprobe.pages.charts import bars, cost_points, front_line
from layerprobe.pages.style import COLOURS, DASHES, SYMBOLS, layer_axis, styled, text
from layerprobe.profiling.values import Cost, Profile

Scores = Sequence[Mapping[int, LayerOutcome]]
"""What fine-tuning showed, by layer, for each profile."""


def latency(profiles: Sequence[Profile], labels: Sequence[str]) -> go.Figure:
    """Return the milliseconds of a batch of the smallest size by layer, a line for each model and length."""
    labels = _of_several(labels)
    size = smallest_batch(profiles)
    figure = go.Figure(
        [
            _line(profile, labels[index], index, length, [each.cost(length, size) for each in profile.layers])
            for index, profile in enumerate(profiles)
            for length in lengths(profile)
        ]
    )
    layer_axis(figure, _n_layers(profiles))
    what = "one text" if size == 1 else f"a batch of {size}"
    figure.update_yaxes(title=f"Latency of {what} (ms)", rangemode="tozero")
    return styled(figure)


def throughput(profiles: Sequence[Profile], labels: Sequence[str]) -> go.Figure:
    """Return the texts a second in batches of the largest size by layer, a line for each model and length."""
    labels = _of_several(labels)
    size = max(size for _, size in profiles[0].shapes)
    figure = go.Figure()
    for index, profile in enumerate(profiles):
        for length in lengths(profile):
            costs = [each.cost(length, size) for each in profile.layers]
            line = _line(profile, labels[index], index, length, costs)
            line.update(
                y=[cost.texts_per_second for cost in costs],
                error_y=None,
                customdata=[cost.tokens_per_second for cost in costs],
                hovertemplate="layer %{x}<br>%{y:.3~s} texts/s<br>%{customdata:.3~s} tokens/s<extra></extra>",
            )
            figure.add_trace(line)
    layer_axis(figure, _n_layers(profiles))
    figure.update_yaxes(title=f"Texts a second, batches of {size}", type="log", tickformat="~s", dtick="D2")
    return styled(figure)


def score_for_cost(
    labels: Sequence[str], costs: Sequence[Mapping[int, float]], scores: Scores, *, metric: Metric, axis: str, unit: str
) -> go.Figure:
    """Return test scores after fine-tuning against a cost, with the Pareto front of all models' layers.

    Args:
        labels: Of the models.
        costs: By layer, for each model.
        scores: Of the same models.
        metric: That they are of.
        axis: What the cost is.
        unit: Format and unit of a cost where one points at a layer.
    """
    points: list[tuple[float, float]] = []
    traces = []
    for index, (label, cost, scored) in enumerate(zip(labels, costs, scores, strict=True)):
        layers = [layer for layer in cost if layer in scored]
        points += [(cost[layer], scored[layer].mean) for layer in layers]
        marker = {"size": 9, "color": COLOURS[index % len(COLOURS)], "symbol": SYMBOLS[index % len(SYMBOLS)]}
        outcomes = [scored[layer] for layer in layers]
        if layers:
            traces.append(cost_points(label, [cost[layer] for layer in layers], outcomes, marker, unit=unit))
    figure = go.Figure([front_line(points), *traces])
    figure.update_xaxes(title=axis, rangemode="tozero")
    figure.update_yaxes(title=f"Test {metric_title(metric)} × 100")
    return styled(figure)


def smallest_batch(profiles: Sequence[Profile]) -> int:
    """Return the batch size whose time is shown as latency: 1, where that was measured."""
    return min(size for _, size in profiles[0].shapes)


def lengths(profile: Profile) -> list[int]:
    """Return the measured lengths, the longest first."""
    return sorted({length for length, _ in profile.shapes}, reverse=True)


def _of_several(labels: Sequence[str]) -> Sequence[str]:
    """Return what tells models apart: nothing where there is one."""
    return labels if len(labels) > 1 else [""]


def _n_layers(profiles: Sequence[Profile]) -> int:
    return max(profile.model.n_layers for profile in profiles)


def _line(profile: Profile, label: str, index: int, length: int, costs: Sequence[Cost]) -> go.Scatter:
    place = lengths(profile).index(length)
    colour = COLOURS[index % len(COLOURS)]
    return go.Scatter(
        x=[each.layer for each in profile.layers],
        y=[1e3 * cost.seconds for cost in costs],
        name=f"{text(label)}, {length} tokens" if label else f"{length} tokens",
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": DASHES[place % len(DASHES)]},
        marker={"size": 7, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]},
        error_y=bars([(1e3 * c.seconds, 1e3 * c.seconds_low, 1e3 * c.seconds_high) for c in costs], colour),
        hovertext=[f"{1e3 * cost.seconds_low:.3g} to {1e3 * cost.seconds_high:.3g} ms" for cost in costs],
        hovertemplate="layer %{x}<br>%{y:.3~g} ms<br>5–95 %: %{hovertext}<extra></extra>",
    )
