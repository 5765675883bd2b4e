"""layerprobe predict."""

from __future__ import annotations

import typer

from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    Json,
    Loading,
    Model,
    Quiet,
    Reference,
    Similarity,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, print_table, progress_bar
from layerprobe_cli.tables import show_notes


def predict(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TextSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which layers will drop after fine-tuning, and which one to keep. Needs no labels and no training.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    settings = similarity.settings()
    data = source.load_texts()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.study import cautions, compare, extract, zero_shot
    from layerprobe.study import predict as predict_drop

    options = library_options(loading, embedding, extraction, cache_dir=cache_dir)
    checkpoint = loading.find(model, random_init=loading.random_init)
    base_checkpoint = loading.find(reference.reference, random_init=reference.reference_random_init)
    with progress_bar(quiet=quiet) as progress:
        tested = extract(checkpoint, data.texts, options=options, progress=progress)
        base = extract(base_checkpoint, data.texts, options=options, progress=progress)
        comparison = compare(tested, base, progress=progress, **settings)
        labelled = None
        if data.task is not None:
            pairs = data.task.validation
            validated = extract(checkpoint, pairs.texts, options=options, progress=progress)
            labelled = zero_shot(validated, pairs, split="validation")
    prediction = predict_drop(comparison, zero_shot_validation=labelled)
    doubts = cautions(comparison, prediction, labelled)
    show_notes(data.notes, (*data.warnings, *tested.warnings, *base.warnings, *doubts), quiet=quiet)
    if json:
        print_json(prediction)
        return
    flags = {**dict.fromkeys(prediction.drop_layers, "drop"), prediction.recommended_layer: "recommended"}
    print_table(
        ("layer", "CKA", "flag"),
        [(str(layer), f"{value:.4f}", flags.get(layer, "")) for layer, value in enumerate(comparison.curve.values)],
    )
    typer.echo(f"\n{prediction.sentence}")
    typer.echo("Without CKA: " + ", ".join(f"{name} {layer}" for name, layer in prediction.baselines.items()) + ".")
