"""A sweep -> its runs, in several processes or on a Ray cluster; finished runs are read, not repeated.

A run is the directory that `finetune` has for the same model, task, layer and seed: they share it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from layerprobe.checks import LEVEL
from layerprobe.context import current
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import Resolved, resolve
from layerprobe.encoders.workers import SharedModel, workers_of
from layerprobe.errors import DataError, LayerProbeError, LostWorkerError, TrainingError
from layerprobe.finetuning.outcomes import compared, outcomes
from layerprobe.finetuning.outputs import run_items
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, is_marked
from layerprobe.finetuning.tuning import agreed, check_layers, run_set
from layerprobe.finetuning.values import FailedRun, FineTuningRun, Protocol
from layerprobe.jobs.crew import Plan, crew_of
from layerprobe.jobs.execute import execute
from layerprobe.results.estimate import Estimate
from layerprobe.results.table import percent
from layerprobe.stats.values import TOLERANCE
from layerprobe.store.store import Store
from layerprobe.sweeps.values import Sweep, SweepCurve, SweepResult, sweep_names
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_settings
from layerprobe.tasks.values import Task
from layerprobe.versions import versions

logger = logging.getLogger(__name__)

_Outcome = FineTuningRun | FailedRun


def run_sweep(
    sweep: Sweep,
    *,
    workers: int | None = None,
    ray: str | None = None,
    retry_failed: bool = False,
    watch: Callable[[SweepResult], None] = lambda result: None,
    tolerance: float = TOLERANCE,
) -> SweepResult:
    """Fine-tune every model on every task at every layer with every seed, in processes of their own.

    The longest run comes first. A run that another process is at is put off; one that fails is marked and the others
    go on; one whose process is killed is begun once more, and is not marked. In a script, call this under
    `if __name__ == "__main__":`, because each process imports the script.

    The `workers` are runs at a time; by default one for each GPU, else one. On a CPU they share its cores. With `ray`,
    the address of a Ray cluster, they are processes on its nodes, by default one for each GPU, else one a node; all
    nodes must see the folder of the runs, and one that fails alone is left out. Runs that
    are marked as failed are made again where `retry_failed`. `watch` is called with the result so far at first, and
    after each run. The smallest layer that is shown to be within `tolerance` points of the best on test is enough.

    Raises:
        ModelError: If a model cannot be resolved.
        DataError: If a task cannot be read, or a model has no such layer.
        StoreError: If the folder of the runs cannot be read, or a result not be written; what is done is kept.
        WorkerError: If no process can do the runs.
        LayerProbeError: If there is no such Ray cluster.
    """
    level = current().level
    root = Store(sweep.options.cache_dir).root
    machines = workers_of(sweep.options, root, count=workers, ray=ray, local="processes")
    runs = _SweepRuns(sweep, level, retry_failed=retry_failed, tolerance=tolerance)
    with crew_of(RunWorker, runs.sets, machines, most=len(runs.missing)) as crew:
        runs.workers = crew.n_at_a_time
        watch(runs.result())
        for job, outcome in execute(runs.plan, crew, done=runs.there, reports=False):
            runs.add(job, outcome)
            watch(runs.result())
    return runs.result()


def plan_sweep(sweep: Sweep) -> Estimate:
    """Return the runs of a sweep in the order in which they are begun, the longest first, and which are done.

    Costs are shares of that of all runs, estimated from blocks kept, width, length of the texts and epochs.

    Raises:
        LayerProbeError: As `run_sweep` does for what is wrong before any training.
    """
    runs = _SweepRuns(sweep, LEVEL)
    whole = sum(runs.costs.values())
    states = {job: "done" if job in runs.runs else "failed" if job in runs.failed else "left" for job in runs.costs}
    names = sweep_names([SimpleNamespace(**runs.names[job.of]) for job in runs.costs])
    counts = ", ".join(
        f"{sum(value == state for value in states.values())} {state}" for state in ("done", "failed", "left")
    )
    left = sum(cost for job, cost in runs.costs.items() if states[job] == "left") / whole
    return Estimate(
        title="Runs",
        jobs=tuple(
            {
                "model": model,
                "task": task,
                "layer": job.layer,
                "seed": job.seed,
                "cost": cost / whole,
                "state": states[job],
            }
            for (model, task), (job, cost) in zip(names, runs.costs.items(), strict=True)
        ),
        details=(f"\n{len(states)} runs, the longest first: {counts} ({percent(left)} of the cost)",),
    )


class _SweepRuns:
    """The runs of a sweep, with resolved models and loaded tasks, and their outcomes so far."""

    def __init__(self, sweep: Sweep, level: float, *, retry_failed: bool = False, tolerance: float = TOLERANCE) -> None:
        self.level, self.tolerance = level, tolerance
        self.tasks: list[Task] = []  # a set each
        self.names: list[dict[str, Any]] = []  # model and task of each set, as fields of a curve
        self.sets: list[RunSet] = []  # of every model and task, in the order of models, then tasks
        tasks = tuple(load_settings(task) for task in sweep.tasks)
        _log_notes(sweep, tasks)
        resolved = (resolve(model.model.like(sweep.options)) for model in sweep.models)
        protocol, checkpoints = _alike(sweep, tuple(resolved))
        costs: dict[RunJob, float] = {}
        for model, checkpoint in zip(sweep.models, checkpoints, strict=True):
            layers = model.layers or sweep.layers or range(count_blocks(checkpoint.config) + 1)
            check_layers(checkpoint, layers)
            shared = SharedModel(checkpoint)
            for number, (task, settings) in enumerate(zip(tasks, sweep.tasks, strict=True), 1):
                for layer, seed in itertools.product(layers, sweep.seeds):
                    costs[RunJob(layer, seed, len(self.sets))] = _cost(checkpoint, task, layer) * protocol.epochs
                about = {"model": checkpoint.label, "task": settings.source, "kind": task.kind, "task_number": number}
                self.names.append(about)
                self.tasks.append(task)
                self.sets.append(run_set(shared, task, protocol, retry_failed=retry_failed))
        _check_different(self.sets, self.names)
        # the longest first; of equals, those of one model together, which is loaded once
        longest_first = sorted(costs, key=lambda job: (-costs[job], job.of, job.seed))
        self.costs = {job: costs[job] for job in longest_first}
        self.plan: Plan[RunJob, _Outcome] = Plan(jobs=self.costs, done=self._there, label=self._label)
        self.there = self.plan.read()
        self.runs = {job: run for job, run in self.there.items() if isinstance(run, FineTuningRun)}
        self.failed = {job: failed for job, failed in self.there.items() if isinstance(failed, FailedRun)}
        self.curves: dict[int, SweepCurve] = {}  # by set, where no run came since
        self.workers: int | None = None  # None: as many as the runs of this sweep took, of the time since it began
        self.began, self.seconds = time.monotonic(), 0.0

    def _there(self, job: RunJob) -> _Outcome | None:
        runs = self.sets[job.of]
        run = runs.folder.load(job.layer, job.seed)
        return run if run is not None or runs.retry_failed else runs.folder.load_failure(job.layer, job.seed)

    def _label(self, job: RunJob) -> str:
        names = self.names[job.of]
        return f"fine-tunes {names['model']} on {names['task']} at layer {job.layer} with seed {job.seed}"

    @property
    def missing(self) -> list[RunJob]:
        return [job for job in self.costs if job not in self.runs and job not in self.failed]

    def add(self, job: RunJob, outcome: _Outcome | LayerProbeError) -> None:
        """Record the outcome of a job."""
        if isinstance(outcome, LostWorkerError):
            # its process may have been lost behind the writing of the result, or another sweep has made it
            outcome = self.sets[job.of].folder.load(job.layer, job.seed) or outcome
        self.curves.pop(job.of, None)
        if isinstance(outcome, FineTuningRun):
            self.runs[job] = outcome
            self.seconds += outcome.seconds
            return
        failed = outcome if isinstance(outcome, FailedRun) else self._failure(job, outcome)
        self.failed[job] = failed
        names = self.names[job.of]
        where = f"{names['model']} on {names['task']}, layer {job.layer}, seed {job.seed}"
        logger.warning("%s failed: %s", where, failed.message)

    def _failure(self, job: RunJob, error: Exception) -> FailedRun:
        """Return why a run failed, from its mark on disk where there is one."""
        if is_marked(error):
            marked = self.sets[job.of].folder.load_failure(job.layer, job.seed)
            if marked is not None:
                return marked
        step = error.step if isinstance(error, TrainingError) else None
        return FailedRun(layer=job.layer, seed=job.seed, message=str(error), step=step, versions=versions())

    def result(self) -> SweepResult:
        """Return the result so far."""
        return SweepResult(
            curves=tuple(map(self._curve, range(len(self.sets)))),
            level=self.level,
            n_runs=len(self.costs),
            seconds_left=self._seconds_left(),
        )

    def _curve(self, number: int) -> SweepCurve:
        if number not in self.curves:
            runs = [run for job, run in self.runs.items() if job.of == number]
            failed = [failed for job, failed in self.failed.items() if job.of == number]
            folder, task = self.sets[number].folder, self.tasks[number]
            items = run_items(task, [(run, folder.run_path(run.layer, run.seed)) for run in runs])
            by_layer = outcomes(runs, items, level=self.level)
            floor = KINDS[task.kind].floors(task.test).get(task.primary)
            self.curves[number] = SweepCurve(
                **self.names[number],
                primary=task.primary,
                outcomes=by_layer,
                failed=tuple(sorted(failed, key=lambda failed: (failed.layer, failed.seed))),
                floor=floor,
                compared=compared(runs, by_layer, items, level=self.level, tolerance=self.tolerance, floor=floor),
            )
        return self.curves[number]

    def _seconds_left(self) -> float | None:
        costs = self.costs
        left = sum(costs[job] for job in self.missing)
        if not left:
            return 0.0
        if not self.runs:
            return None
        pace = sum(run.seconds for run in self.runs.values()) / sum(costs[job] for job in self.runs)
        return left * pace / (self.workers or max(1.0, self.seconds / (time.monotonic() - self.began)))


def _check_different(sets: Sequence[RunSet], names: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError where two models and tasks are the same under other names: each run would count twice."""
    folders: dict[Path, str] = {}
    for tuning_set, named in zip(sets, names, strict=True):
        name = f"{named['model']} on {named['task']}"
        if tuning_set.folder.path in folders:
            other = folders[tuning_set.folder.path]
            raise DataError(f"expected each model and task once, got {other} and {name}, which have the same runs")
        folders[tuning_set.folder.path] = name


