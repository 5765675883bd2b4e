"""Pages of numbers by layer before fine-tuning: scores and readings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from layerprobe.names import listed, plural
from layerprobe.readings.reading import Reading
from layerprobe.readings.registry import READINGS, course, curves_table
from layerprobe.readings.values import LayerCurve
from layerprobe.report.facts import about, models, size_facts
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.charts import Chart, Line
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.values import Page, Section
from layerprobe.scoring.values import LayerScores, Scores

METHODS = {
    "cosine": "By the cosines of embeddings, without any fine-tuning.",
    "dot": "By the inner products of embeddings, without any fine-tuning.",
    "probe": "By a linear model on the frozen embeddings, fitted on the train split.",
    "centrality": "By the mean cosine of a sentence with the others of its document: the highest are the summary.",
}


def scores_page(result: Scores) -> Page:
    """Return the page of every layer's scores before fine-tuning, with what the kind has besides."""
    model = result.models[0].name if len(result.models) == 1 else ""
    return page_of(
        result,
        kind="scores before fine-tuning",
        about=about(model, "" if result.several_tasks else result.tasks[0].task),
        facts=_facts(result),
        account=tuple(_account(result)),
        sections=tuple(_further(result)),
        provenance=(*models(*result.models), definitions(_provenance(result))),
    )


def layer_scores_page(scores: LayerScores) -> Page:
    """Return the page of a model's scores by layer whose model and task are not known."""
    best = scores.best_layer
    return page_of(
        scores,
        kind="scores before fine-tuning",
        facts=(f"{scores.table.column(scores.primary).head} {numbers.number(scores.scores[best])}",),
        blocks=Blocks.upto(len(scores.scores) - 1, best),
        account=(METHODS[scores.method],),
    )


def _facts(result: Scores) -> tuple[str, ...]:
    """Return the best score and the size of its model."""
    if result.ways is not None or result.on_floor:
        return ()
    best = result.best
    size = size_facts(result.models[best.model].parameters, best.layer)
    if result.several_tasks:
        return size
    ends = "" if best.interval is None else f" {numbers.interval(best.interval)}"
    return (f"{result.table.column(result.primary).head} {numbers.number(best.score)}{ends}", *size)


def _account(result: Scores) -> Iterator[str]:
    yield from dict.fromkeys(METHODS[task.scores.method] for task in result.tasks)
    if result.ways is not None:
        yield "Validation chooses the way and the layer. The oracle chooses with the summary known."
    if result.several_tasks:
        yield "The mean over tasks gives each task the same weight."
    elif result.compared is not None:
        level, items = numbers.confidence(result.level), plural(result.tasks[0].unit)
        yield (
            "At most behind: points that the best is ahead at most, all layers at once at "
            f"{level}, by paired differences over {items}."
        )


def _provenance(result: Scores) -> dict[str, str | None]:
    named = {} if len(result.names) == 1 else dict(zip(result.names, result.by_task, strict=True))
    tasks = named or {"Task": result.tasks[0]}
    facts: dict[str, str | None] = {
        name: f"{task.task} ({task.kind}, sha256 {task.task_digest})" for name, task in tasks.items()
    }
    (first, *_) = result.tasks
    if not named:
        facts[numbers.capitalised(plural(first.unit))] = f"{first.n_items:,}"
        facts |= {numbers.capitalised(name): f"{n:,}" for name, n in (first.facts or {}).items()}
    return facts | {"Settings": ", ".join(f"{name} {value}" for name, value in result.settings.items()) or None}


def _further(result: Scores) -> Iterator[Section]:
    if result.ways is not None:
        yield section("baselines", result.ways.beside.title, table_of(result.ways.beside))


# ---- readings -------------------------------------------------------------------------------------------


def curve_page(curve: LayerCurve) -> Page:
    """Return the page of a curve by layer without a name."""
    return readings_page({"value": curve})


def readings_page(curves: Mapping[str, LayerCurve], *, model: str = "") -> Page:
    """Return the page of numbers by layer of one model, by name."""
    readings = {reading: READINGS[reading] for reading in curves if reading in READINGS}
    table = curves_table(curves)
    bounds = {name: curve.uncertainty for name, curve in curves.items() if curve.uncertainty is not None}
    drawable = table.with_columns(
        *(e.interval_column(f"{name} ends", curves[name].layers) for name, e in bounds.items())
    )
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
            layers = _layers(name, curves[name])
            by_layer.setdefault(max(layers, key=values.__getitem__), []).append(name)
    if not by_layer:
        return f"{numbers.capitalised('; '.join(_course(name, curve) for name, curve in curves.items()))}."
    promised = (f"layer {layer} by {listed(by_layer[layer], 'and')}" for layer in sorted(by_layer))
    return f"Most promising: {', '.join(promised)}."


def _course(name: str, curve: LayerCurve) -> str:
    return course({name: curve.values}, layers=_layers(name, curve))


def _layers(name: str, curve: LayerCurve) -> range:
    """Return the layers that have a value of their own."""
    return range(max(READINGS[name].first if name in READINGS else 0, curve.first_layer), curve.layers.stop)
