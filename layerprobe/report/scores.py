"""Pages of numbers by layer before fine-tuning: scores and readings."""

from collections.abc import Iterator

from layerprobe.names import plural
from layerprobe.report.facts import about, models, size_facts
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.values import Page
from layerprobe.scoring.values import LayerScores, Scores

METHODS = {
    "cosine": "By the cosines of embeddings, without any fine-tuning.",
    "dot": "By the inner products of embeddings, without any fine-tuning.",
    "probe": "By a linear model on the frozen embeddings, fitted on the train split.",
    "centrality": "By the mean cosine of a sentence with the others of its document: the highest are the summary.",
}


def scores_page(result: Scores) -> Page:
    """Return the page of every layer's scores before fine-tuning, with what the kind has besides."""
    model, ways = result.models[0].name if len(result.models) == 1 else "", result.ways
    return page_of(
        result,
        kind="scores before fine-tuning",
        about=about(model, "" if result.several_tasks else result.tasks[0].task),
        facts=_facts(result),
        account=tuple(_account(result)),
        sections=() if ways is None else (section("baselines", ways.beside.title, table_of(ways.beside)),),
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
