"""Frozen layers as a page: the curve with its errors, several layers together, the table."""

from layerprobe.metrics.names import metric_title
from layerprobe.probing.values import Probing
from layerprobe.report.facts import about, models, size_facts, verdict
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.page import page_of
from layerprobe.results.values import Page


def probing_page(result: Probing) -> Page:
    """Return the page of frozen layers."""
    best, model = result.best, result.model
    interval = "" if best.error is None else f" {numbers.interval(best.error.interval)}"
    score = f"{metric_title(result.primary)} x 100 {numbers.number(best.metrics[result.primary])}{interval}"
    return page_of(
        result,
        heading=verdict(result.sentence),
        kind="frozen layers",
        about=about(result.name, result.task),
        lead=(result.sentence,),
        facts=(score, *(size_facts(model.parameters, result.best_layer) if model else ())),
        blocks=None
        if result.on_floor or model is None
        else Blocks.upto(model.n_blocks, result.best_layer, result.candidates),
        warnings=result.warnings,
        account=(result.cost, *result.notes),
        provenance=models(model),
        stem="layerprobe-frozen-layers",
    )
