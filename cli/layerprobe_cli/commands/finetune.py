"""layerprobe finetune."""

from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import DryRun, Embedding, Layers, Level, Model, Report, TaskSource, Tuning, parse_layers
from layerprobe_cli.output import Output
from layerprobe_cli.tables import runs_json, weights_lines


def finetune(
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    tuning: Tuning,
    report: Report,
    output: Output,
    layers: Layers = "all",
    level: Level = LEVEL,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT).

    Each layer has a run a seed; finished runs are not repeated.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]
    """
    seeds = tuning.seed_list()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.outcomes import outcomes
    from layerprobe.finetuning.plan import plan_tuning
    from layerprobe.finetuning.tuning import finetune as finetune_layers
    from layerprobe.finetuning.tuning import items_of, saved_models
    from layerprobe.finetuning.values import outcomes_table

    checkpoint = embedding.resolve(model)
    chosen = parse_layers(layers, checkpoint)
    protocol = tuning.protocol(embedding)
    output.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run:
        cost = len(seeds) * sum(layer + 1 for layer in chosen)
        runs_at = plan_tuning(checkpoint, task, block_steps=lambda _: cost, protocol=protocol)
        output.plan(runs_at, dry_run=True)
    with output.progress():
        runs = finetune_layers(checkpoint, task, chosen, seeds=seeds, protocol=protocol, save_models=save_models)
    made = saved_models(checkpoint, runs, task)
    output.notes((f"the runs are in {made[0].parent}",), ())
    directories = made if save_models else []
    layer_outcomes = outcomes(runs, items_of(checkpoint, runs, task), level=level)
    output.result(
        runs,
        outcomes_table(layer_outcomes),
        *weights_lines(directories),
        as_json=runs_json(runs, layer_outcomes, directories),
    )
    about = {"model": checkpoint.label, "task": task.name, "level": level, "what": "TMFT"}
    report.write(output, layer_outcomes, **about, page="outcomes")
