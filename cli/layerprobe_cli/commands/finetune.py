"""layerprobe finetune."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe.stats.values import TOLERANCE
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
    check_workers,
    given_options,
    option,
    parse_layers,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import runs_json, weights_lines

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
            help="One run per seed of the whole model with a loss at every layer, by default one seed. The scores rank "
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
    tolerance: Annotated[float, option("Fine-tuning", help="Points that you accept to lose for a smaller model.")] = (
        TOLERANCE
    ),
    save_models: Annotated[
        bool, option("Fine-tuning", "--save-models", help="Keep the weights of every run, for `layerprobe export`.")
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune the model truncated at each layer (TMFT).

    One run per layer and seed; finished runs are not repeated. With --scan, one run has a loss at every layer.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --scan[/bold]
    """
    given = given_options(context, others=("seeds", "layers", *ONLY_SCAN))
    if scan and "layers" in given:
        raise typer.BadParameter("expected no --layers with --scan, which has a loss at every layer")
    if not scan and (refused := sorted(given & set(ONLY_SCAN))):
        raise typer.BadParameter(f"expected --scan with --{refused[0]}")
    check_workers(workers, ray)
    seeds = tuning.seed_list() if not scan or "seeds" in given else (0,)
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.plan import plan_tuning
    from layerprobe.finetuning.tuning import finetune as finetune_layers
    from layerprobe.finetuning.tuning import saved_models
    from layerprobe.finetuning.tuning import scan as scan_layers

    checkpoint = embedding.resolve(model, task.readable)
    chosen = parse_layers(layers, checkpoint)
    protocol = tuning.protocol(embedding)
    output.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run:
        cost = len(seeds) * sum(layer + 1 for layer in chosen)
        steps = (lambda n: len(seeds) * (n + 1)) if scan else (lambda _: cost)
        output.plan(plan_tuning(checkpoint, task, block_steps=steps, protocol=protocol), dry_run=True)
    how: dict[str, Any] = {"seeds": seeds, "protocol": protocol, "save_models": save_models, "tolerance": tolerance}
    with output.progress(level):
        if scan:
            result: Any = scan_layers(checkpoint, task, weighting=weighting, ray=ray, workers=workers, **how)
        else:
            result = finetune_layers(checkpoint, task, chosen, **how)
    made = saved_models(checkpoint, result, task)
    output.notes((f"the runs are in {made[0].parent}",), result.warnings)
    best = f"By validation, layer {result.best_layer} is best in this one model; truncated alone, layers can differ."
    kept = made if save_models else []
    output.result(
        result,
        result.table,
        f"\n{result.sentence}",
        *([best] if scan else ()),
        *weights_lines(kept, " --layer L" if scan else ""),
        as_json=runs_json(result, kept),
    )
    report.write(output, result)
