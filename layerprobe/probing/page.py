"""Frozen layers as a page: the curve with its errors, the weighted sum of layers, the table."""

from layerprobe.metrics.names import metric_title
from layerprobe.probing.values import Probing
from layerprobe.report.facts import about, layer_facts
from layerprobe.results import numbers
from layerprobe.results.page import page_of
from layerprobe.results.values import Page


def probing_page(result: Probing) -> Page:
    """Return the page of frozen layers."""
    best = result.best
    interval = "" if best.error is None else f" {numbers.interval(best.error.interval)}"
    score = f"{metric_title(result.primary)} x 100 {numbers.number(best.metrics[result.primary])}{interval}"
    claimed = result.model is not None and not result.on_floor
    return page_of(
        result,
        kind="frozen layers",
        about=about(result.name, result.task),
        account=(result.cost, *result.notes),
        **layer_facts(result.best_layer, result.model, candidates=result.candidates, score=score, claimed=claimed),
    )
