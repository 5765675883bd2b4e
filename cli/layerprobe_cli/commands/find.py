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
    """Find the layer to keep, for a small share of a full sweep.

    InfoNCE of the pretrained model says where to look first. Models truncated there, and wherever else it tells most,
    are fine-tuned. It reports the best layer with its confidence, those statistically tied with it, the smallest layer
    that will do, what was spent, and what more it would take. Finished runs are not repeated.

    Example:  [bold]layerprobe find google/electra-base-discriminator -t stsb --tolerance 0.5 --budget 15%[/bold]
    """
    seeds = tuning.n_seeds()
    settings = search.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.commands import export_commands
    from layerprobe.study.find import find as find_layer

    checkpoint, further = embedding.resolve(model), 0
    if other_blocks is not None:
        from layerprobe.encoders.architecture import count_blocks
        from layerprobe.shrinking.equal import candidates, equal_size

        size: Any = 1 if other_blocks == FOUND else other_blocks
        others = len(candidates(checkpoint, task, size)) - 1  # errors, too, before anything is trained
        further = seeds * (count_blocks(checkpoint.config) + 1) * (2 if other_blocks == FOUND else others)
    searching: dict[str, Any] = {
        **settings,
        "seeds": seeds,
        "against_last": min(against_last, seeds),
        "protocol": tuning.protocol(embedding),
    }
    warnings = output.data(checkpoint, task, max_length=searching["protocol"].max_length) or task.warnings
    say_cost(output, checkpoint, task, searching, dry_run=dry_run, further=further)
    with output.progress(level):
        finding = find_layer(checkpoint, task, **searching, save_models=save_models)
    output.notes((), finding.failures)
    commands = export_commands(finding, checkpoint.label, finetune_command(context, model))
    parts, as_json = finding_parts(finding, commands), None
    if other_blocks == FOUND and finding.best_layer in (0, count_blocks(checkpoint.config)):
        output.notes((f"the best layer keeps {finding.best_layer} blocks, and there are no others of that number",), ())
    elif other_blocks is not None:
        size = finding.best_layer if other_blocks == FOUND else other_blocks
        with output.progress(level):
            equal = equal_size(checkpoint, task, size, seeds=seeds, protocol=searching["protocol"])
        parts = *parts[:-1], "", equal.table, equal.sentence, parts[-1]
        as_json = {"finding": finding, "other_blocks": equal}
    output.result(finding, *parts, as_json=as_json)
    about: dict[str, Any] = {"model": checkpoint.label, "task": task.name}
    report.write(output, finding, warnings=warnings, commands=commands, **about)
