"""layerprobe find."""

from typing import Annotated, Any

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    AgainstLast,
    DryRun,
    Embedding,
    Level,
    Model,
    Others,
    Report,
    Search,
    SearchTuning,
    TaskSource,
    finetune_command,
)
from layerprobe_cli.output import Output
from layerprobe_cli.plans import say_cost
from layerprobe_cli.tables import finding_parts


def find(
    context: typer.Context,
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    tuning: SearchTuning,
    search: Search,
    report: Report,
    output: Output,
    others: Others = None,
    level: Level = LEVEL,
    against_last: AgainstLast = 0,
    dry_run: DryRun = False,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
) -> None:
    """Find the layer to keep, of one model or several, for a small share of a full sweep.

    InfoNCE of the pretrained model says where to look first. Models truncated there, and wherever else it tells most,
    are fine-tuned. It reports the best layer with its confidence, those statistically tied with it, the smallest layer
    that will do, what was spent, and what more it would take. Finished runs are not repeated. Several models share the
    budget: runs go where they can still change which layer of which model is the best.

    Example:  [bold]layerprobe find google/electra-base-discriminator -t stsb --tolerance 0.5 --budget 15%[/bold]

    Example:  [bold]layerprobe find all-MiniLM-L6-v2 all-mpnet-base-v2 -t stsb --budget 15%[/bold]
    """
    seeds = tuning.n_seeds()
    settings = search.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.commands import export_commands
    from layerprobe.study.find import find as find_layer

    models = [model, *(others or ())]
    checkpoints = embedding.resolve_each(models)
    searching: dict[str, Any] = {
        **settings,
        "seeds": seeds,
        "against_last": min(against_last, seeds),
        "protocol": tuning.protocol(embedding),
    }
    warnings = output.data(checkpoints, task, max_length=searching["protocol"].max_length) or task.warnings
    say_cost(output, checkpoints, task, searching, dry_run=dry_run)
    with output.progress(level):
        found: Any = find_layer(checkpoints if others else checkpoints[0], task, **searching, save_models=save_models)
    output.notes((), found.failures)
    label = found.models[found.best_model] if others else checkpoints[0].label
    model = models[[each.label for each in checkpoints].index(label)]
    commands = export_commands(found.best if others else found, label, finetune_command(context, model))
    about: dict[str, Any] = {} if others else {"model": label, "task": task.name}
    output.result(found, *finding_parts(found, commands))
    report.write(output, found, warnings=warnings, commands=commands, **about)
