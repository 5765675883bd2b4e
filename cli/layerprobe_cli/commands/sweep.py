"""layerprobe lab sweep."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerprobe.checks import LEVEL, as_layers, check_seeds
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.values import TaskSettings
from layerprobe_cli import options as o
from layerprobe_cli.output import echo, stdout_errors
from layerprobe_cli.shell import Done, PageCall

if TYPE_CHECKING:
    from layerprobe.finetuning.values import Protocol
    from layerprobe.sweeps.values import Sweep, SweepResult

MACHINE = "device batch_tokens"
"""Options that may be given beside a TOML file, and go before what it says."""
REWRITE = 5.0
"""Seconds from one writing of the report to the next, at least."""
Models = Annotated[
    dict[str, Any],
    o.model_group(
        o.EMBEDDING,
        make=dict,
        type=list[str],
        callback=None,
        metavar="SWEEP.toml|MODEL",
        help="A TOML file, or hub ids and local folders.",
        show_default=False,
    ),
]


def sweep(
    call: PageCall,
    models: Models,
    source: o.Sources,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "all",
    level: o.Level = LEVEL,
    tolerance: float = TOLERANCE,
    workers: Annotated[int | None, {"min": 1}] = None,
    ray: o.Ray = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    print_toml: bool = False,
) -> Done | None:
    """Fine-tune over layers, seeds, tasks and models.

    Some runs go at a time; finished runs are not repeated, and the page of --report is written anew as they finish.
    A killed sweep goes on with the same command; two on one folder share the work; a run that fails is marked, and
    the others go on. SWEEP.toml has layers and seeds, a table `models` for each model (id, layers, random_init, name,
    end_token), a table `tasks` for each task (source, kind, columns and so on), and may have tables `protocol` and
    `options`; --print-toml writes one. Beside it, --device and --batch-tokens override the file.

    Example:  [bold]layerprobe lab sweep google/electra-base-discriminator google-bert/bert-base-cased -t stsb
    --layers 6-12 --seeds 3[/bold]

    Args:
        tolerance: Points that you accept to lose for a smaller model.
        workers: Runs at a time. By default one per GPU, else one.
        retry_failed: Make runs again that are marked as failed.
        dry_run: List the runs, which are done, and stop.
        print_toml: Print the TOML that says the same, and stop.
    """
    if any(model.lower().endswith(".toml") for model in models["name"]):
        plan = _plan_of_toml(call, models)
    else:
        plan = _plan(models, source, tuning, seeds, layers)
    if print_toml:
        from layerprobe.sweeps.values import sweep_toml

        with stdout_errors():
            echo(sweep_toml(plan).removesuffix("\n"))
        return None
    from layerprobe.context import report as report_progress
    from layerprobe.sweeps.run import plan_sweep, run_sweep

    if dry_run:
        call.stop_at(plan_sweep(plan))
    written = 0.0

    def watch(so_far: SweepResult) -> None:
        nonlocal written
        report_progress(f"runs, {so_far.n_failed} failed", so_far.n_done + so_far.n_failed, so_far.n_runs)
        if not so_far.n_left or time.monotonic() - written >= REWRITE:
            call.save_page(Done(result=so_far))
            written = time.monotonic()

    result = run_sweep(plan, workers=workers, ray=ray, retry_failed=retry_failed, watch=watch, tolerance=tolerance)
    return Done(result=result, code=int(bool(result.n_failed)))


def _plan_of_toml(call: PageCall, models: dict[str, Any]) -> Sweep:
    from layerprobe.sweeps.values import load_sweep

    options_used = call.given(o.TASK, o.EMBEDDING, o.TUNING, "seeds layers") - {"cache_dir"}
    if len(models["name"]) > 1 or options_used - set(MACHINE.split()):
        raise typer.BadParameter(
            "expected models, tasks, layers, seeds and how to train in the TOML file alone, got some of them beside it"
        )
    plan = load_sweep(models["name"][0])
    machine = {name: models[name] for name in (*(options_used & set(MACHINE.split())), "cache_dir")}
    return dataclasses.replace(plan, options=dataclasses.replace(plan.options, **machine))


def _plan(models: dict[str, Any], tasks: Sequence[TaskSettings], tuning: Protocol, seeds: str, layers: str) -> Sweep:
    from layerprobe.sweeps.values import Sweep, SweepModel

    if not tasks:
        raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
    names = models["name"]
    for name, flag, otherwise in (
        ("display_name", "--name", "name them in a TOML file"),
        ("blocks", "--keep-blocks", "say it in a TOML file"),
    ):
        if models[name] is not None and len(names) > 1:
            raise typer.BadParameter(f"expected one model for {flag}, got {len(names)}: {otherwise}")
    listed = [Model(**models | {"name": name}) for name in names]
    return Sweep(
        models=tuple(SweepModel(model=model.like(DEFAULTS)) for model in listed),
        tasks=tuple(tasks),
        layers=None if layers == "all" else tuple(as_layers(layers)),
        seeds=check_seeds(seeds),
        protocol=o.protocol_of(listed[0], tuning),
        options=DEFAULTS.like(listed[0]),
    )
