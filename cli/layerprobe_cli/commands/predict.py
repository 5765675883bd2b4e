"""layerprobe predict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall

if TYPE_CHECKING:
    from layerprobe.results.table import Table
    from layerprobe.study.values import Prediction


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
) -> Done:
    """Say where to look first for the layer to keep.

    It flags layers that may drop after fine-tuning, and needs no labels and no training: 128 texts, or more where these
    do not settle it.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        fail_on_drop: Exit with code 3 if a layer is flagged.
    """
    settings, data = similarity.settings(), source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.predict import predict as predict_drop
    from layerprobe.study.predict import unreadable

    (checkpoint,) = o.resolved(model)
    call.data(checkpoint, data, split=source.split)
    prediction = predict_drop(
        checkpoint,
        data.task or data.texts,
        reference=reference.resolve(model),
        rule=rule,
        documents=data.documents,
        split=source.split,
        n_texts=n_texts,
        **settings,
    )
    failed = ""
    if fail_on_drop and unreadable(prediction):
        failed = "nothing can be predicted of a model that cannot read the texts"
    elif fail_on_drop and prediction.drop.drops:
        failed = f"layers are flagged from layer {prediction.drop.onset} on"
    return Done(
        result=prediction,
        parts=[*_parts(prediction)],
        as_json=[
            {"reference": None if pair.alone else pair.reference.name, "curve": pair.curve, "prediction": drop}
            for pair, drop in zip(prediction.comparisons, prediction.drops, strict=True)
        ],
        warnings=prediction.warnings,
        failed=failed,
    )


def _parts(prediction: Prediction) -> Iterator[Table | str]:
    """Yield what is predicted from each reference, its table, and what one would do without it."""
    from layerprobe.prediction.sentence import trusted

    several = len(prediction.drops) > 1
    for comparison, drop, table in zip(prediction.comparisons, prediction.drops, prediction.tables, strict=True):
        if several:
            other = drop.rule != prediction.drop.rule
            by = f", by the {drop.rule}, as the other rule reads the model alone" if other else ""
            yield f"{'' if drop is prediction.drop else chr(10)}Against {comparison.reference.name}{by}:"
        others = ", ".join(f"{name} {layer}" for name, layer in drop.baselines.items())
        answer, *grounds = trusted(drop)
        yield f"{answer}\n"
        yield table
        yield from ("", *grounds, f"Other ways to choose a layer: {others}.")
