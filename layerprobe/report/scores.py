"""Pages of numbers by layer before fine-tuning: scores, summaries, retrieval, readings, several tasks and models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from layerprobe.encoders.model import ModelDescription
from layerprobe.kinds.retrieval.values import RetrievalScores
from layerprobe.kinds.summaries.values import SummaryScores
from layerprobe.metrics.names import points
from layerprobe.names import counted, distinct_names, listed, plural
from layerprobe.readings.reading import Reading
from layerprobe.readings.registry import READINGS, course, curves_table
from layerprobe.readings.values import LayerCurve
from layerprobe.report.facts import about, layer_facts, models, size_facts
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.shown import clauses
from layerprobe.results.style import styled
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page
from layerprobe.scoring.values import AcrossTasks, LayerMean, LayerMeans, LayerScores, ScoresOfModels
from layerprobe.study.models import FoundModels
from layerprobe.study.tables import runs_table

METHODS = {
    "cosine": "By the cosines of embeddings, without any fine-tuning.",
    "probe": "By a linear model on the frozen embeddings, fitted on the train split.",
    "centrality": "By the mean cosine of a sentence with the others of its document: the highest are the summary.",
}


def scores_page(scores: LayerScores, *, model: ModelDescription | None = None, task: str = "") -> Page:
    """Return the page of every layer's scores before fine-tuning, with their provenance."""
    best, compared = scores.best_layer, scores.compared
    candidates = () if compared is None else [scores.first_layer + i for i in compared.candidates]
    score = f"{scores.table.column(scores.primary).head} {numbers.number(scores.scores[best])}"
    score += "" if compared is None else f" {numbers.interval(compared.intervals[compared.best])}"
    about_best = layer_facts(
        best,
        model,
        candidates=candidates,
        n_blocks=len(scores.scores) - 1,
        score=score,
        claimed=not scores.on_floor,
    )
    return page_of(
        scores,
        table=scores.table if model is None else scores.table.with_columns(model.parameters_column, after="layer"),
        kind="scores before fine-tuning",
        about=about(model.name if model else "", task),
        account=(METHODS[scores.method],),
        **about_best,
    )


def layer_means_page(result: LayerMeans) -> Page:
    """Return the page of means of two layers as embeddings."""
    layers = [str(result.first_layer + i) for i in range(len(result.by_layer))]
    title = points(result.primary, "validation").title
    heat = go.Heatmap(
        z=_square(result, result.best),
        x=layers,
        y=layers,
        colorbar={"title": {"text": title}},
        hovertemplate="layers %{x} and %{y}: %{z:.2f}<extra></extra>",
    )
    figure = go.Figure(heat).update_xaxes(title="Layer", type="category").update_yaxes(title="Layer", type="category")
    finding = f"On the validation split {result.best.name} score highest."
    return page_of(
        result,
        kind="means of layers without fine-tuning",
        about=about(result.model.name, result.task),
        first=Figure("pairs", styled(figure), finding, "Single layers are on the diagonal."),
        account=(METHODS[result.method],),
        provenance=models(result.model),
    )


def _square(result: LayerMeans, mean: LayerMean) -> list[list[float]]:
    """Return the validation scores of every two layers as a map, with single layers on its diagonal."""
    scores = dict(zip(result.pairs, mean.by_pair, strict=True))
    layers = range(result.first_layer, result.first_layer + len(result.by_layer))
    return [
        [result.by_layer[a - result.first_layer] if a == b else scores[min(a, b), max(a, b)] for b in layers]
        for a in layers
    ]


def summaries_page(result: SummaryScores) -> Page:
    """Return the page of extractive summaries by layer."""
    documents = {"Documents": f"{result.documents:,}", "Sentences chosen of each": str(result.keep)}
    return page_of(
        result,
        kind="extractive summaries without fine-tuning",
        about=about(result.model.name, result.task),
        sections=(section("baselines", "First sentences and oracle", table_of(result.baselines)),),
        account=("The oracle chooses with the summary known.",),
        provenance=(*models(result.model), definitions(documents)),
    )


def across_page(result: AcrossTasks) -> Page:
    """Return the page of what every layer scores on several tasks."""
    best = layer_facts(result.best_layer, result.model, candidates=result.candidates, claimed=not result.on_floor)
    tasks = definitions({task.task: f"sha256 {task.task_digest}" for task in result.tasks})
    return page_of(
        result,
        kind=f"{counted(len(result.tasks), 'task')} without fine-tuning",
        about=about(result.model.name),
        account=("The mean over tasks gives each task the same weight.",),
        **best | {"provenance": (*best["provenance"], tasks)},
    )


