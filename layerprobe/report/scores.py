"""Numbers by layer of one model as a page: scores before fine-tuning, retrieval, readings."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from layerprobe.encoders.values import ModelDescription
from layerprobe.kinds.retrieval.values import RetrievalScores
from layerprobe.kinds.summaries.values import SummaryScores
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, distinct_names, listed, short_name
from layerprobe.prediction.sentence import highest_and_last
from layerprobe.readings.reading import Reading
from layerprobe.readings.registry import READINGS, curves_table
from layerprobe.readings.values import DIGITS, LayerCurve
from layerprobe.report.charts import Look, area, floor_line, line
from layerprobe.report.figures.scores import zero_shot_line
from layerprobe.report.sections.provenance import model_facts
from layerprobe.results import numbers
from layerprobe.results.parts import definitions, facts_table, section, table_of
from layerprobe.results.shown import from_layer
from layerprobe.results.style import FAINT, FURTHER, INTERVAL, MODEL, SYMBOLS, layer_axis, styled, text
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page, Part
from layerprobe.scoring.values import AcrossTasks, LayerMean, LayerMeans, LayerScores
from layerprobe.stats.values import Floor

METHODS = {
    "cosine": "By the cosines of embeddings, without any fine-tuning.",
    "probe": "By a linear model on the frozen embeddings, fitted on the train split.",
    "centrality": "By the mean cosine of a sentence with the others of its document: the highest are the summary.",
}

# ---- before fine-tuning ---------------------------------------------------------------------------------


def scores_page(scores: LayerScores, *, model: ModelDescription | None = None, task: str = "") -> Page:
    """Return the page of what every layer scores before fine-tuning, with what is known of where it comes from."""
    name = "Every layer" if model is None else short_name(model.name)
    shown = scores.table if model is None else scores.table.with_columns(model.parameters_column, after="layer")
    course = _course(scores.scores, scores.first_layer)
    title = f"{name}{f' on {task}' if task else ''} before fine-tuning"
    reading = METHODS[scores.method]
    if scores.compared is not None:
        reading += f" Bars are {numbers.confidence(scores.compared.level)} intervals over new items."
    own = zero_shot_line(metric_title(scores.primary), scores, Look(colour=MODEL), width=2.5)
    figure = go.Figure([own, *floor_line(scores.floor, len(scores.scores) - 1)])
    layer_axis(figure, len(scores.scores))
    figure.update_yaxes(title=f"{numbers.capitalised(metric_title(scores.primary))} × 100")
    return Page(
        title=title,
        overline=" · ".join(("layerprobe", "scores before fine-tuning", *filter(None, [task]))),
        heading=title,
        lead=(scores.sentence,),
        sections=(
            section("scores", "Scores by layer", Figure("scores", styled(figure), course, reading)),
            section("layers", "Table of layers", table_of(shown)),
        ),
        provenance=_model(model),
        terms=("Layer", "Zero-shot"),
        warnings=scores.warnings,
        result=scores,
        data_label="Scores",
        numbers=shown,
        stem="layerprobe-scores",
    )


def _course(scores: Sequence[float], first: int = 0) -> str:
    """Return where scores by layer begin, are highest and lowest, and end."""
    last, layers = len(scores) - 1, range(first, len(scores))
    named = {
        first: "first",
        max(layers, key=scores.__getitem__): "highest",
        min(layers, key=scores.__getitem__): "lowest",
    }
    named[last] = named.get(last, "last")
    said = (f"{numbers.number(scores[layer])} at layer {layer} ({named[layer]})" for layer in sorted(named))
    return f"By layer: {', '.join(said)}."


def _model(model: ModelDescription | None) -> tuple[Part, ...]:
    return () if model is None else (facts_table("Model", ("Model",), [model_facts(model)]),)


# ---- means of layers ------------------------------------------------------------------------------------


def layer_means_page(result: LayerMeans) -> Page:
    """Return the page of means of two layers as embeddings."""
    name, title = short_name(result.model.name), metric_title(result.primary)
    layers = range(result.first_layer, result.first_layer + len(result.by_layer))
    figure = go.Figure(
        go.Heatmap(
            z=_square(result, result.best),
            x=[str(layer) for layer in layers],
            y=[str(layer) for layer in layers],
            colorbar={"title": {"text": f"Validation {title} × 100"}},
            hovertemplate="layers %{x} and %{y}: %{z:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="Layer", type="category").update_yaxes(title="Layer", type="category")
    finding = f"On the validation split {result.best.name} score highest."
    return Page(
        title=f"{name} on {result.task}: means of layers",
        overline=f"layerprobe · means of layers without fine-tuning · {result.task}",
        heading=name,
        lead=(result.sentence,),
        sections=(
            section(
                "pairs",
                "Every two layers",
                Figure("pairs", styled(figure), finding, "Single layers are on the diagonal."),
                METHODS[result.method],
            ),
            section("means", "The best two layers", table_of(result.table)),
        ),
        provenance=_model(result.model),
        terms=("Layer", "Zero-shot"),
        result=result,
        data_label="Means of layers",
        stem="layerprobe-layer-means",
    )


def _square(result: LayerMeans, mean: LayerMean) -> list[list[float]]:
    """Return the validation scores of every two layers as a map, with single layers on its diagonal."""
    scores = dict(zip(result.pairs, mean.by_pair, strict=True))
    layers = range(result.first_layer, result.first_layer + len(result.by_layer))
    return [
        [result.by_layer[a - result.first_layer] if a == b else scores[min(a, b), max(a, b)] for b in layers]
        for a in layers
    ]


# ---- summaries ------------------------------------------------------------------------------------------


def summaries_page(result: SummaryScores) -> Page:
    """Return the page of extractive summaries by layer."""
    name, title = short_name(result.model.name), metric_title(result.primary)
    figure = go.Figure()
    for (colour, _, dash), method in zip([(MODEL, INTERVAL, "solid"), *FURTHER], result.methods, strict=False):
        scores = from_layer(result.first_layer, method.test[result.primary])
        texts = [f"{method.name}<br>layer {i}: {numbers.number(score)}" for i, score in enumerate(scores)]
        marker = {"size": 8, "color": colour}
        figure.add_trace(line(scores, name=method.name, colour=colour, dash=dash, marker=marker, texts=texts))
    for label, scored, dash in (("first sentences", result.lead, "dash"), ("oracle", result.oracle, "dot")):
        value = scored[result.primary]
        texts = [f"{label}: {numbers.number(value)}"] * result.model.n_layers
        figure.add_trace(line([value] * result.model.n_layers, name=label, colour=FAINT, dash=dash, texts=texts))
    layer_axis(figure, result.model.n_layers)
    figure.update_yaxes(title=f"Test {title} × 100")
    return Page(
        title=f"{name} on {result.task}: summaries",
        overline=f"layerprobe · extractive summaries without fine-tuning · {result.task}",
        heading=name,
        lead=(result.sentence,),
        sections=(
            section(
                "summaries",
                f"{title} by layer",
                Figure(
                    "summaries",
                    styled(figure),
                    f"The first sentences score {numbers.number(result.lead[result.primary])}, the oracle "
                    f"{numbers.number(result.oracle[result.primary])}.",
                    "The oracle chooses with the summary known.",
                ),
                table_of(result.baselines),
            ),
            section("layers", "Table of layers", table_of(result.table), kind="dense"),
        ),
        provenance=(
            *_model(result.model),
            definitions({"Documents": f"{result.documents:,}", "Sentences chosen of each": str(result.keep)}),
        ),
        terms=("Layer", "ROUGE", "Oracle summary"),
        result=result,
        data_label="Summaries",
        stem="layerprobe-summaries",
    )


# ---- several tasks --------------------------------------------------------------------------------------


def across_page(result: AcrossTasks) -> Page:
    """Return the page of what every layer scores on several tasks."""
    name, tasks = short_name(result.model.name), distinct_names([each.task for each in result.tasks])
    return Page(
        title=f"{name} on {counted(len(tasks), 'task')}",
        overline=f"layerprobe · {counted(len(tasks), 'task')} without fine-tuning",
        heading=name,
        lead=(result.sentence,),
        sections=(
            section(
                "across",
                "Scores by layer",
                Figure(
                    "across",
                    _across_figure(result, tasks),
                    f"Mean over tasks. {_course([each.mean for each in result.layers], result.first_layer)}",
                    "The thick line is the mean over tasks, with equal weights.",
                ),
            ),
            section("layers", "Table of layers", table_of(result.table), kind="dense"),
        ),
        provenance=(
            *_model(result.model),
            definitions({each.task: f"sha256 {each.task_digest}" for each in result.tasks}),
        ),
        terms=("Layer", "Zero-shot"),
        warnings=result.warnings,
        result=result,
        stem="layerprobe-across",
    )


def _across_figure(result: AcrossTasks, tasks: Sequence[str]) -> go.Figure:
    figure, layers = go.Figure(), range(result.model.n_layers)
    for index, (name, task) in enumerate(zip(map(numbers.label, tasks), result.tasks, strict=True)):
        colour, _, dash = FURTHER[index % len(FURTHER)]
        scores, title = task.scores.scores, metric_title(task.scores.primary)
        texts = [f"{text(name)}<br>layer {layer}: {title} {numbers.number(scores[layer])}" for layer in layers]
        own = from_layer(task.scores.first_layer, scores)
        figure.add_trace(line(own, name=name, colour=colour, dash=dash, width=1.5, texts=texts))
    means = [each.mean for each in result.layers]
    texts = [f"mean over tasks<br>layer {layer}: {numbers.number(means[layer])}" for layer in layers]
    marker = {"size": 8, "color": MODEL}
    own = from_layer(result.first_layer, means)
    figure.add_trace(line(own, name="mean over tasks", colour=MODEL, width=3, marker=marker, texts=texts))
    floors = [task.scores.floor for task in result.tasks if task.scores.floor is not None]
    if len(floors) == len(result.tasks):
        mean = Floor(value=fmean(floor.value for floor in floors), by="trivial answers, mean over tasks")
        figure.add_traces(floor_line(mean, len(layers) - 1))
    layer_axis(figure, len(layers))
    figure.update_yaxes(title="Score × 100")
    return styled(figure)


# ---- retrieval ------------------------------------------------------------------------------------------


def retrieval_page(*scores: RetrievalScores) -> Page:
    """Return the page of how well each layer of some models finds documents."""
    first, labels = scores[0], numbers.labels(distinct_names([each.model.name for each in scores]))
    title = metric_title(first.primary)
    several = len(scores) > 1
    named = [(f"{label}: " if several else "", each) for label, each in zip(labels, scores, strict=True)]
    lead = tuple(f"{name}{each.sentence}" for name, each in named)
    course = " ".join(f"{name}{_course(each.scores, each.first_layer)}" for name, each in named)
    level = numbers.confidence(first.means[first.primary][0].level)
    reading = f"The shade is the {level} interval of each layer, over queries."
    shown = stacked([each.table for each in scores], by=("model",))
    facts = {
        "Task": f"{first.task} (sha256 {first.task_digest})",
        "Queries": f"{len(first.query_ids):,}",
        "Documents": f"{first.n_documents:,}",
        "Ranked by": "cosine" if first.ranking == "cosine" else "inner product",
        "Settings": ", ".join(f"{name} {value}" for name, value in first.settings.items()) or None,
    }
    return Page(
        title=f"Retrieval with {' and '.join(labels)}",
        overline=f"layerprobe · retrieval · {first.task}",
        heading=" and ".join(labels),
        lead=lead,
        warnings=tuple(warning for each in scores for warning in each.warnings),
        sections=(
            section(
                "retrieval",
                f"{title} by layer",
                Figure("retrieval", _retrieval_figure(scores, labels), course, reading),
            ),
            section("layers", "Table of layers", table_of(shown), kind="dense"),
        ),
        provenance=(
            facts_table("Models", labels if several else ("Model",), [model_facts(each.model) for each in scores]),
            definitions(facts),
        ),
        terms=("Layer",),
        result=first if not several else scores,
        numbers=shown,
        stem="layerprobe-retrieval",
    )


def _retrieval_figure(scores: Sequence[RetrievalScores], labels: Sequence[str]) -> go.Figure:
    looks = [(MODEL, INTERVAL, "solid"), *FURTHER]
    figure = go.Figure()
    for index, (label, each) in enumerate(zip(labels, scores, strict=True)):
        colour, shade, dash = looks[index % len(looks)]
        means, title = each.means[each.primary], metric_title(each.primary)
        bounds = [mean.lower for mean in means], [mean.upper for mean in means]
        first: dict[str, Any] = {"first": each.first_layer, "legendgroup": label, "showlegend": False}
        figure.add_trace(area(*bounds, name=label, colour=shade, **first))
        texts = [
            f"{text(label)}<br>layer {layer}: {title} {numbers.number(mean.value)}"
            f"<br>{numbers.interval((mean.lower, mean.upper))}"
            for layer, mean in enumerate(means)
        ]
        marker = {"size": 8, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]}
        look: dict[str, Any] = {"colour": colour, "dash": dash, "marker": marker, "width": 2.5, "legendgroup": label}
        own = from_layer(each.first_layer, each.scores)
        figure.add_trace(line(own, name=label, texts=texts, showlegend=True, **look))
    n_layers, compared = max(each.model.n_layers for each in scores), scores[0].compared
    figure.add_traces(floor_line(None if compared is None else compared.floor, n_layers - 1))
    layer_axis(figure, n_layers)
    figure.update_yaxes(title=f"{metric_title(scores[0].primary)} × 100")
    return styled(figure)


# ---- readings -------------------------------------------------------------------------------------------


def curve_page(curve: LayerCurve) -> Page:
    """Return the page of a number by layer that does not say what it is."""
    return readings_page({"value": curve})


def readings_page(curves: Mapping[str, LayerCurve], *, model: str = "") -> Page:
    """Return the page of numbers by layer of one model, by name."""
    name, shown = short_name(model) if model else "Numbers by layer", curves_table(curves)
    known = {reading: READINGS[reading] for reading in curves if reading in READINGS}
    levels = {numbers.confidence(each.uncertainty.level) for each in curves.values() if each.uncertainty is not None}
    note = f"Where a line is shaded, the shade is the {listed(sorted(levels), 'and')} interval." if levels else ""
    return Page(
        title=f"{name}: numbers by layer",
        overline="layerprobe · readings",
        heading=name,
        lead=(_promised(curves, known),),
        remarks=("Nothing here is fine-tuned: only fine-tuning confirms what a number suggests.",) if known else (),
        sections=(
            section(
                "readings",
                "By layer",
                note or None,
                *(_reading_figure(number, *each) for number, each in enumerate(curves.items())),
                kind="pair" if len(curves) > 1 else None,
            ),
            section("layers", "Table of layers", table_of(shown), kind="dense"),
        ),
        terms=("Layer",),
        result=dict(curves),
        numbers=shown,
        stem="layerprobe-readings",
    )


def _promised(curves: Mapping[str, LayerCurve], known: Mapping[str, Reading]) -> str:
    """Return which layer each number of a known direction promises most of."""
    by_layer: dict[int, list[str]] = {}
    for name, reading in known.items():
        if reading.direction is not None:
            values = [reading.direction * value for value in curves[name].values]
            first = _first_layer(name, curves[name])
            by_layer.setdefault(max(range(first, len(values)), key=values.__getitem__), []).append(name)
    if not by_layer:
        said = (highest_and_last({name: each.values}, first=each.first_layer) for name, each in curves.items())
        return f"{numbers.capitalised('; '.join(said))}."
    said = (f"layer {layer} by {listed(by_layer[layer], 'and')}" for layer in sorted(by_layer))
    return f"Most promising: {', '.join(said)}."


def _first_layer(name: str, curve: LayerCurve) -> int:
    """Return the first layer that has a value of its own."""
    return max(READINGS[name].first if name in READINGS else 0, curve.first_layer)


def _reading_figure(number: int, name: str, curve: LayerCurve) -> Figure:
    errors, first = curve.uncertainty, _first_layer(name, curve)
    values = curve.values[first:]
    texts = [f"layer {layer}<br>{text(name)} {value:{DIGITS}}" for layer, value in enumerate(values, start=first)]
    traces = (
        []
        if errors is None
        else [area(errors.lower, errors.upper, name="interval", colour=INTERVAL, first=first, showlegend=False)]
    )
    own: dict[str, Any] = {"marker": {"size": 7, "color": MODEL}, "texts": texts, "showlegend": False}
    traces.append(line(values, name=name, colour=MODEL, x=range(first, len(curve.values)), **own))
    figure = go.Figure(traces)
    layer_axis(figure, len(curve.values))
    unit = READINGS[name].unit if name in READINGS else ""
    figure.update_yaxes(title=text(f"{numbers.capitalised(name)}{f', {unit}' if unit else ''}"))
    finding = numbers.capitalised(highest_and_last({name: curve.values}, first=first))
    return Figure(f"reading-{number}", styled(figure), f"{finding}.")
