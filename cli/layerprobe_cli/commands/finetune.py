"""layerprobe finetune."""

from typing import Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL, check_seeds
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.values import Weighting
from layerprobe.results.conclusion import Step
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def finetune(
    call: PageCall,
    model: o.Embedding,
    given: o.SourcesOfModels,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "all",
    scan: Annotated[bool, "Fine-tuning"] = False,
    weighting: Annotated[Weighting, "Fine-tuning"] = "falling",
    level: o.Level = LEVEL,
    tolerance: Annotated[float, "Fine-tuning"] = TOLERANCE,
    save_models: o.SaveModels = False,
    retry_failed: Annotated[bool, "Fine-tuning"] = False,
    workers: Annotated[int | None, "Machine", {"min": 1}] = None,
    ray: o.Ray = None,
    dry_run: o.DryRun = False,
) -> Done:
    """Fine-tune models truncated at each layer (TMFT) on tasks.

    There is one run per model, task, layer and seed. Finished runs are not repeated: the same command continues after
    an interruption, and two commands with one cache share the work. A run that fails is marked, and the others go on.
    With --scan, one run has a loss at every layer.

    Example:  [bold]layerprobe finetune google/electra-base-discriminator -t stsb --layers 6-12 --seeds 3[/bold]

    Example:  [bold]layerprobe finetune google/electra-base-discriminator google-bert/bert-base-cased -t stsb -t sick
    --layers 6,12 --workers 2[/bold]

    Args:
        tolerance: Score loss that you accept for a smaller model, in points of the metric x 100.
        scan: One run per seed of the whole model with a loss at every layer, by default one seed. Scores can differ
            from those of models truncated at one layer. The model can be truncated anywhere afterwards.
        weighting: With --scan, how much the loss at each layer counts: falling with depth, equal, one random layer a
            step, or the first, the last and a random one.
        retry_failed: Repeat runs that are marked as failed.
        workers: Runs at a time. By default one per GPU, else one.
    """
    others, source = given
    if scan and call.given("layers"):
        raise typer.BadParameter("expected no --layers with --scan, which has a loss at every layer")
    if not scan:
        call.refuse(call.given("weighting"), "without --scan")
    listed = check_seeds(seeds) if not scan or call.given("seeds") else (0,)
    tasks = [o.load(one) for one in source or (None,)]

    import torch

    from layerprobe.encoders.device import resolve_device
    from layerprobe.finetuning.tuning import check_layers, plan_tuning
    from layerprobe.results.shown import Estimate, together

    checkpoints = o.resolved(model, others, tasks[0].readable)
    protocol = o.make_protocol(model, tuning)
    chosen = [check_layers(checkpoint, layers) for checkpoint in checkpoints]
    for task in tasks:
        of = task.name if len(tasks) > 1 else ""
        call.data(checkpoints, task, of=of)
    if dry_run:
        costs = [len(listed) * (max(of) + 1 if scan else sum(layer + 1 for layer in of)) for of in chosen]

        def planned(checkpoint: Any, task: Any, cost: int) -> Estimate:
            return plan_tuning(checkpoint, task, block_steps=lambda _: cost, protocol=protocol)

        plans = [planned(of, task, cost) for of, cost in zip(checkpoints, costs, strict=True) for task in tasks]
        call.stop_at(plans[0] if len(plans) == 1 else together(plans, "That is about {} together."))
    if workers is None and ray is None and str(resolve_device(model.device)) == "cuda":
        workers = torch.cuda.device_count()
    result = lp.finetune(
        checkpoints,
        tasks,
        "all" if scan else layers,
        seeds=listed,
        protocol=protocol,
        scan=scan,
        weighting=weighting,
        save_models=save_models,
        retry_failed=retry_failed,
        tolerance=tolerance,
        workers=workers,
        ray=ray,
    )
    failed = bool(result.failures) and not scan
    steps: list[Step] = []
    if save_models and len(result.curves) == 1:
        best = result.best_layer
        directory = next(str(run.directory) for run in result.scored if run.layer == best)
        words = ("export", directory, f"layer-{best}", *(("--layer", str(best)) if scan else ()))
        steps.append(Step(name="export", command=words))
    directories = list(dict.fromkeys(str(run.directory) for run in result.scored)) if save_models else []
    runs: list[dict[str, Any]] = [{**to_dict(run), "directory": str(run.directory)} for run in result.runs]
    return Done(
        result=result,
        as_json={**to_dict(result), "runs": runs},
        notes=[f"the runs are in {result.scored[0].directory.parent}"] if len(result.curves) == 1 else [],
        steps=steps,
        files={f"Weights {number}": directory for number, directory in enumerate(directories, start=1)},
        code=int(failed),
    )
