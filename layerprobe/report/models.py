"""Layers of several models on one task as a page, without fine-tuning or found by one search. Knows no models."""

from collections.abc import Iterator
from typing import Any, Literal

import plotly.graph_objects as go

from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, plural
from layerprobe.report.charts import bars, floor_line, front_line, layer_points, line
from layerprobe.report.scores import METHODS
from layerprobe.report.sections.provenance import model_facts
from layerprobe.results import numbers
from layerprobe.results.parts import definitions, facts_table, folded, section, table_of
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
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page
from layerprobe.scoring.values import ScoresOfModels
from layerprobe.study.models import FoundModels
from layerprobe.study.sentence import grounds_of_models
from layerprobe.study.tables import runs_table

LOOKS = ((MODEL, INTERVAL, "solid"), (DROP, SHADE, "solid"), *FURTHER)
"""Line, shade and dash by model, in turn."""


def models_page(result: ScoresOfModels) -> Page:
    """Return the page of every layer of several models on one task: bands by depth, score versus cost, the table."""
    names, title, items = (
        numbers.labels(result.labels),
        metric_title(result.primary),
        plural(result.unit),
    )
    course = "; ".join(f"{result.name(each)}: {numbers.number(each.score)}" for each in result.best_of_each)
    level = numbers.confidence(result.level)
    shade = f"The shade is the {level} interval of each layer by itself, over {items}."
    reading = (
        f"At most behind: points that the best is ahead at most, all layers at once at {level}, by paired differences "
        f"over {items}."
    )
    if any(each.letters for each in result.layers):
        reading += f" Layers that share a letter do not differ significantly, all pairs at once at {level}."
    return Page(
        title=f"{counted(len(names), 'model')} on {result.task}",
        overline=f"layerprobe · models by layers without fine-tuning · {result.task}",
        heading=" · ".join(names),
        lead=(result.sentence,),
        warnings=result.warnings,
        sections=(
            section(
                "models",
                f"{title} by depth",
                Figure("models", _by_depth(result, names), f"Highest by model: {course}.", shade),
                METHODS[result.method],
            ),
            section("cost", "Score versus cost", *_costs(result, names), kind="pair"),
            section("layers", "Table of models and layers", reading, table_of(result.table), kind="dense"),
        ),
        provenance=(
            facts_table("Models", names, [model_facts(model) for model in result.models]),
            definitions({"Task": f"{result.task} ({result.kind}, sha256 {result.task_digest})"}),
        ),
        terms=("Layer", "Zero-shot", *(("Letters",) if result.layers[0].letters else ()), "Pareto front"),
        result=result,
        stem="layerprobe-models",
    )


def found_models_page(found: FoundModels) -> Page:
    """Return the page of which layer of which model to keep: bands by depth, score versus size, the table, all runs."""
    names, level = numbers.labels(found.labels), numbers.confidence(found.settings.level)
    best = "; ".join(
        f"{name}: layer {each.best_layer}, {numbers.number(each.answer.layers[each.best_layer].mean)}"
        for name, each in zip(names, found.findings, strict=True)
    )
    shade = f"The shade is the {level} interval of each layer by itself, over new items and seeds."
    shade = shade if _claimed(found) else ""
    runs = zip(found.labels, map(runs_table, found.findings), strict=True)
    made = stacked([each.named(model=name) for name, each in runs], by=("part",))
    return Page(
        title=f"{counted(len(names), 'model')} on {found.task}: the layer to keep",
        overline=f"layerprobe · the layer to keep of several models · {found.task}",
        heading=" · ".join(names),
        lead=(found.sentence,),
        remarks=grounds_of_models(found)[:-1],
        warnings=found.failures,
        sections=(
            section(
                "models",
                "Which layer of which model",
                Figure("models", _by_depth(found, names), f"Highest expected score by model: {best}.", shade),
                folded("All runs, in order by model", table_of(made)),
            ),
            section("cost", "Expected score versus size", *_costs(found, names)),
            section("layers", "Table of models and layers", table_of(found.table), kind="dense"),
        ),
        terms=("Layer", "TMFT", "Expected score", "May be the best", "Tolerance", "Block-step", "Pareto front"),
        result=found,
        stem="layerprobe-finding-of-models",
    )