def _log_notes(sweep: Sweep, tasks: Sequence[Task]) -> None:
    lines = [
        (level, line if line.startswith(start := f"{settings.source}: ") else start + line)
        for settings, task in zip(sweep.tasks, tasks, strict=True)
        for level, notes in ((logging.INFO, task.notes), (logging.WARNING, task.warnings))
        for line in notes
    ]
    for level, line in dict.fromkeys(lines):  # two tasks can be of one file
        logger.log(level, "%s", line)


def _alike(sweep: Sweep, checkpoints: Sequence[Resolved]) -> tuple[Protocol, list[Resolved]]:
    """Return the protocol and the models, with the pooling and the prompt that all have where the sweep says none."""
    chosen = [agreed(sweep.protocol, checkpoint.with_options(max_length=None)) for checkpoint in checkpoints]
    for name in ("pooling", "prompt"):
        first, *others = (getattr(checkpoint, name) for _, checkpoint in chosen)
        if different := [value for value in others if value != first]:
            raise DataError(
                f"expected one {name} in [options] for models that have different ones by themselves, got none for "
                f"{first!r} and {different[0]!r}"
            )
    return chosen[0][0], [checkpoint for _, checkpoint in chosen]


def _cost(checkpoint: Resolved, task: Task, layer: int) -> float:
    """Return what an epoch costs, in a unit of its own: a block costs about as much as the rest of a step."""
    width = getattr(checkpoint.config, "hidden_size", None) or 1
    return (layer + 1.0) * width**2 * sum(len(text) + 1 for side in task.train.sides for text in side)
