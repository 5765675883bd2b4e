"""layerprobe find."""

import re
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

FOUND = "found"
"""As many blocks as the layer that is found keeps."""


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
    other_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="[found|3|1,3,5]",
            help="Also fine-tune other blocks than the first: as many as the layer found keeps, or so many, or these.",
        ),
    ] = None,
) -> None:
    """Find the layer to keep of one model or several, at a small cost.

    InfoNCE of the pretrained model says where to look first. Models truncated there, and wherever else it tells most,
    are fine-tuned. It reports the best layer with its confidence, those that may be the best, the smallest layer
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
    if others and other_blocks is not None:
        raise typer.BadParameter("expected one model with --other-blocks, got several")
    if not re.fullmatch(rf"{FOUND}|\d+(,\s*\d+)*", FOUND if other_blocks is None else other_blocks):
        raise typer.BadParameter(f"expected --other-blocks {FOUND}, 3 or 1,3,5, got {other_blocks!r}")
    checkpoints, further = embedding.resolve_each(models, task.readable), 0
    checkpoint = checkpoints[0]
    if other_blocks is not None:
        from layerprobe.encoders.architecture import count_blocks
        from layerprobe.shrinking.equal import candidates, equal_size

        size: Any = 1 if other_blocks == FOUND else other_blocks
        n_others = len(candidates(checkpoint, task, size)) - 1  # errors, too, before anything is trained
        further = seeds * (count_blocks(checkpoint.config) + 1) * (2 if other_blocks == FOUND else n_others)
    searching: dict[str, Any] = {
        **settings,
        "seeds": seeds,
        "against_last": against_last,
        "protocol": tuning.protocol(embedding),
    }
    warnings = output.data(checkpoints, task, max_length=searching["protocol"].max_length)
    say_cost(output, checkpoints, task, searching, dry_run=dry_run, further=further)
    with output.progress(level):
        found: Any = find_layer(checkpoints if others else checkpoint, task, **searching, save_models=save_models)
    output.notes((), found.failures)
    label = found.models[found.best_model] if others else checkpoint.label
    model = models[[each.label for each in checkpoints].index(label)]
    commands = export_commands(found.best if others else found, label, finetune_command(context, model))
    parts, beside = finding_parts(found, commands), list[Any]()
    if other_blocks == FOUND and found.best_layer in (0, count_blocks(checkpoint.config)):
        output.notes((f"the best layer keeps {found.best_layer} blocks, and there are no others of that number",), ())
    elif other_blocks is not None:
        size = found.best_layer if other_blocks == FOUND else other_blocks
        with output.progress(level):
            beside += [equal_size(checkpoint, task, size, seeds=seeds, protocol=searching["protocol"])]
        parts = *parts[:-1], "", beside[0].table, beside[0].summary, parts[-1]
    output.result(found, *parts, as_json={"finding": found, "other_blocks": beside[0]} if beside else None)
    about: dict[str, Any] = {} if others else {"model": label, "task": task.name}
    report.write(output, found, *beside, warnings=warnings, commands=commands, **about)
