"""Figures of chains: scores of the last step, and CKA before and after. Knows Plotly and chains."""

import itertools
from collections.abc import Sequence

import plotly.graph_objects as go

from layerprobe.lab.chains.values import ChainCurve, ChainResult, ChainSimilarities, ChainSimilarity
from layerprobe.metrics.names import metric_title
from layerprobe.report.charts import Look, area, bars, compared_outcomes, line
from layerprobe.results import numbers
from layerprobe.results.style import CHOSEN, DROP, FURTHER, MODEL, REFERENCE, layer_axis, styled, text

_LOOKS = (
    Look(colour=MODEL),
    Look(colour=REFERENCE, symbol="square", dash="dash"),
    Look(colour=DROP, symbol="diamond", dash="dot"),
    *(Look(colour=colour, symbol="x", dash=dash) for colour, _, dash in FURTHER),
)
"""The chain, the last step alone, controls in turn."""


def chain_scores(result: ChainResult) -> go.Figure:
    """Return test scores of the last step by layer: after the chain, without it, and from random weights."""
    lines = {"the whole chain": result.outcomes}
    if result.direct:
        lines["the last step alone"] = result.direct
    lines |= {f"random weights {control.random_init}": control.outcomes[-1] for control in result.controls}
    drawn = [(name, outcomes, look) for (name, outcomes), look in zip(lines.items(), itertools.cycle(_LOOKS))]
    return compared_outcomes(drawn, metric=metric_title(result.primary), n_layers=result.n_blocks + 1)


def cka_with_start(similarities: ChainSimilarities, n_blocks: int) -> go.Figure:
    """Return the similarity of each layer after a training with the same layer before."""
    figure = go.Figure(_trained([(step, step.to_start) for step in similarities.trained]))
    return _similarity_axes(figure, n_blocks, "CKA with the layer before")


def cka_with_reference(similarities: ChainSimilarities, n_blocks: int, reference: str) -> go.Figure:
    """Return the similarity of each layer with the reference, before and after."""
    before = similarities.start_to_reference
    traces = [] if before is None else _shaded("before", before, REFERENCE, "rgba(119,128,140,0.2)", "dash")
    after = [(step, step.to_reference) for step in similarities.trained if step.to_reference is not None]
    figure = go.Figure([*traces, *_trained(after)])
    return _similarity_axes(figure, n_blocks, f"CKA with {text(reference)}")


def _similarity_axes(figure: go.Figure, n_blocks: int, title: str) -> go.Figure:
    layer_axis(figure, n_blocks + 1)
    lowest = min(min(trace.y) for trace in figure.data)
    figure.update_yaxes(title=title, range=[min(0.0, lowest) - 0.03, 1.03])
    return styled(figure)


def _trained(curves: Sequence[tuple[ChainSimilarity, ChainCurve]]) -> list[go.Scatter]:
    """Return adaptations as shaded curves, fine-tuned models as thin ones that end in a point with its interval."""
    traces: list[go.Scatter] = []
    whole = [(step, curve) for step, curve in curves if step.layer is None]
    for index, (_, curve) in enumerate(whole):
        colour, shade, dash = (CHOSEN, "rgba(0,121,90,0.18)", "dot") if index == 0 else FURTHER[index % len(FURTHER)]
        name = "after the adaptation" if len(whole) == 1 else f"after adaptation {index + 1}"
        traces += _shaded(name, curve, colour, shade, dash)
    cut = [(step, curve) for step, curve in curves if step.layer is not None]
    for trained, curve in cut:
        thin = _line(f"kept to layer {trained.layer}", curve, MODEL, "solid", width=1.2)
        traces.append(thin.update(mode="lines", legendgroup="cut", showlegend=False, opacity=0.45))
    if cut:
        last = [len(curve.values) - 1 for _, curve in cut]
        bounds = [(curve.values[-1], *ends) for _, curve in cut if (ends := curve.interval(-1))]
        points = line(
            [curve.values[-1] for _, curve in cut],
            name="after the whole chain",
            colour=MODEL,
            x=last,
            marker={"size": 9, "color": MODEL},
            texts=[
                f"the last layer kept<br>{_said(curve, layer)}" for layer, (_, curve) in zip(last, cut, strict=True)
            ],
            legendgroup="cut",
            error_y=bars(bounds, MODEL) if len(bounds) == len(cut) else None,
        )
        traces.append(points.update(mode="markers"))
    return traces


def _shaded(name: str, curve: ChainCurve, colour: str, shade: str, dash: str) -> list[go.Scatter]:
    drawn = _line(name, curve, colour, dash).update(legendgroup=name)
    if curve.lower is None or curve.upper is None:
        return [drawn]
    return [area(curve.lower, curve.upper, name=name, colour=shade, legendgroup=name, showlegend=False), drawn]


def _line(name: str, curve: ChainCurve, colour: str, dash: str, *, width: float = 2.0) -> go.Scatter:
    texts = [f"{text(name)}<br>{_said(curve, layer)}" for layer in range(len(curve.values))]
    marker = {"size": 6, "color": colour}
    return line(curve.values, name=name, colour=colour, width=width, dash=dash, marker=marker, texts=texts)


def _said(curve: ChainCurve, layer: int) -> str:
    bounds = curve.interval(layer)
    ends = f"<br>{numbers.interval(bounds, 3)}" if bounds else ""
    other = curve.other_layers[layer]
    where = f"layer {layer}" if other == layer else f"layer {layer}, other layer {other}"
    return f"{where}: {numbers.number(curve.values[layer], 3)}{ends}"
