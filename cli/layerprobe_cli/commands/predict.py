"""layerprobe predict."""

from __future__ import annotations

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    IntervalLevel,
    Json,
    Loading,
    Model,
    Quiet,
    Reference,
    RuleName,
    Similarity,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_prediction, show_notes


def predict(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TextSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    rule: RuleName = None,
    level: IntervalLevel = LEVEL,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which layers will drop after fine-tuning.

    It also names the one to keep, and needs no labels and no training.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    settings = similarity.settings()
    data = source.load_texts()

    # after the data: what is wrong with it is reported before torch is loaded
    from layerprobe.study.predict import predict as predict_drop

    with progress_bar(quiet=quiet) as progress:
        prediction = predict_drop(
            loading.find(model, random_init=loading.random_init),
            data.task or data.texts,
            reference=reference.find(loading),
            rule=rule,
            level=level,
            documents=data.documents,
            options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
            progress=progress,
            **settings,
        )
    show_notes(data.notes, (*data.warnings, *prediction.warnings), quiet=quiet)
    pairs = list(zip(prediction.comparisons, prediction.drops, strict=True))
    if json:
        print_json(
            [
                {"reference": None if each.alone else each.reference.name, "curve": each.curve, "prediction": drop}
                for each, drop in pairs
            ]
        )
        return
    for number, (comparison, drop) in enumerate(pairs):
        if len(pairs) > 1:
            other = drop.rule != prediction.drop.rule
            by = f", by the {drop.rule}, as the other rule reads the model alone" if other else ""
            typer.echo(f"{chr(10) if number else ''}Against {comparison.reference.name}{by}:")
        print_prediction(comparison, drop)
