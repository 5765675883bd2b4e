"""layerprobe confirm."""

from __future__ import annotations

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    AllSeeds,
    CacheDir,
    Embedding,
    Extraction,
    Json,
    Layers,
    Level,
    Loading,
    Model,
    Quiet,
    Reference,
    RuleName,
    Similarity,
    TaskSource,
    Tuning,
    library_options,
    parse_layers,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import outcomes_with_best, print_outcomes, print_sentence, show_notes


def confirm(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    tuning: Tuning,
    layers: Layers = "",
    rule: RuleName = None,
    level: Level = LEVEL,
    all_seeds: AllSeeds = False,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict, fine-tune, and say whether the prediction holds.

    Fine-tunes at the recommended and the last layer: confirmed, refuted or undecided. The verdict uses no other
    layers; --layers adds some. Where no drop is predicted, the best zero-shot layer is held against the last. From the
    third seed on, no more are added once the verdict is settled at the level; intervals allow for the looks.

    Example:  [bold]layerprobe confirm google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    seeds, settings = tuning.seed_list(), similarity.settings()
    task = source.load()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.study.run import run

    checkpoint = loading.find(model, random_init=loading.random_init)
    references = reference.find(loading)
    with progress_bar(quiet=quiet) as progress:
        study = run(
            checkpoint,
            reference=references,
            task=task,
            layers=parse_layers(layers, checkpoint),
            seeds=seeds,
            protocol=tuning.protocol(embedding),
            level=level,
            rule=rule,
            all_seeds=all_seeds,
            options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
            progress=progress,
            **settings,
        )
    show_notes(study.provenance.notes, study.provenance.warnings, quiet=quiet)
    assert study.confirmation is not None
    if json:
        layer_outcomes = outcomes_with_best(study.confirmation.outcomes)
        print_json({"prediction": study.prediction, "confirmation": study.confirmation, "layers": layer_outcomes})
    else:
        print_outcomes(study.confirmation.outcomes)
        print_sentence(study.prediction)
        typer.echo(study.confirmation.sentence)
