"""layerprobe sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Json,
    Layers,
    Level,
    Loading,
    Quiet,
    TaskSource,
    Tuning,
    given_options,
    library_options,
    listed_layers,
    two_numbers,
)
from layerprobe_cli.output import log_to_stderr, print_json, print_table

if TYPE_CHECKING:
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.sweeps.values import PlannedRun, Sweep, SweepCurve, SweepResult
    from layerprobe.tasks.values import TaskSettings

MACHINE = ("device", "batch_tokens")
"""Options that may be given beside a TOML file, and go before what it says."""
REWRITE = 5.0
"""Seconds from one writing of the report to the next, at least."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSources(TaskSource):
    """Several tasks that are read alike."""

    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="A task as `layerprobe finetune` takes it. Given again: further tasks, read alike.",
            rich_help_panel="Data",
            show_default=False,
        ),
    ] = None  # type: ignore[assignment]

    def sweep_tasks(self) -> tuple[TaskSettings, ...]:
        """Return where the tasks are."""
        from layerprobe.tasks.values import TaskSettings

        if not self.task:
            raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
        return tuple(
            TaskSettings(
                source=source,
                columns=None if self.columns is None else tuple(part.strip() for part in self.columns.split(",")),
                kind=self.kind,
                merge=self.merge,
                score_range=two_numbers(self.score_range),
                validation=None if self.validation is None else str(self.validation),
                test=None if self.test is None else str(self.test),
                split_seed=self.split_seed,
            )
            for source in self.task
        )


def sweep(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP.toml|MODEL", help="A TOML file, or hub ids and local folders.", show_default=False
        ),
    ],
    source: TaskSources,
    loading: Loading,
    embedding: Embedding,
    tuning: Tuning,
    layers: Layers = "all",
    level: Level = LEVEL,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Runs at a time.", show_default="one a GPU, else one"),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Make runs again that are marked as failed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, which are done, and stop.")] = False,
    print_toml: Annotated[bool, typer.Option("--print-toml", help="Print the TOML that says the same, and stop.")] = (
        False
    ),
    report: Annotated[
        Path | None,
        typer.Option(help="An HTML page with the curves, written anew as runs finish.", show_default=False),
    ] = None,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune over layers, seeds, tasks and models.

    Some runs go at a time; finished runs are not repeated. A killed sweep goes on with the same command; two on one
    folder share the work; a run that fails is marked, and the others go on. SWEEP.toml has layers and seeds, a
    table `models` for each model (id, layers, random_init), a table `tasks` for each task (source, kind, columns
    and so on), and may have tables `protocol` and `options`; --print-toml writes one. Beside it, --device and
    --batch-tokens go before what it says.

    Example:  [bold]layerprobe sweep google/electra-base-discriminator google-bert/bert-base-cased -t stsb
    --layers 6-12 --seeds 3[/bold]
    """
    log_to_stderr(quiet=quiet)
    if any(model.lower().endswith(".toml") for model in models):
        plan = _plan_of_toml(context, models, loading, embedding, cache_dir)
    else:
        plan = _plan(models, source, loading, embedding, tuning, layers, cache_dir)
    if print_toml:
        from layerprobe.sweeps.toml import sweep_toml

        typer.echo(sweep_toml(plan), nl=False)
        return
    if dry_run:
        from layerprobe.sweeps.run import planned_runs

        planned = planned_runs(plan)
        if json:
            print_json(planned)
        else:
            _print_planned(planned)
        return

    from layerprobe.sweeps.run import sweep as run_sweep

    page = None if report is None else _Report(report)
    with _live_table(quiet=quiet) as show:

        def watch(found: SweepResult) -> None:
            show(found)
            if page is not None:
                page.update(found)

        result = run_sweep(plan, workers=workers, retry_failed=retry_failed, level=level, watch=watch)
    if json:
        print_json(result)
    else:
        _print_result(result, report)
    if result.n_failed:
        raise typer.Exit(1)


def _plan_of_toml(
    context: typer.Context, models: Sequence[str], loading: Loading, embedding: Embedding, cache_dir: Path | None
) -> Sweep:
    from layerprobe.sweeps.toml import load_sweep

    given = given_options(context, TaskSources, Loading, Embedding, Tuning, others=("layers",))
    if len(models) > 1 or given - set(MACHINE):
        raise typer.BadParameter(
            "expected models, tasks, layers, seeds and how to train in the TOML file alone, got some of them beside it"
        )
    plan = load_sweep(models[0])
    values = {**vars(loading), **vars(embedding)}
    machine = {name: values[name] for name in MACHINE if name in given}
    return dataclasses.replace(plan, options=dataclasses.replace(plan.options, **machine, cache_dir=cache_dir))


def _plan(
    models: Sequence[str],
    source: TaskSources,
    loading: Loading,
    embedding: Embedding,
    tuning: Tuning,
    layers: str,
    cache_dir: Path | None,
) -> Sweep:
    from layerprobe.sweeps.values import Sweep, SweepModel

    seeds, tasks = tuning.seed_list(), source.sweep_tasks()
    return Sweep(
        models=tuple(SweepModel(id=model, random_init=loading.random_init) for model in models),
        tasks=tasks,
        layers=listed_layers(layers),
        seeds=seeds,
        protocol=tuning.protocol(embedding),
        options=library_options(loading, embedding, cache_dir=cache_dir),
    )


class _Report:
    """The page, written anew now and then."""

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, 0.0

    def update(self, found: SweepResult) -> None:
        from layerprobe.pages.page import write_page
        from layerprobe.sweeps.page import sweep_page

        if found.n_left and time.monotonic() - self.written < REWRITE:
            return
        write_page(sweep_page(found), self.path)
        self.written = time.monotonic()


# ---- while it runs ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _live_table(*, quiet: bool) -> Iterator[Callable[[SweepResult], None]]:
    """Show the scores so far on stderr; nothing when it is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda found: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    shown: list[tuple[SweepResult, float]] = []

    def render() -> Any:
        return _table_so_far(shown[-1][0], time.monotonic() - shown[-1][1]) if shown else Text("")

    console = Console(stderr=True)
    with Live(console=console, get_renderable=render, transient=True, refresh_per_second=2, redirect_stdout=False):
        log_to_stderr(quiet=quiet)  # above the table
        yield lambda found: shown.append((found, time.monotonic()))
    log_to_stderr(quiet=quiet)


