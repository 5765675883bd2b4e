"""Figures of what truncated models cost to serve. Knows Plotly and profiles."""

import functools
from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.profiling.values import Cost, Profiles
from layerprobe.report.charts import bars, cost_points, front_line, line
from layerprobe.results.style import COLOURS, DASHES, SYMBOLS, layer_axis, styled

Scores = Sequence[Mapping[int, LayerOutcome]]
"""What fine-tuning showed, by layer, for each profile."""
Ranged = tuple[float, float, float]
"""A value with the ends of its range."""


def latency(profiles: Profiles) -> go.Figure:
    """Return the milliseconds of a batch of the smallest size by layer, a line for each model and length."""
    _, size = profiles.shape
    figure = _by_layer(profiles, size, _milliseconds)
    what = f"one {profiles.unit}" if size == 1 else f"a batch of {size}"
    return figure.update_yaxes(title_text=f"Latency of {what} (ms)", rangemode="tozero")


def throughput(profiles: Profiles) -> go.Figure:
    """Return the texts or images a second in batches of the largest size by layer, a line for each model and length."""
    size = max(size for _, size in profiles.profiles[0].shapes)
    figure = _by_layer(profiles, size, functools.partial(_a_second, unit=profiles.unit))
    title = f"{profiles.unit.capitalize()}s per second, batches of {size}"
    return figure.update_yaxes(title_text=title, type="log", tickformat="~s", dtick="D2")


def score_for_cost(
    labels: Sequence[str], costs: Sequence[Mapping[int, Ranged]], scores: Scores, *, metric: str, axis: str, unit: str
) -> go.Figure:
    """Return test scores after fine-tuning against a cost by layer, with the Pareto front of all models' layers.

    Costs that have ranges have bars in its place: a line would go through their noise.
    """
    points: list[tuple[float, float]] = []
    traces = []
    for index, (label, cost, scored) in enumerate(zip(labels, costs, scores, strict=True)):
        layers = [layer for layer in cost if layer in scored]
        points += [(cost[layer][0], scored[layer].mean) for layer in layers]
        colour = COLOURS[index % len(COLOURS)]
        marker = {"size": 9, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]}
        outcomes = [scored[layer] for layer in layers]
        if layers:
            trace = cost_points(label, [cost[layer][0] for layer in layers], outcomes, marker, unit=unit)
            traces.append(trace.update(error_x=bars([cost[layer] for layer in layers], colour)))
    exact = all(low == high for cost in costs for _, low, high in cost.values())
    figure = go.Figure([front_line(points), *traces] if exact else traces)
    figure.update_xaxes(title=axis, rangemode="tozero")
    figure.update_yaxes(title=f"Test {metric_title(metric)} × 100")
    return styled(figure)


def _milliseconds(cost: Cost) -> tuple[float, float, float, str]:
    """Return value, lower and upper end, and what is shown where one points at it."""
    value, low, high = (1e3 * seconds for seconds in (cost.seconds, cost.seconds_low, cost.seconds_high))
    return value, low, high, f"{value:.3g} ms<br>5–95 %: {low:.3g} to {high:.3g} ms"


def _a_second(cost: Cost, *, unit: str) -> tuple[float, float, float, str]:
    value = cost.texts_per_second
    return value, value, value, f"{value:,.0f} {unit}s/s<br>{cost.tokens_per_second:,.0f} tokens/s"


def _by_layer(profiles: Profiles, size: int, read: Callable[[Cost], tuple[float, float, float, str]]) -> go.Figure:
    """Return a line for each model and length; the lines of a single model are named by length alone."""
    figure, lengths = go.Figure(), sorted({length for length, _ in profiles.profiles[0].shapes}, reverse=True)
    for index, (profile, label) in enumerate(zip(profiles.profiles, profiles.labels, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        for place, length in enumerate(lengths):
            drawn = [read(layer.cost(length, size)) for layer in profile.layers]
            layers = [layer.layer for layer in profile.layers]
            trace = line(
                [value for value, *_ in drawn],
                name=f"{label}, {length} tokens" if len(profiles.profiles) > 1 else f"{length} tokens",
                colour=colour,
                x=layers,
                dash=DASHES[place % len(DASHES)],
                marker={"size": 7, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]},
                texts=[f"layer {layer}<br>{hover}" for layer, (*_, hover) in zip(layers, drawn, strict=True)],
                error_y=bars([(value, low, high) for value, low, high, _ in drawn], colour),
            )
            figure.add_trace(trace)
    layer_axis(figure, max(profile.model.n_layers for profile in profiles.profiles))
    return styled(figure)
