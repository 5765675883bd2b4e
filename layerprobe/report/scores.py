"""Pages of numbers by layer before fine-tuning: scores, summaries, retrieval, readings, several tasks and models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from layerprobe.encoders.model import ModelDescription
from layerprobe.kinds.retrieval.values import RetrievalScores
from layerprobe.kinds.summaries.values import SummaryScores
from layerprobe.metrics.names import points
from layerprobe.names import counted, distinct_names, listed, plural
from layerprobe.prediction.sentence import highest_and_last
from layerprobe.readings.reading import Reading
from layerprobe.readings.registry import READINGS, curves_table
from layerprobe.readings.values import LayerCurve
from layerprobe.report.facts import about, models, size_facts, verdict
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.charts import Chart, Line
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.style import styled
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page
from layerprobe.scoring.values import AcrossTasks, LayerMean, LayerMeans, LayerScores, ScoresOfModels
from layerprobe.study.models import FoundModels
from layerprobe.study.sentence import grounds_of_models
from layerprobe.study.tables import runs_table

METHODS = {
    "cosine": "By the cosines of embeddings, without any fine-tuning.",
    "probe": "By a linear model on the frozen embeddings, fitted on the train split.",
    "centrality": "By the mean cosine of a sentence with the others of its document: the highest are the summary.",
}


def scores_page(scores: LayerScores, *, model: ModelDescription | None = None, task: str = "") -> Page:
    """Return the page of every layer's scores before fine-tuning, with their provenance."""
    best, last, compared = scores.best_layer, len(scores.scores) - 1, scores.compared
    candidates = () if compared is None else [scores.first_layer + i for i in compared.candidates]
    score = numbers.number(scores.scores[best])
    score += "" if compared is None else f" {numbers.interval(compared.intervals[compared.best])}"
    return page_of(
        scores,
        table=scores.table if model is None else scores.table.with_columns(model.parameters_column, after="layer"),
        heading=verdict(scores.sentence),
        kind="scores before fine-tuning",
        about=about(model.name if model else "", task),
        lead=(scores.sentence,),
        facts=(
            f"{scores.table.column(scores.primary).head} {score}",
            *(size_facts(model.parameters, best) if model else ()),
        ),
        blocks=None if scores.on_floor else Blocks.upto(last, best, candidates),
        warnings=scores.warnings,
        account=(METHODS[scores.method],),
        provenance=models(model),
        data_label="Scores",
        stem="layerprobe-scores",
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
        heading=verdict(result.sentence),
        kind="means of layers without fine-tuning",
        about=about(result.model.name, result.task),
        lead=(result.sentence,),
        first=Figure("pairs", styled(figure), finding, "Single layers are on the diagonal."),
        account=(METHODS[result.method],),
        provenance=models(result.model),
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


def summaries_page(result: SummaryScores) -> Page:
    """Return the page of extractive summaries by layer."""
    documents = {"Documents": f"{result.documents:,}", "Sentences chosen of each": str(result.keep)}
    return page_of(
        result,
        heading=verdict(result.sentence),
        kind="extractive summaries without fine-tuning",
        about=about(result.model.name, result.task),
        lead=(result.sentence,),
        sections=(section("baselines", "First sentences and oracle", table_of(result.baselines)),),
        account=("The oracle chooses with the summary known.",),
        provenance=(*models(result.model), definitions(documents)),
        data_label="Summaries",
        stem="layerprobe-summaries",
    )


def across_page(result: AcrossTasks) -> Page:
    """Return the page of what every layer scores on several tasks."""
    return page_of(
        result,
        heading=verdict(result.sentence),
        kind=f"{counted(len(result.tasks), 'task')} without fine-tuning",
        about=about(result.model.name),
        lead=(result.sentence,),
        facts=() if result.on_floor else size_facts(result.model.parameters, result.best_layer),
        blocks=None if result.on_floor else Blocks.upto(result.model.n_blocks, result.best_layer, result.candidates),
        warnings=result.warnings,
        account=("The mean over tasks gives each task the same weight.",),
        provenance=(
            *models(result.model),
            definitions({task.task: f"sha256 {task.task_digest}" for task in result.tasks}),
        ),
        stem="layerprobe-across",
    )


def retrieval_page(*scores: RetrievalScores) -> Page:
    """Return the page of retrieval scores by layer and model."""
    first, labels = scores[0], distinct_names([score.model.name for score in scores])
    named = [f"{label}: {score.sentence}" for label, score in zip(labels, scores, strict=True)]
    lead = tuple(named) if len(scores) > 1 else (first.sentence,)
    facts = {
        "Task": f"{first.task} (sha256 {first.task_digest})",
        "Queries": f"{len(first.query_ids):,}",
        "Documents": f"{first.n_documents:,}",
        "Ranked by": "cosine" if first.ranking == "cosine" else "inner product",
        "Settings": ", ".join(f"{name} {value}" for name, value in first.settings.items()) or None,
    }
    return page_of(
        first,
        table=stacked([score.table for score in scores], by=("model",)),
        heading=verdict(lead[0] if len(scores) == 1 else f"{counted(len(scores), 'model')} on {first.task}"),
        kind="retrieval",
        about=" and ".join([about(name) for name in labels]),
        lead=lead,
        facts=size_facts(first.model.parameters, first.best_layer) if len(scores) == 1 else (),
        warnings=tuple(warning for score in scores for warning in score.warnings),
        provenance=(*models(*(score.model for score in scores)), definitions(facts)),
        stem="layerprobe-retrieval",
    ).of(first if len(scores) == 1 else scores)


# ---- several models -------------------------------------------------------------------------------------


def models_page(result: ScoresOfModels) -> Page:
    """Return the page of every layer of several models on one task."""
    level, items = numbers.confidence(result.level), plural(result.unit)
    letters = f" Layers that share a letter do not differ significantly, all pairs at once at {level}."
    return page_of(
        result,
        heading=verdict(result.sentence),
        kind="models by layers without fine-tuning",
        about=result.task,
        lead=(result.sentence,),
        facts=size_facts(*_best(result)),
        warnings=result.warnings,
        account=(
            METHODS[result.method],
            "At most behind: points that the best is ahead at most, all layers at once at "
            f"{level}, by paired differences over {items}.{letters if any(e.letters for e in result.layers) else ''}",
        ),
        provenance=(
            *models(*result.models),
            definitions({"Task": f"{result.task} ({result.kind}, sha256 {result.task_digest})"}),
        ),
        stem="layerprobe-models",
    )


def _best(result: ScoresOfModels) -> tuple[tuple[int, ...], int]:
    best = result.best_of_each[0]
    return result.models[best.model].parameters, best.layer


def found_models_page(models: FoundModels) -> Page:
    """Return the page of which layer of which model to keep."""
    runs = zip(models.labels, map(runs_table, models.findings), strict=True)
    made = stacked([table.named(model=name) for name, table in runs], by=("part",))
    return page_of(
        models,
        heading=verdict(models.kept),
        kind="the layer to keep of several models",
        about=models.task,
        lead=(models.sentence,),
        facts=size_facts(models.best.parameters, models.best.best_layer),
        warnings=models.failures,
        account=grounds_of_models(models)[:-1],
        sections=(section("runs", "Runs", folded("All runs, in order by model", table_of(made))),),
        stem="layerprobe-finding-of-models",
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
        heading=verdict(_promised(curves, readings)),
        kind="readings",
        about=about(model),
        lead=(_promised(curves, readings),),
        account=("Nothing here is fine-tuned: only fine-tuning confirms what a number suggests.",) if readings else (),
        stem="layerprobe-readings",
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
    return highest_and_last({name: curve.values}, first=_first_layer(name, curve))


def _first_layer(name: str, curve: LayerCurve) -> int:
    """Return the first layer that has a value of its own."""
    return max(READINGS[name].first if name in READINGS else 0, curve.first_layer)