def _table_so_far(found: SweepResult, seconds_ago: float) -> Any:
    from rich.table import Table

    from layerprobe.progress import duration
    from layerprobe.sweeps.values import sweep_names

    table = Table(caption=f"{found.n_done} done, {found.n_failed} failed, {found.n_left} left", caption_justify="left")
    if found.seconds_left is not None and found.n_left:
        table.caption = f"{table.caption}, about {duration(max(found.seconds_left - seconds_ago, 1.0))}"
    table.add_column("layer", justify="right")
    for model, task in sweep_names(found.curves):
        table.add_column(f"{model} on {task}".replace("[", r"\["), justify="right")
    cells = [_cells_by_layer(curve) for curve in found.curves]
    for layer in sorted({layer for column in cells for layer in column}):
        table.add_row(str(layer), *(column.get(layer, "") for column in cells))
    return table


def _cells_by_layer(curve: SweepCurve) -> dict[int, str]:
    cells = {each.layer: "failed" for each in curve.failed}
    return cells | {found.layer: _score(found) for found in curve.outcomes}


def _score(found: LayerOutcome) -> str:
    return f"{found.mean:.2f}" if found.std is None else f"{found.mean:.2f} ± {found.std:.2f}"


# ---- before and after ---------------------------------------------------------------------------------


def _print_planned(planned: Sequence[PlannedRun]) -> None:
    from layerprobe.sweeps.values import sweep_names

    print_table(
        ("model", "task", "layer", "seed", "cost", "state"),
        [
            (*names, str(run.layer), str(run.seed), f"{100 * run.cost:.1f} %", run.state)
            for names, run in zip(sweep_names(planned), planned, strict=True)
        ],
    )
    count = {state: sum(run.state == state for run in planned) for state in ("done", "failed", "left")}
    left = sum(run.cost for run in planned if run.state == "left")
    states = ", ".join(f"{n} {state}" for state, n in count.items())
    typer.echo(f"\n{len(planned)} runs, the longest first: {states} ({100 * left:.0f} % of the cost)")


def _print_result(result: SweepResult, report: Path | None) -> None:
    from layerprobe.metrics.names import metric_title
    from layerprobe.sweeps.values import sweep_names

    names = [f"{model} on {task}" for model, task in sweep_names(result.curves)]
    header = ("model and task", "layer", "parameters", "metric", "test", "std", "interval", "seeds", "failed")
    rows = []
    for name, curve in zip(names, result.curves, strict=True):
        by_layer = {found.layer: found for found in curve.outcomes}
        for layer in sorted({*by_layer, *(each.layer for each in curve.failed)}):
            failed = sum(each.layer == layer for each in curve.failed)
            cells = _outcome_cells(by_layer.get(layer))
            rows.append((name, str(layer), cells[0], metric_title(curve.primary), *cells[1:], str(failed or "")))
    print_table(header, rows)
    typer.echo(f"\n{result.n_runs} runs: {result.n_done} done, {result.n_failed} failed")
    if result.n_failed:
        typer.echo("Means and intervals are over the seeds that did not fail:")
    for name, curve in zip(names, result.curves, strict=True):
        for each in curve.failed:
            at = "" if each.step is None else f" at step {each.step}"
            typer.echo(f"failed: {name}, layer {each.layer}, seed {each.seed}{at}: {each.message}")
    if result.n_failed:
        typer.echo("To try these again: --retry-failed")
    if report is not None:
        typer.echo(f"Report: {report}")


def _outcome_cells(found: LayerOutcome | None) -> tuple[str, ...]:
    if found is None:
        return "", "", "", "", "0"
    interval = "" if found.interval is None else f"{found.interval[0]:.2f} to {found.interval[1]:.2f}"
    spread = "" if found.std is None else f"{found.std:.2f}"
    return f"{found.parameters / 1e6:.2f} M", f"{found.mean:.2f}", spread, interval, str(len(found.seeds))
