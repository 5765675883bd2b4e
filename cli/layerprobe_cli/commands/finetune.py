"""layerprobe finetune."""

from typing import Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall
from layerprobe_cli.tables import runs_json, weights_lines


def finetune(
    call: PageCall,
    model: o.Embedding,
    source: o.Source,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "all",
    scan: Annotated[bool, "Fine-tuning"] = False,
    weighting: Annotated[Literal["falling", "equal", "random", "sandwich"], "Fine-tuning"] = "falling",
    level: o.Level = LEVEL,
    tolerance: Annotated[float, "Fine-tuning"] = TOLERANCE,
    save_models: o.SaveModels = False,
    ray: o.Ray = None,
    workers: o.Workers = None,
    dry_run: o.DryRun = False,
) -> Done:
    """Fine-tune the model truncated at each layer (TMFT).

    One run per layer and seed; finished runs are not repeated. With --scan, one run has a loss at every layer.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --scan[/bold]

    Args:
        tolerance: Points that you accept to lose for a smaller model.
        scan: One run per seed of the whole model with a loss at every layer, by default one seed. The scores rank the
            layers; truncated alone, layers can differ. The model can be truncated anywhere afterwards.
        weighting: With --scan, how much the loss at each layer counts: falling with depth, equal, one random layer a
            step, or the first, the last and a random one.
    """
    if scan and call.given("layers"):
        raise typer.BadParameter("expected no --layers with --scan, which has a loss at every layer")
    if not scan and (refused := sorted(call.given("weighting ray workers"))):
        raise typer.BadParameter(f"expected --scan with --{refused[0]}")
    o.check_workers(workers, ray)
    listed = o.seed_list(seeds) if not scan or call.given("seeds") else (0,)
    task = o.load(source)

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.tuning import finetune as finetune_layers
    from layerprobe.finetuning.tuning import plan_tuning, saved_models
    from layerprobe.finetuning.tuning import scan as scan_layers

    (checkpoint,) = o.resolved(model, items=task.readable)
    chosen, protocol = o.parse_layers(layers, checkpoint), o.protocol_of(model, tuning)
    call.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run:
        cost = len(listed) * sum(layer + 1 for layer in chosen)
        steps = (lambda n: len(listed) * (n + 1)) if scan else (lambda _: cost)
        call.stop_at(plan_tuning(checkpoint, task, block_steps=steps, protocol=protocol))
    how: dict[str, Any] = {"seeds": listed, "protocol": protocol, "save_models": save_models, "tolerance": tolerance}
    if scan:
        result: Any = scan_layers(checkpoint, task, weighting=weighting, ray=ray, workers=workers, **how)
    else:
        result = finetune_layers(checkpoint, task, chosen, **how)
    made = saved_models(checkpoint, result, task)
    best = f"By validation, layer {result.best_layer} is best in this one model; truncated alone, layers can differ."
    saved = made if save_models else []
    return Done(
        result=result,
        parts=(
            result.sentence,
            *([best] if scan else ()),
            "",
            result.table,
            *weights_lines(saved, " --layer L" if scan else ""),
        ),
        as_json=runs_json(result, saved),
        notes=[f"the runs are in {made[0].parent}"],
        warnings=result.warnings,
    )
