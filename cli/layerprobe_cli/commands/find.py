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
    level: Level = LEVEL,
    against_last: AgainstLast = 0,
    dry_run: DryRun = False,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
) -> None:
    """Find the layer to keep, for a small share of a full sweep.

    InfoNCE of the pretrained model says where to look first. Models truncated there, and wherever else it tells most,
    are fine-tuned. It says which layer is best and how surely, which others cannot be told from it, the smallest layer
    that will do, what was spent, and what more it would take. Finished runs are not repeated.

    Example:  [bold]layerprobe find google/electra-base-discriminator -t stsb --tolerance 0.5 --budget 15%[/bold]
    """
    seeds = tuning.n_seeds()
    settings = search.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.commands import export_commands
    from layerprobe.study.find import find as find_layer

    checkpoint = embedding.resolve(model)
    searching: dict[str, Any] = {
        **settings,
        "seeds": seeds,
        "level": level,
        "against_last": min(against_last, seeds),
        "protocol": tuning.protocol(embedding),
        "options": embedding.options(),
    }
    warnings = output.data(checkpoint, task, max_length=searching["protocol"].max_length) or task.warnings
    say_cost(output, checkpoint, task, searching, dry_run=dry_run)
    with output.progress() as progress:
        finding = find_layer(checkpoint, task, **searching, save_models=save_models, progress=progress)
    output.notes((), finding.failures)
    commands = export_commands(finding, checkpoint.label, finetune_command(context, model))
    output.result(finding, *finding_parts(finding, commands))
    about: dict[str, Any] = {"model": checkpoint.label, "task": task.name}
    report.write(output, finding, warnings=warnings, commands=commands, **about)
