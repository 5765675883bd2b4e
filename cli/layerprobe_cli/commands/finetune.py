"""layerprobe finetune."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL, check_seeds
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.values import LayerOutcome, Weighting
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def finetune(
    call: PageCall,
    model: o.Embedding,
    source: o.Source,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "all",
    scan: Annotated[bool, "Fine-tuning"] = False,
    weighting: Annotated[Weighting, "Fine-tuning"] = "falling",
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
    listed = check_seeds(seeds) if not scan or call.given("seeds") else (0,)
    task = o.load(source)

    from layerprobe.finetuning.tuning import check_layers, plan_tuning, saved_models

    (checkpoint,) = o.resolved(model, items=task.readable)
    chosen, protocol = check_layers(checkpoint, layers), o.protocol_of(model, tuning)
    call.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run:
        cost = len(listed) * sum(layer + 1 for layer in chosen)
        steps = (lambda n: len(listed) * (n + 1)) if scan else (lambda _: cost)
        call.stop_at(plan_tuning(checkpoint, task, block_steps=steps, protocol=protocol))
    how: dict[str, Any] = {"seeds": listed, "protocol": protocol, "save_models": save_models, "tolerance": tolerance}
    if scan:
        result: Any = lp.scan(checkpoint, task, weighting=weighting, ray=ray, workers=workers, **how)
    else:
        result = lp.finetune(checkpoint, task, chosen, **how)
    made = saved_models(checkpoint, result, task)
    parts = [*result.parts]
    if scan:
        best = f"layer {result.best_layer} is best in this one model; truncated alone, layers can differ."
        parts.insert(1, f"By validation, {best}")
    listed_runs = [to_dict(run) for run in result]
    if save_models:
        parts += [f"\nWeights, for `layerprobe export DIRECTORY OUT{' --layer L' if scan else ''}`:", *map(str, made)]
        listed_runs = [run | {"directory": str(path)} for run, path in zip(listed_runs, made, strict=True)]

    return Done(
        result=result,
        parts=parts,
        as_json={"runs": listed_runs, "layers": outcomes_with_best(result.outcomes)},
        notes=[f"the runs are in {made[0].parent}"],
    )


def outcomes_with_best(outcomes: Sequence[LayerOutcome]) -> list[dict[str, Any]]:
    """Return outcomes for JSON, each with its best seed, by validation, and the test score of that."""
    return [
        {**to_dict(outcome), "best_seed": outcome.best_seed, "best_seed_score": outcome.best_seed_score}
        for outcome in outcomes
    ]
