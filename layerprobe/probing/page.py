"""Frozen layers as a page: the curve with its errors, several layers together, the table. Knows the answer."""

from collections.abc import Sequence

import plotly.graph_objects as go

from layerprobe.metrics.names import metric_title
from layerprobe.names import plural, short_name
from layerprobe.probing.values import ProbedLayer, Probing
from layerprobe.report.charts import bars, floor_line, line
from layerprobe.results import numbers
from layerprobe.results.markup import element
from layerprobe.results.parts import section, table_of
from layerprobe.results.style import CHOSEN, MODEL, REFERENCE, layer_axis, styled
from layerprobe.results.values import Card, Figure, Page


def probing_page(result: Probing) -> Page:
    """Return the page of frozen layers."""
    name, title = numbers.label(short_name(result.name)), metric_title(result.primary)
    best = result.best
    score = _said(best, result.primary)
    sufficient = result.smallest_sufficient
    within = f"within {result.settings.tolerance:g} of the best"
    finding = f"{title} x 100 is highest at layer {best.layer}; diamonds are layers that may be the best."
    if result.on_floor and result.floor is not None:
        finding = f"No layer is above {result.floor.by}."
    figure = Figure("layers", _curve(result), finding, _reading(result))
    return Page(
        title=f"Frozen layers of {name}",
        overline="layerprobe · frozen layers",
        heading=f"{name} on {short_name(result.task)}, frozen",
        lead=(result.sentence,),
        cards={
            "": (
                Card("Best layer", "–" if result.on_floor else str(best.layer), f"{title} {score}"),
                Card(
                    "May be the best",
                    "–" if result.on_floor else numbers.layer_range(result.candidates),
                    f"one statement at {numbers.confidence(result.level)}",
                ),
                Card("Smallest sufficient", "–" if sufficient is None else str(sufficient), within),
            )
        },
        warnings=result.warnings,
        sections=(
            section("layers", "Scores by layer", figure),
            section("numbers", "Frozen layers", table_of(result.table)),
        ),
        provenance=(element("p", result.cost), *(element("p", note) for note in result.notes)),
        terms=("Layer", "Zero-shot"),
        result=result,
        stem="layerprobe-frozen-layers",
    )


def _curve(result: Probing) -> go.Figure:
    layers, title = result.layers, metric_title(result.primary)
    candidates = () if result.on_floor else result.candidates
    marks = [CHOSEN if each.layer in candidates else MODEL for each in layers]
    figure = go.Figure(
        line(
            [each.metrics[result.primary] for each in layers],
            name="single layers",
            colour=MODEL,
            x=[each.layer or 0 for each in layers],
            marker={"size": 9, "color": marks, "symbol": ["diamond" if mark == CHOSEN else "circle" for mark in marks]},
            texts=[f"{each.name}: {_said(each, result.primary)}" for each in layers],
            error_y=bars(_ends(layers, result.primary), MODEL),
        )
    )
    for each, dash in zip(result.together, ("dash", "dot", "dashdot"), strict=False):
        ends = [layers[0].layer or 0, layers[-1].layer or 0]
        value = each.metrics[result.primary]
        said = [f"{each.name}: {_said(each, result.primary)}"] * 2
        figure.add_trace(line([value] * 2, name=each.name, colour=REFERENCE, x=ends, dash=dash, texts=said))
    figure.add_traces(floor_line(result.floor, layers[-1].layer or 0, first=layers[0].layer or 0))
    layer_axis(figure, (layers[-1].layer or 0) + 1)
    figure.update_yaxes(title=f"{numbers.capitalised(title)} × 100")
    return styled(figure)


def _reading(result: Probing) -> str:
    folds = " and foldings" if any(each.error and each.error.seeds_error for each in result.layers) else ""
    over = f"over new {plural(result.unit)}{folds}"
    level = numbers.confidence(result.level)
    return f"Bars are {level} intervals {over}: of the best layer after its choice, of others alone."


def _said(each: ProbedLayer, primary: str) -> str:
    interval = "" if each.error is None else f" {numbers.interval(each.error.interval)}"
    return f"{numbers.number(each.metrics[primary])}{interval}"


def _ends(layers: Sequence[ProbedLayer], primary: str) -> list[tuple[float, float, float]]:
    values = [each.metrics[primary] for each in layers]
    return [
        (value, *((value, value) if each.error is None else each.error.interval))
        for value, each in zip(values, layers, strict=True)
    ]
