"""layerprobe predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall

if TYPE_CHECKING:
    from layerprobe.encoders.identity import Resolved
    from layerprobe.results.conclusion import Step
    from layerprobe.tasks.values import Task, TextFile


def predict(
    call: PageCall,
    model: o.Extraction,
    reference: o.Reference,
    similarity: o.Similarity,
    source: o.TextSource,
    rule: o.RuleName = None,
    n_texts: o.NumberOfTexts = None,
    level: o.Level = LEVEL,
    fail_on_drop: bool = False,
    readings: bool = False,
) -> Done:
    """Predict which layer to keep, before any training.

    It flags layers that may drop after fine-tuning. It needs no labels: 128 texts, or more where these do not settle
    the prediction.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        fail_on_drop: Exit with code 3 if a layer is flagged.
        readings: Print the readings of every layer instead, with a task also those that need labels.
    """
    if readings and call.report:
        raise typer.BadParameter("expected no --report with --readings, which are one table")
    settings, data = similarity.settings(), source.load()
    (checkpoint,) = o.resolved(model)
    if readings:
        return _read(checkpoint, source, data)
    call.data(checkpoint, data, split=source.split, learns=False)
    prediction = lp.predict(
        checkpoint,
        data,
        reference=reference.specs(model),
        rule=rule,
        groups=source.text_groups(data),
        split=source.split,
        n_texts=n_texts,
        **settings,
    )
    failed = ""
    if fail_on_drop and prediction.data is not None and not prediction.data.readable:
        failed = "nothing can be predicted of a model that cannot read the texts"
    elif fail_on_drop and prediction.drop.drops:
        failed = f"layers are flagged from layer {prediction.drop.onset} on"
    return Done(
        result=prediction,
        steps=() if prediction.data and not prediction.data.readable else following(call, model.name, source, data),
        failed=failed,
    )


def following(call: PageCall, model: str, source: o.Texts, data: Task | TextFile) -> tuple[Step, ...]:
    """Return the search that tells, where there are labels; else nothing."""
    from layerprobe.tasks.values import Task

    if source.task is None or not isinstance(data, Task):
        return ()
    return call.step("find", "find", model, "-t", source.task.source, without=o.LOADING)


def _read(checkpoint: Resolved, source: o.Texts, data: Task | TextFile) -> Done:
    """Return the numbers by layer that rules can read."""
    from layerprobe.extraction.embeddings import left_out_layers
    from layerprobe.readings.reading import READINGS, curves_table
    from layerprobe.readings.source import layers_read, read_curves
    from layerprobe.tasks.values import Task

    task = data if isinstance(data, Task) else None
    wanted = [name for name, reading in READINGS.usable().items() if reading.alone or (task and reading.labelled)]
    curves = read_curves(checkpoint, source.items(data), wanted, task=task, groups=source.text_groups(data))
    left_out = left_out_layers(checkpoint.label, checkpoint.pooling, *layers_read(curves)) if curves else ()
    return Done(
        result=curves,
        tables=[curves_table(curves)] if curves else [],
        notes=data.notes,
        warnings=(*data.warnings, *left_out),
    )
