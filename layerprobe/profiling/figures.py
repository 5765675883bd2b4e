"""Figures of what truncated models cost to serve. Knows Plotly and profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.pages.style import CHOSEN, COLOURS, DASHES, INK, SYMBOLS, layer_axis, styled, text
from layerprobe.profiling.values import Cost, LayerProfile, Profile

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


def latency_against_score(
    profiles: Sequence[Profile], labels: Sequence[str], scores: Scores, *, length: int
) -> go.Figure:
    """Return test Spearman after fine-tuning against latency, with the Pareto front of all models' layers."""
    size = smallest_batch(profiles)
    costs = [{each.layer: 1e3 * each.cost(length, size).seconds for each in profile.layers} for profile in profiles]
    figure = _against_score(labels, costs, scores, "%{x:.3~g} ms")
    what = "one text" if size == 1 else f"a batch of {size} texts"
    figure.update_xaxes(title=f"Latency of {what} of {length} tokens (ms)", rangemode="tozero")
    return styled(figure)


def size_against_score(profiles: Sequence[Profile], labels: Sequence[str], scores: Scores) -> go.Figure:
    """Return test Spearman after fine-tuning against parameters, with the Pareto front of all models' layers."""
    costs = [{each.layer: each.parameters / 1e6 for each in profile.layers} for profile in profiles]
    figure = _against_score(labels, costs, scores, "%{x:.4~g} M parameters")
    figure.update_xaxes(title="Parameters (millions)", rangemode="tozero")
    return styled(figure)


def smallest_batch(profiles: Sequence[Profile]) -> int:
    """Return the batch size whose time is shown as latency: 1, where that was measured."""
    return min(size for _, size in profiles[0].shapes)


def lengths(profile: Profile) -> list[int]:
    """Return the measured lengths, the longest first."""
    return sorted({length for length, _ in profile.shapes}, reverse=True)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of cost and score that no other beats, by ascending cost.

    Example:
        >>> front([(3.0, 70.0), (1.0, 60.0), (2.0, 55.0), (4.0, 70.0)])
        [(1.0, 60.0), (3.0, 70.0)]
    """
    best: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((cost, score))
    return best


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
        error_y=_bars(costs, colour),
        hovertext=[f"{1e3 * cost.seconds_low:.3g} to {1e3 * cost.seconds_high:.3g} ms" for cost in costs],
        hovertemplate="layer %{x}<br>%{y:.3~g} ms<br>5–95 %: %{hovertext}<extra></extra>",
    )


def _bars(costs: Sequence[Cost], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [1e3 * (cost.seconds_high - cost.seconds) for cost in costs],
        "arrayminus": [1e3 * (cost.seconds - cost.seconds_low) for cost in costs],
        "color": colour,
        "thickness": 1,
        "width": 3,
    }


def _against_score(labels: Sequence[str], costs: Sequence[Mapping[int, float]], scores: Scores, unit: str) -> go.Figure:
    points: list[tuple[float, float]] = []
    traces = []
    for index, (label, cost, scored) in enumerate(zip(labels, costs, scores, strict=True)):
        layers = [layer for layer in cost if layer in scored]
        points += [(cost[layer], scored[layer].mean) for layer in layers]
        if layers:
            traces.append(
                go.Scatter(
                    x=[cost[layer] for layer in layers],
                    y=[scored[layer].mean for layer in layers],
                    text=[str(layer) for layer in layers],
                    name=text(label),
                    mode="markers+text",
                    textposition="top center",
                    textfont={"color": INK},
                    cliponaxis=False,
                    marker={
                        "size": 9,
                        "color": COLOURS[index % len(COLOURS)],
                        "symbol": SYMBOLS[index % len(SYMBOLS)],
                    },
                    hovertemplate=f"layer %{{text}}<br>test Spearman %{{y:.2f}}<br>{unit}<extra></extra>",
                )
            )
    best = front(points)
    step = go.Scatter(
        x=[cost for cost, _ in best],
        y=[score for _, score in best],
        name="Pareto front",
        mode="lines",
        line={"color": CHOSEN, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    figure = go.Figure([step, *traces])
    figure.update_yaxes(title="Test Spearman × 100")
    return figure


def layers_scored(profile: Profile, scored: Mapping[int, LayerOutcome]) -> list[LayerProfile]:
    """Return the layers that were both profiled and fine-tuned."""
    return [each for each in profile.layers if each.layer in scored]
