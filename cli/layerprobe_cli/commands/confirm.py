"""layerprobe confirm."""

from __future__ import annotations

import typer

from layerprobe_cli.options import (
    Json,
    Layers,
    Level,
    Loading,
    Model,
    Quiet,
    Reference,
    Similarity,
    TaskSource,
    Tuning,
    parse_layers,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_outcomes, show_notes


def confirm(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    loading: Loading,
    tuning: Tuning,
    layers: Layers = "",
    level: Level = 0.95,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict, then fine-tune at the flagged, the recommended and the last layer: confirmed, refuted or undecided.

    Example:  [bold]layerprobe confirm google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    from layerprobe.encoders import find_checkpoint
    from layerprobe.study import run

    log_to_stderr(quiet=quiet)
    seeds = tuning.seed_list()
    task = source.load()
    n_blocks = find_checkpoint(model, trust_remote_code=loading.trust_remote_code).config.num_hidden_layers
    with progress_bar(quiet=quiet) as progress:
        study = run(
            model,
            reference=reference.reference,
            task=task,
            layers=parse_layers(layers, n_blocks) if layers else (),
            seeds=seeds,
            protocol=tuning.protocol(loading.pooling),
            level=level,
            random_init=loading.random_init,
            reference_random_init=reference.reference_random_init,
            options=loading.options(),
            progress=progress,
            **similarity.settings(),
        )
    show_notes(study.provenance.notes, study.provenance.warnings, quiet=quiet)
    assert study.confirmation is not None
    if json:
        print_json({"prediction": study.prediction, "confirmation": study.confirmation})
    else:
        print_outcomes(study.confirmation.outcomes)
        typer.echo(f"\n{study.prediction.sentence}\n{study.confirmation.sentence}")
