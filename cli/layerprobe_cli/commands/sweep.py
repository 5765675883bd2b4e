"""layerprobe lab sweep."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli.options import (
    Embedding,
    Layers,
    Level,
    Ray,
    Report,
    TaskSources,
    Tuning,
    given_options,
    listed_layers,
)
from layerprobe_cli.output import Output

if TYPE_CHECKING:
    from layerprobe.sweeps.values import Sweep, SweepResult

MACHINE = ("device", "batch_tokens")
"""Options that may be given beside a TOML file, and go before what it says."""
REWRITE = 5.0
"""Seconds from one writing of the report to the next, at least."""


def sweep(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP.toml|MODEL", help="A TOML file, or hub ids and local folders.", show_default=False
        ),
    ],
    source: TaskSources,
    embedding: Embedding,
    tuning: Tuning,
    output: Output,
    report: Report,
    layers: Layers = "all",
    level: Level = LEVEL,
    tolerance: Annotated[float, typer.Option(help="Points that you accept to lose for a smaller model.")] = TOLERANCE,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time.", show_default="one per GPU, else one")
    ] = None,
    ray: Ray = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Make runs again that are marked as failed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, which are done, and stop.")] = False,
    print_toml: Annotated[bool, typer.Option("--print-toml", help="Print the TOML that says the same, and stop.")] = (
        False
    ),
) -> None:
    """Fine-tune over layers, seeds, tasks and models.

    Some runs go at a time; finished runs are not repeated, and the page of --report is written anew as they finish.
    A killed sweep goes on with the same command; two on one folder share the work; a run that fails is marked, and
    the others go on. SWEEP.toml has layers and seeds, a table `models` for each model (id, layers, random_init, name,
    end_token), a table `tasks` for each task (source, kind, columns and so on), and may have tables `protocol` and
    `options`; --print-toml writes one. Beside it, --device and --batch-tokens go before what it says.

    Example:  [bold]layerprobe lab sweep google/electra-base-discriminator google-bert/bert-base-cased -t stsb
    --layers 6-12 --seeds 3[/bold]
    """
    if any(model.lower().endswith(".toml") for model in models):
        plan = _plan_of_toml(context, models, embedding)
    else:
        plan = _plan(models, source, embedding, tuning, layers)
    if print_toml:
        from layerprobe.sweeps.toml import sweep_toml

        typer.echo(sweep_toml(plan), nl=False)
        return
    if dry_run:
        from layerprobe.sweeps.run import plan_sweep
        from layerprobe.sweeps.values import planned_table

        planned = plan_sweep(plan)
        output.result(planned, planned_table(planned))
        return

    from layerprobe.context import report as report_progress
    from layerprobe.sweeps.run import run_sweep

    page = _Rewritten(report)

    def watch(so_far: SweepResult) -> None:
        report_progress(f"runs, {so_far.n_failed} failed", so_far.n_done + so_far.n_failed, so_far.n_runs)
        page.update(so_far)

    with output.progress(level):
        result = run_sweep(plan, workers=workers, ray=ray, retry_failed=retry_failed, watch=watch, tolerance=tolerance)
    output.result(result, result.table, *_counts(result))
    report.name(output)
    if result.n_failed:
        raise typer.Exit(1)


def _plan_of_toml(context: typer.Context, models: Sequence[str], embedding: Embedding) -> Sweep:
    from layerprobe.sweeps.toml import load_sweep

    given = given_options(context, TaskSources, Embedding, Tuning, others=("layers",)) - {"cache_dir"}
    if len(models) > 1 or given - set(MACHINE):
        raise typer.BadParameter(
            "expected models, tasks, layers, seeds and how to train in the TOML file alone, got some of them beside it"
        )
    plan = load_sweep(models[0])
    machine = {name: getattr(embedding, name) for name in MACHINE if name in given}
    options = dataclasses.replace(plan.options, **machine, cache_dir=embedding.cache_dir)
    return dataclasses.replace(plan, options=options)


def _plan(models: Sequence[str], source: TaskSources, embedding: Embedding, tuning: Tuning, layers: str) -> Sweep:
    from layerprobe.encoders.model import ModelSpec
    from layerprobe.sweeps.values import Sweep, SweepModel

    seeds, tasks = tuning.seed_list(), source.all_settings()
    if embedding.name is not None and len(models) > 1:
        raise typer.BadParameter(f"expected one model for --name, got {len(models)}: name them in a TOML file")
    blocks = embedding.kept_blocks()
    if blocks is not None and len(models) > 1:
        raise typer.BadParameter(f"expected one model for --keep-blocks, got {len(models)}: say it in a TOML file")
    random_init, name, end_token = embedding.random_init, embedding.name, embedding.end_token
    specs = (
        ModelSpec(model, random_init=random_init, display_name=name, end_token=end_token, blocks=blocks)
        for model in models
    )
    return Sweep(
        models=tuple(SweepModel(model=spec) for spec in specs),
        tasks=tasks,
        layers=listed_layers(layers),
        seeds=seeds,
        protocol=tuning.protocol(embedding),
        options=embedding.options(),
    )


class _Rewritten:
    """The page, written anew now and then."""

    def __init__(self, report: Report) -> None:
        self.report, self.written = report, 0.0

    def update(self, result: SweepResult) -> None:
        if result.n_left and time.monotonic() - self.written < REWRITE:
            return
        self.report.save(result)
        self.written = time.monotonic()


def _counts(result: SweepResult) -> Iterator[str]:
    yield f"\n{result.n_runs} runs: {result.n_done} done, {result.n_failed} failed"
    if result.n_failed:
        yield "Means and intervals are over the seeds that did not fail:"
        yield from (f"failed: {failure}" for failure in result.failures)
        yield "To try these again: --retry-failed"
