"""layerprobe scan."""

from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import DryRun, Embedding, JointTuning, Level, Model, Ray, Report, TaskSource, Workers
from layerprobe_cli.output import Output
from layerprobe_cli.tables import runs_json, weights_lines


def scan(
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    tuning: JointTuning,
    report: Report,
    output: Output,
    level: Level = LEVEL,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep the model of every run; `layerprobe export` cuts it anywhere.")
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Draw the curve by one run with a loss at every layer.

    The scores rank the layers, so that few are left to fine-tune truncated; those of the whole model are its own, not
    TMFT's. Its model can be truncated at any layer afterwards. Finished runs are not repeated.

    Example:  [bold]layerprobe scan google/electra-base-discriminator -t stsb[/bold]
    """
    seeds = tuning.seed_list()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.items import run_items
    from layerprobe.finetuning.outcomes import outcomes
    from layerprobe.finetuning.plan import plan_tuning
    from layerprobe.finetuning.tuning import scan as scan_layers
    from layerprobe.finetuning.tuning import scan_models
    from layerprobe.finetuning.values import outcomes_table

    checkpoint = embedding.resolve(model)
    protocol = tuning.protocol(embedding)
    if dry_run:
        scans = plan_tuning(checkpoint, task, block_steps=lambda n: len(seeds) * (n + 1), protocol=protocol)
        output.plan(scans, dry_run=True)
    with output.progress():
        runs = scan_layers(
            checkpoint,
            task,
            seeds=seeds,
            weighting=tuning.weighting,
            protocol=protocol,
            save_models=save_models,
            ray=ray,
            workers=workers,
        )
    failures = [f"layer {failed.layer} is left out: {failed.message}" for run in runs for failed in run.failures]
    directories = scan_models(checkpoint, runs, task)
    output.notes((*task.notes, f"the runs are in {directories[0].parent}"), (*task.warnings, *failures))
    by_layer = [
        (run.truncated(layer), directory)
        for run, directory in zip(runs, directories, strict=True)
        for layer, test in enumerate(run.test)
        if test is not None
    ]
    layer_outcomes = outcomes([run for run, _ in by_layer], run_items(task, by_layer), level=level)
    saved = directories if save_models else []
    best = max(layer_outcomes, key=lambda each: sum(each.validation[each.primary]) / len(each.seeds))
    output.result(
        runs,
        outcomes_table(layer_outcomes),
        f"By validation, layer {best.layer} is best in this one model; truncated alone, layers can differ.",
        *weights_lines(saved, " --layer L"),
        as_json=runs_json(runs, layer_outcomes, saved),
    )
    about = {"model": checkpoint.label, "task": task.name, "level": level, "what": "scan"}
    report.write(output, layer_outcomes, **about, page="outcomes")