def retrieval_page(*scores: RetrievalScores) -> Page:
    """Return the page of retrieval scores by layer and model."""
    first, labels = scores[0], distinct_names([score.model.name for score in scores])
    facts = {
        "Task": f"{first.task} (sha256 {first.task_digest})",
        "Queries": f"{len(first.query_ids):,}",
        "Documents": f"{first.n_documents:,}",
        "Ranked by": "cosine" if first.ranking == "cosine" else "inner product",
        "Settings": ", ".join(f"{name} {value}" for name, value in first.settings.items()) or None,
    }
    described: dict[str, Any] = {
        "kind": "retrieval",
        "about": " and ".join([about(name) for name in labels]),
        "provenance": (*models(*(score.model for score in scores)), definitions(facts)),
    }
    if len(scores) == 1:
        return page_of(first, **layer_facts(first.best_layer, first.model) | described)
    return page_of(
        first,
        table=stacked([score.table for score in scores], by=("model",)),
        heading=f"{counted(len(scores), 'model')} on {first.task}",
        lead=[f"{label}: {score.sentence}" for label, score in zip(labels, scores, strict=True)],
        warnings=[warning for score in scores for warning in score.warnings],
        **described,
    ).of(scores)


# ---- several models -------------------------------------------------------------------------------------


def models_page(result: ScoresOfModels) -> Page:
    """Return the page of every layer of several models on one task."""
    level, items = numbers.confidence(result.level), plural(result.unit)
    letters = f" Layers that share a letter do not differ significantly, all pairs at once at {level}."
    best = result.best_of_each[0]
    return page_of(
        result,
        kind="models by layers without fine-tuning",
        about=result.task,
        facts=size_facts(result.models[best.model].parameters, best.layer),
        account=(
            METHODS[result.method],
            "At most behind: points that the best is ahead at most, all layers at once at "
            f"{level}, by paired differences over {items}.{letters if any(e.letters for e in result.layers) else ''}",
        ),
        provenance=(
            *models(*result.models),
            definitions({"Task": f"{result.task} ({result.kind}, sha256 {result.task_digest})"}),
        ),
    )


def found_models_page(models: FoundModels) -> Page:
    """Return the page of which layer of which model to keep."""
    runs = zip(models.labels, map(runs_table, models.findings), strict=True)
    made = stacked([table.named(model=name) for name, table in runs], by=("part",))
    return page_of(
        models,
        kind="the layer to keep of several models",
        about=models.task,
        facts=size_facts(models.best.parameters, models.best.best_layer),
        warnings=models.failures,
        lead=(clauses(f"{models.kept} {models.certainty}")[1],),
        account=models.grounds,
        sections=(section("runs", "Runs", folded("All runs, in order by model", table_of(made))),),
    )


# ---- readings -------------------------------------------------------------------------------------------


def curve_page(curve: LayerCurve) -> Page:
    """Return the page of a curve by layer without a name."""
    return readings_page({"value": curve})


def readings_page(curves: Mapping[str, LayerCurve], *, model: str = "") -> Page:
    """Return the page of numbers by layer of one model, by name."""
    readings = {reading: READINGS[reading] for reading in curves if reading in READINGS}
    table = curves_table(curves)
    bounds = {name: curve.uncertainty for name, curve in curves.items() if curve.uncertainty is not None}
    drawable = table.with_columns(*(e.interval_column(f"{name} ends", first=0) for name, e in bounds.items()))
    figures = [
        drawn(
            drawable,
            Chart(
                lines=(Line(name, interval=f"{name} ends" if name in bounds else ""),),
                name=f"reading-{number}",
                band=True,
                finding=f"{numbers.capitalised(_course(name, curve))}.",
            ),
        )
        for number, (name, curve) in enumerate(curves.items())
    ]
    page = page_of(
        next(iter(curves.values())),
        table=table,
        heading=_promised(curves, readings).rstrip("."),
        kind="readings",
        about=about(model),
        lead=(),
        account=("Nothing here is fine-tuned: only fine-tuning confirms what a number suggests.",) if readings else (),
    ).of(dict(curves))
    by_layer = section("readings", "By layer", *figures, kind="pair" if len(figures) > 1 else None)
    return replace(page, sections=(by_layer, *page.sections))


def _promised(curves: Mapping[str, LayerCurve], readings: Mapping[str, Reading]) -> str:
    """Return, as a sentence, the most promising layer by each reading whose direction is known."""
    by_layer: dict[int, list[str]] = {}
    for name, reading in readings.items():
        if reading.direction is not None:
            values = [reading.direction * value for value in curves[name].values]
            layers: Sequence[int] = range(_first_layer(name, curves[name]), len(values))
            by_layer.setdefault(max(layers, key=values.__getitem__), []).append(name)
    if not by_layer:
        return f"{numbers.capitalised('; '.join(_course(name, curve) for name, curve in curves.items()))}."
    promised = (f"layer {layer} by {listed(by_layer[layer], 'and')}" for layer in sorted(by_layer))
    return f"Most promising: {', '.join(promised)}."


def _course(name: str, curve: LayerCurve) -> str:
    return course({name: curve.values}, first=_first_layer(name, curve))


def _first_layer(name: str, curve: LayerCurve) -> int:
    """Return the first layer that has a value of its own."""
    return max(READINGS[name].first if name in READINGS else 0, curve.first_layer)