def _by_depth(result: ScoresOfModels | FoundModels, names: list[str]) -> go.Figure:
    """Return scores by layer; by the share of blocks kept where models are of different depths."""
    figure, depths = go.Figure(), [max(result.of_model(i)[-1].layer, 1) for i in range(len(result.labels))]
    relative = len(set(depths)) > 1
    for i, name in enumerate(names):
        layers, (colour, shade, dash) = result.of_model(i), LOOKS[i % len(LOOKS)]
        x = [each.layer / (depths[i] if relative else 1) for each in layers]
        look: dict[str, Any] = {"marker": _marker(i), "width": 2.5, "dash": dash, "texts": _texts(result, i)}
        if _claimed(result):
            low, high = zip(*(each.interval for each in layers), strict=True)
            band = line([*high, *reversed(low)], name=name, colour=TRANSPARENT, x=[*x, *reversed(x)], width=0)
            figure.add_trace(band.update(fill="toself", fillcolor=shade, showlegend=False))
        figure.add_trace(line([each.score for each in layers], name=name, colour=colour, x=x, **look))
    if isinstance(result, ScoresOfModels) and result.compared is not None:
        figure.add_traces(floor_line(result.compared.floor, 1 if relative else depths[0]))
    layer_axis(figure, depths[0] + 1)
    if relative:
        axis: dict[str, Any] = {"tickformat": ".0%", "range": [-0.03, 1.03], "dtick": 0.25}
        figure.update_xaxes(title="Depth (share of blocks kept)", **axis)
    figure.update_yaxes(title=_score_axis(result))
    return styled(figure)


def _score_axis(result: ScoresOfModels | FoundModels) -> str:
    where = "<br>on validation" if isinstance(result, FoundModels) else ""
    return f"{metric_title(result.primary)} × 100{where}"


def _claimed(result: ScoresOfModels | FoundModels) -> bool:
    """Return whether anything is claimed: not of spoilt scores."""
    return isinstance(result, ScoresOfModels) or not result.best.answer.spoilt


def _marker(i: int) -> dict[str, Any]:
    return {"size": 8, "color": LOOKS[i % len(LOOKS)][0], "symbol": SYMBOLS[i % len(SYMBOLS)]}


def _texts(result: ScoresOfModels | FoundModels, i: int) -> list[str]:
    claimed = _claimed(result)
    return [
        f"{text(result.labels[i])}<br>layer {each.layer}: {numbers.number(each.score)}"
        f"{f' {numbers.interval(each.interval)}' if claimed else ''}{each.letters and f'<br>letters {each.letters}'}"
        for each in result.of_model(i)
    ]


def _costs(result: ScoresOfModels | FoundModels, names: list[str]) -> Iterator[Figure]:
    """Yield scores against parameters, and against milliseconds where they were measured, with what no other beats."""
    costs: tuple[tuple[Literal["parameters", "milliseconds"], str, float, str], ...] = (
        ("parameters", "Parameters (millions)", 1e-6, "M parameters"),
        ("milliseconds", "Milliseconds for one item", 1, "ms"),
    )
    for name, axis, scale, unit in costs:
        cost = {each: scale * (getattr(each, name) or 0) for each in result.layers}
        if not (front := result.front(name)):
            continue
        timed = name == "milliseconds"
        figure = go.Figure([] if timed else [front_line((cost[each], each.score) for each in result.layers)])
        for i, label in enumerate(names):
            own, said = result.of_model(i), _texts(result, i)
            points = [(each.layer, each.score, words) for each, words in zip(own, said, strict=True)]
            figure.add_trace(
                layer_points(label, [cost[e] for e in own], points, _marker(i), unit=f"%{{x:.3~g}} {unit}")
            )
            if timed:
                ends = [(cost[e], *(e.milliseconds_range or (cost[e],) * 2)) for e in own]
                figure.data[-1].update(error_x=bars(ends, LOOKS[i % len(LOOKS)][0]))
        figure.update_xaxes(title=axis, rangemode="tozero").update_yaxes(title=_score_axis(result))
        best = (f"{result.name(each)} ({numbers.significant(cost[each])} {unit})" for each in front)
        finding = f"Nothing else is {'shown to be ' * timed}both cheaper and better than {', '.join(best)}."
        reading = "bars the range of times over rounds; times whose ranges overlap count as equal"
        reading = f"Labels are layers, {reading if timed else 'the line is the Pareto front'}."
        yield Figure(f"score-{name}", styled(figure), finding, reading)
