"""Layers of several models on one task as a page. Knows scores without fine-tuning, no models."""

from collections.abc import Iterator
from typing import Any, Literal

import plotly.graph_objects as go

from layerprobe.metrics.names import metric_title
from layerprobe.names import plural
from layerprobe.report.charts import front_line, layer_points, line
from layerprobe.report.scores import METHODS
from layerprobe.report.sections.provenance import model_facts
from layerprobe.results import numbers
from layerprobe.results.parts import definitions, facts_table, section, table_of
from layerprobe.results.style import (
    DROP,
    FURTHER,
    INTERVAL,
    MODEL,
    SHADE,
    SYMBOLS,
    TRANSPARENT,
    layer_axis,
    styled,
    text,
)
from layerprobe.results.values import Figure, Page
from layerprobe.scoring.values import LayerOfModel, ScoresOfModels

LOOKS = ((MODEL, INTERVAL, "solid"), (DROP, SHADE, "solid"), *FURTHER)
"""Line, shade and dash by model, in turn."""


def models_page(result: ScoresOfModels) -> Page:
    """Return the page of every layer of several models on one task: bands by depth, score versus cost, the table."""
    names, title = [numbers.label(name) for name in result.labels], metric_title(result.primary)
    highest = (max(result.of_model(i), key=lambda each: each.score) for i in range(len(names)))
    course = "; ".join(f"{result.name(each)}: {numbers.number(each.score)}" for each in highest)
    level = numbers.percent(result.level)
    reading = f"The shade is the {level} interval of each layer by itself, over {plural(result.unit)}."
    tied = ", ".join(result.name(each) for each in result.tied if each != result.best)
    return Page(
        title=f"{numbers.counted(len(names), 'model')} on {result.task}",
        overline=f"layerprobe · models by layers without fine-tuning · {result.task}",
        heading=" · ".join(names),
        lead=(result.sentence,),
        remarks=(f"Statistically tied with the best: {tied or 'no other layer'}.",),
        warnings=result.warnings,
        sections=(
            section(
                "models",
                f"{title} by depth",
                Figure("models", _by_depth(result, names), f"Highest by model: {course}.", reading),
                METHODS[result.method],
            ),
            section("cost", "Score versus cost", *_costs(result, names), kind="pair"),
            section(
                "layers",
                "Table of models and layers",
                f"Layers that share a letter are statistically tied. The letters hold for all pairs of layers at once "
                f"at {level}, with the errors of paired differences over {plural(result.unit)}, so that the best layer "
                "of each model can be compared although it was chosen by the same scores.",
                table_of(result.table),
                kind="dense",
            ),
        ),
        provenance=(
            facts_table("Models", names, [model_facts(model) for model in result.models]),
            definitions(
                {
                    "Task": f"{result.task} ({result.kind}, sha256 {result.task_digest})",
                    numbers.capitalised(plural(result.unit)): f"{result.n_items:,}",
                }
            ),
        ),
        terms=("Layer", "Zero-shot", "Letters", "Pareto front"),
        result=result,
        stem="layerprobe-models",
    )


def _by_depth(result: ScoresOfModels, names: list[str]) -> go.Figure:
    """Return scores by layer; by the share of blocks kept where models are of different depths."""
    figure, depths = go.Figure(), [model.n_blocks for model in result.models]
    relative = len(set(depths)) > 1
    for i, name in enumerate(names):
        layers = result.of_model(i)
        colour, shade, dash = LOOKS[i % len(LOOKS)]
        x = [each.layer / max(depths[i], 1) if relative else each.layer for each in layers]
        low, high = zip(*(each.interval for each in layers), strict=True)
        band = line([*high, *reversed(low)], name=name, colour=TRANSPARENT, x=[*x, *reversed(x)], width=0)
        figure.add_trace(band.update(fill="toself", fillcolor=shade, legendgroup=name, showlegend=False))
        look: dict[str, Any] = {"marker": _marker(i), "width": 2.5, "dash": dash, "legendgroup": name}
        figure.add_trace(
            line([e.score for e in layers], name=name, colour=colour, x=x, texts=_texts(result, i), **look)
        )
    if relative:
        figure.update_xaxes(title="Depth (share of blocks kept)", tickformat=".0%", range=[-0.03, 1.03])
    else:
        layer_axis(figure, depths[0] + 1)
    figure.update_yaxes(title=f"{metric_title(result.primary)} × 100")
    return styled(figure)


def _marker(i: int) -> dict[str, Any]:
    return {"size": 8, "color": LOOKS[i % len(LOOKS)][0], "symbol": SYMBOLS[i % len(SYMBOLS)]}


def _texts(result: ScoresOfModels, i: int) -> list[str]:
    return [
        f"{text(result.labels[i])}<br>layer {each.layer}: {numbers.number(each.score)} "
        f"{numbers.interval(each.interval)}<br>letters {each.letters}"
        for each in result.of_model(i)
    ]


def _costs(result: ScoresOfModels, names: list[str]) -> Iterator[Figure]:
    """Yield scores against parameters, and against milliseconds where they were measured, with what no other beats."""
    shown: tuple[tuple[Literal["parameters", "milliseconds"], str, float, str, str], ...] = (
        ("parameters", "Parameters (millions)", 1e-6, "%{x:.4~g} M parameters", "M parameters"),
        ("milliseconds", "Milliseconds per item, one at a time", 1, "%{x:.3~g} ms", "ms"),
    )
    for cost, axis, scale, hover, unit in shown:
        if not (front := result.front(cost)):
            continue

        def of(each: LayerOfModel, cost: str = cost, scale: float = scale) -> float:
            return scale * float(getattr(each, cost))

        figure = go.Figure([front_line((of(each), each.score) for each in result.layers)])
        for i, name in enumerate(names):
            layers, said = result.of_model(i), _texts(result, i)
            points = [(each.layer, each.score, words) for each, words in zip(layers, said, strict=True)]
            figure.add_trace(layer_points(name, [of(each) for each in layers], points, _marker(i), unit=hover))
        figure.update_xaxes(title=axis, rangemode="tozero").update_yaxes(title=f"{metric_title(result.primary)} × 100")
        listed = ", ".join(
            f"{result.name(each)} ({numbers.significant(of(each))} {unit}, {numbers.number(each.score)})"
            for each in front
        )
        yield Figure(
            f"score-{cost}",
            styled(figure),
            f"Nothing else is both cheaper and better than {listed}.",
            "Labels are layers, the line is the Pareto front.",
        )
