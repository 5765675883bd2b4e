"""layerprobe predict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    Extraction,
    IntervalLevel,
    Model,
    NumberOfTexts,
    Reference,
    Report,
    RuleName,
    Similarity,
    TextSource,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import fail_check

if TYPE_CHECKING:
    from layerprobe.results.table import Table
    from layerprobe.study.values import Prediction


def predict(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TextSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    rule: RuleName = None,
    n_texts: NumberOfTexts = None,
    level: IntervalLevel = LEVEL,
    fail_on_drop: Annotated[
        bool, typer.Option("--fail-on-drop", help="Exit with code 3 if a layer is flagged.")
    ] = False,
) -> None:
    """Say where to look first for the layer to keep.

    It flags layers that may drop after fine-tuning, and needs no labels and no training: 128 texts, or more where these
    do not settle it.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    settings = similarity.settings()
    data = source.load_texts()

    # only now: an error in the data needs no torch
    from layerprobe.study.predict import predict as predict_drop
    from layerprobe.study.predict import unreadable

    checkpoint = extraction.resolve(model)
    told = output.data(checkpoint, data, split=source.split)
    with output.progress(level):
        prediction = predict_drop(
            checkpoint,
            data.task or data.texts,
            reference=reference.resolve(extraction),
            rule=rule,
            documents=data.documents,
            split=source.split,
            n_texts=n_texts,
            **settings,
        )
    output.notes((), [said for said in prediction.warnings if said not in told])
    listed = [
        {"reference": None if each.alone else each.reference.name, "curve": each.curve, "prediction": drop}
        for each, drop in zip(prediction.comparisons, prediction.drops, strict=True)
    ]
    output.result(prediction, *_parts(prediction), as_json=listed)
    report.write(output, prediction, warnings=told)
    if fail_on_drop and unreadable(prediction):
        fail_check("nothing can be predicted of a model that cannot read the texts")
    if fail_on_drop and prediction.drop.drops:
        fail_check(f"layers are flagged from layer {prediction.drop.onset} on")


def _parts(prediction: Prediction) -> Iterator[Table | str]:
    """Yield the table of each reference, what is predicted, and what one would do without it."""
    from layerprobe.prediction.sentence import trusted

    several = len(prediction.drops) > 1
    for comparison, drop, table in zip(prediction.comparisons, prediction.drops, prediction.tables, strict=True):
        if several:
            other = drop.rule != prediction.drop.rule
            by = f", by the {drop.rule}, as the other rule reads the model alone" if other else ""
            yield f"{'' if drop is prediction.drop else chr(10)}Against {comparison.reference.name}{by}:"
        others = ", ".join(f"{name} {layer}" for name, layer in drop.baselines.items())
        yield table
        yield from ("", *trusted(drop), f"Other ways to choose a layer: {others}.")
