"""layerprobe finetune."""

from __future__ import annotations

from layerprobe_cli.options import Json, Layers, Level, Loading, Model, Quiet, TaskSource, Tuning, parse_layers
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_outcomes, show_notes


def finetune(
    model: Model,
    source: TaskSource,
    loading: Loading,
    tuning: Tuning,
    layers: Layers = "all",
    level: Level = 0.95,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT), with several seeds. Finished runs are not repeated.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]
    """
    from layerprobe.encoders import find_checkpoint
    from layerprobe.finetuning import outcomes
    from layerprobe.study import finetune as finetune_layers

    log_to_stderr(quiet=quiet)
    seeds = tuning.seed_list()
    task = source.load()
    n_blocks = find_checkpoint(model, trust_remote_code=loading.trust_remote_code).config.num_hidden_layers
    with progress_bar(quiet=quiet) as progress:
        runs = finetune_layers(
            model,
            parse_layers(layers, n_blocks),
            task,
            seeds=seeds,
            protocol=tuning.protocol(loading.pooling),
            random_init=loading.random_init,
            options=loading.options(),
            progress=progress,
        )
    show_notes(task.notes, task.warnings, quiet=quiet)
    if json:
        print_json(runs)
    else:
        print_outcomes(outcomes(runs, level=level))
