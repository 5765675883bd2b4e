"""layerprobe finetune."""

from __future__ import annotations

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
from layerprobe_cli.tables import print_outcomes, show_notes


def finetune(
    model: Model,
    source: TaskSource,
    loading: Loading,
    embedding: Embedding,
    tuning: Tuning,
    layers: Layers = "all",
    level: Level = 0.95,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT), with several seeds. Finished runs are not repeated.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]
    """
    log_to_stderr(quiet=quiet)
    seeds = tuning.seed_list()
    task = source.load()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.finetuning import outcomes
    from layerprobe.study import finetune as finetune_layers

    checkpoint = loading.find(model, random_init=loading.random_init)
    chosen = parse_layers(layers, checkpoint)
    with progress_bar(quiet=quiet) as progress:
        runs = finetune_layers(
            checkpoint,
            chosen,
            task,
            seeds=seeds,
            protocol=tuning.protocol(embedding),
            options=library_options(loading, embedding, cache_dir=cache_dir),
            progress=progress,
        )
    show_notes(task.notes, task.warnings, quiet=quiet)
    if json:
        print_json(runs)
    else:
        print_outcomes(outcomes(runs, level=level))
