"""Frozen layers as a page: the curve with its errors, the weighted sum of layers, the table."""

from layerprobe.metrics.names import metric_title
from layerprobe.probing.values import Probing
from layerprobe.report.facts import about, models, size_facts
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.page import page_of
from layerprobe.results.values import Page


def probing_page(result: Probing) -> Page:
    """Return the page of frozen layers."""
    best = result.best
    interval = "" if best.error is None else f" {numbers.interval(best.error.interval)}"
    score = f"{metric_title(result.primary)} x 100 {numbers.number(best.metrics[result.primary])}{interval}"
    model, layer = result.model, result.best_layer
    return page_of(
        result,
        kind="frozen layers",
        about=about(result.name, result.task),
        account=(result.cost, *result.notes),
        facts=(score, *(size_facts(model.parameters, layer) if model else ())),
        blocks=Blocks.upto(model.n_blocks, layer, result.candidates) if model and not result.on_floor else None,
        provenance=models(model),
    )
