"""layerprobe finetune."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Json,
    Layers,
    Level,
    Loading,
    Model,
    Quiet,
    TaskSource,
    Tuning,
    library_options,
    parse_layers,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import outcomes_with_best, print_outcomes, show_notes


def finetune(
    model: Model,
    source: TaskSource,
    loading: Loading,
    embedding: Embedding,
    tuning: Tuning,
    layers: Layers = "all",
    level: Level = LEVEL,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT).

    Each layer has a run a seed; finished runs are not repeated.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]
    """
    log_to_stderr(quiet=quiet)
    seeds = tuning.seed_list()
    task = source.load()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.finetuning.confirmation import outcomes
    from layerprobe.finetuning.tuning import finetune as finetune_layers
    from layerprobe.finetuning.tuning import saved_models
    from layerprobe.serialisation import to_dict

    checkpoint = loading.find(model, random_init=loading.random_init)
    chosen = parse_layers(layers, checkpoint)
    options = library_options(loading, embedding, cache_dir=cache_dir)
    with progress_bar(quiet=quiet) as progress:
        runs = finetune_layers(
            checkpoint,
            chosen,
            task,
            seeds=seeds,
            protocol=tuning.protocol(embedding),
            options=options,
            save_models=save_models,
            progress=progress,
        )
    show_notes(task.notes, task.warnings, quiet=quiet)
    directories = saved_models(checkpoint, runs, task, options=options) if save_models else []
    layer_outcomes = outcomes(runs, level=level)
    if json:
        told = [to_dict(run) for run in runs]
        for run, directory in zip(told, directories, strict=False):  # all of them, or none
            run["directory"] = str(directory)
        print_json({"runs": told, "layers": outcomes_with_best(layer_outcomes)})
        return
    print_outcomes(layer_outcomes)
    if save_models:
        typer.echo("\nWeights, for `layerprobe export DIRECTORY OUT`:")
        for directory in directories:
            typer.echo(directory)
