"""layerprobe finetune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    DryRun,
    Embedding,
    Layers,
    Level,
    Model,
    Ray,
    Report,
    TaskSource,
    Tuning,
    Workers,
    given_options,
    option,
    parse_layers,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import runs_json, weights_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.tasks.values import Task

ONLY_SCAN = ("weighting", "ray", "workers")


def finetune(
    context: typer.Context,
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    tuning: Tuning,
    report: Report,
    output: Output,
    layers: Layers = "all",
    scan: Annotated[
        bool,
        option(
            "Fine-tuning",
            "--scan",
            help="One run a seed of the whole model with a loss at every layer, by default one seed. The scores rank "
            "the layers; truncated alone, layers can differ. The model can be truncated anywhere afterwards.",
        ),
    ] = False,
    weighting: Annotated[
        Literal["falling", "equal", "random", "sandwich"],
        option(
            "Fine-tuning",
            help="With --scan, how much the loss at each layer counts: falling with depth, equal, one random layer a "
            "step, or the first, the last and a random one.",
        ),
    ] = "falling",
    level: Level = LEVEL,
    save_models: Annotated[
        bool, option("Fine-tuning", "--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT).

    Each layer has a run a seed; finished runs are not repeated. With --scan, one run has a loss at every layer.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --scan[/bold]
    """
    given = given_options(context, others=("seeds", "layers", *ONLY_SCAN))
    if scan and "layers" in given:
        raise typer.BadParameter("expected no --layers with --scan, which has a loss at every layer")
    if not scan and (refused := sorted(given & set(ONLY_SCAN))):
        raise typer.BadParameter(f"expected --scan with --{refused[0]}")
    seeds = tuning.seed_list() if not scan or "seeds" in given else (0,)
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.outcomes import outcomes
    from layerprobe.finetuning.plan import plan_tuning
    from layerprobe.finetuning.tuning import finetune as finetune_layers
    from layerprobe.finetuning.tuning import items_of, saved_models
    from layerprobe.finetuning.tuning import scan as scan_layers

    checkpoint = embedding.resolve(model)
    chosen = parse_layers(layers, checkpoint)
    protocol = tuning.protocol(embedding)
    output.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run:
        cost = len(seeds) * sum(layer + 1 for layer in chosen)
        steps = (lambda n: len(seeds) * (n + 1)) if scan else (lambda _: cost)
        output.plan(plan_tuning(checkpoint, task, block_steps=steps, protocol=protocol), dry_run=True)
    how: dict[str, Any] = {"seeds": seeds, "protocol": protocol, "save_models": save_models}
    with output.progress():
        if scan:
            runs: Any = scan_layers(checkpoint, task, weighting=weighting, ray=ray, workers=workers, **how)
        else:
            runs = finetune_layers(checkpoint, task, chosen, **how)
    if scan:
        made, layer_outcomes = _of_scan(output, checkpoint, runs, task, level)
    else:
        made = saved_models(checkpoint, runs, task)
        layer_outcomes = outcomes(runs, items_of(checkpoint, runs, task), level=level)
    _print(output, runs, layer_outcomes, made, scan=scan, save_models=save_models)
    about = {"model": checkpoint.label, "task": task.name, "level": level, "what": "scan" if scan else "TMFT"}
    report.write(output, layer_outcomes, **about, page="outcomes")


def _of_scan(
    output: Output, checkpoint: Checkpoint, runs: Any, task: Task, level: float
) -> tuple[list[Path], Sequence[LayerOutcome]]:
    """Return where the models of scans are, and what their layers score; say which are left out."""
    from layerprobe.finetuning.items import run_items
    from layerprobe.finetuning.outcomes import outcomes
    from layerprobe.finetuning.tuning import scan_models

    output.notes((), [f"layer {failed.layer} is left out: {failed.message}" for run in runs for failed in run.failures])
    made = scan_models(checkpoint, runs, task)
    by_layer = [
        (run.truncated(layer), directory)
        for run, directory in zip(runs, made, strict=True)
        for layer, test in enumerate(run.test)
        if test is not None
    ]
    return made, outcomes([run for run, _ in by_layer], run_items(task, by_layer), level=level)


def _print(
    output: Output, runs: Any, outcomes: Sequence[LayerOutcome], made: list[Path], *, scan: bool, save_models: bool
) -> None:
    from layerprobe.finetuning.values import outcomes_table

    output.notes((f"the runs are in {made[0].parent}",), ())
    best = max(outcomes, key=lambda each: sum(each.validation[each.primary]) / len(each.seeds)).layer
    said = [f"By validation, layer {best} is best in this one model; truncated alone, layers can differ."]
    kept = made if save_models else []
    output.result(
        runs,
        outcomes_table(outcomes),
        *(said if scan else ()),
        *weights_lines(kept, " --layer L" if scan else ""),
        as_json=runs_json(runs, outcomes, kept),
    )
