"""A sweep -> its runs, in a pool of processes; finished runs are read, not repeated.

A run is the directory that `finetune` has for the same model, task, layer and seed: they share it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from layerprobe.checks import LEVEL, check_level
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.loading import Checkpoint, resolve_checkpoint, resolve_device
from layerprobe.encoders.options import Options, computed_on, load
from layerprobe.encoders.workers import check_computes, on_ray, ray_cluster, same_model
from layerprobe.errors import (
    DataError,
    InsufficientMemoryError,
    LayerProbeError,
    StoreError,
    TrainingError,
    WorkerError,
)
from layerprobe.finetuning.items import run_items
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.runs import RunFolder, load_or_run, warn_of_cut_texts
from layerprobe.finetuning.tuning import agreed, check_layers, run_folder, with_prompt
from layerprobe.finetuning.values import FailedRun, FineTuningRun
from layerprobe.jobs.processes import Lost, pooled
from layerprobe.jobs.ray_cluster import ray_pooled
from layerprobe.store.store import Store
from layerprobe.sweeps.values import PlannedRun, Sweep, SweepCurve, SweepModel, SweepResult
from layerprobe.tasks.settings import load_settings
from layerprobe.tasks.values import Task
from layerprobe.versions import versions

logger = logging.getLogger(__name__)

_Outcome = FineTuningRun | FailedRun | Lost


def run_sweep(
    sweep: Sweep,
    *,
    workers: int | None = None,
    ray: str | None = None,
    retry_failed: bool = False,
    level: float = LEVEL,
    watch: Callable[[SweepResult], None] = lambda result: None,
) -> SweepResult:
    """Fine-tune every model on every task at every layer with every seed, in processes of their own.

    The longest run comes first. A run that another process is at is put off; one that fails is marked and the others
    go on; one whose process is killed is begun once more, and is not marked. In a script, call this under
    `if __name__ == "__main__":`, because each process imports the script.

    The `workers` are runs at a time; by default one for each GPU, else one. On a CPU they share its cores. With `ray`,
    the address of a Ray cluster, they are processes on its nodes, by default one for each GPU, else one a node; all
    nodes must see the folder of the runs, and one that fails alone is left out. Runs that
    are marked as failed are made again where `retry_failed`. `watch` is called with the result so far at first, and
    after each run.

    Raises:
        ModelError: If a model cannot be resolved.
        DataError: If a task cannot be read, or a model has no such layer.
        StoreError: If the folder of the runs cannot be read, or a result not be written; what is done is kept.
        WorkerError: If no process can do the runs.
        LayerProbeError: If there is no such Ray cluster.
    """
    check_level(level)
    if workers is not None and workers < 1:
        raise DataError(f"expected at least one worker, got {workers}")
    loaded = _LoadedSweep.of(sweep)
    progress = _SweepProgress(loaded, level)
    progress.read(retry_failed=retry_failed)
    ended: Generator[tuple[_Job, _Outcome], None, None]
    if ray is None:
        settings = _worker_settings(loaded, workers, len(progress.missing), retry_failed=retry_failed)
        progress.workers = len(settings)
        ended = pooled(_Worker, settings, progress.missing, waiting=loaded.log_waiting)
    else:
        cluster = ray_cluster(ray, sweep.options, Store(sweep.options.cache_dir).root, workers=workers)
        setting_of = functools.partial(
            loaded.settings_of,
            on_ray(loaded.sweep.options),
            computed_on=computed_on(sweep.options),
            retry_failed=retry_failed,
        )
        ended = ray_pooled(cluster, _Worker, setting_of, progress.missing, waiting=loaded.log_waiting)
    watch(progress.result())
    with contextlib.closing(ended):
        for job, outcome in ended:
            progress.add(job, outcome)
            watch(progress.result())
    return progress.result()


def plan_sweep(sweep: Sweep) -> tuple[PlannedRun, ...]:
    """Return the runs of a sweep in the order in which they are begun, the longest first.

    Raises:
        LayerProbeError: As `run_sweep` does for what is wrong before any training.
    """
    loaded = _LoadedSweep.of(sweep)
    progress = _SweepProgress(loaded, LEVEL)
    progress.read(retry_failed=False)
    whole = sum(loaded.costs.values())
    return tuple(
        PlannedRun(
            **loaded.names(job.model, job.task),
            layer=job.layer,
            seed=job.seed,
            state="done" if job in progress.runs else "failed" if job in progress.failed else "left",
            cost=loaded.costs[job] / whole,
        )
        for job in loaded.jobs
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """One run: which model and which task of the sweep, the blocks kept, and the seed."""

    model: int
    task: int
    layer: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class _LoadedSweep:
    """A sweep with its models resolved and its tasks loaded."""

    sweep: Sweep
    checkpoints: tuple[Checkpoint, ...]
    tasks: tuple[Task, ...]
    folders: Mapping[tuple[int, int], RunFolder]
    """By model and task."""
    costs: Mapping[_Job, float]

    @classmethod
    def of(cls, sweep: Sweep) -> _LoadedSweep:
        tasks = tuple(load_settings(task) for task in sweep.tasks)
        _log_notes(sweep, tasks)
        checkpoints = tuple(_resolve(model, sweep.options) for model in sweep.models)
        sweep = _alike(sweep, checkpoints)
        costs = {}
        for m, (model, checkpoint) in enumerate(zip(sweep.models, checkpoints, strict=True)):
            layers = model.layers or sweep.layers or range(count_blocks(checkpoint.config) + 1)
            check_layers(checkpoint, layers)
            for (t, task), layer, seed in itertools.product(enumerate(tasks), layers, sweep.seeds):
                costs[_Job(m, t, layer, seed)] = _cost(checkpoint, task, layer) * sweep.protocol.epochs
        folders = {
            (m, t): run_folder(checkpoint, task, sweep.protocol, sweep.options)
            for m, checkpoint in enumerate(checkpoints)
            for t, task in enumerate(tasks)
        }
        return cls(sweep=sweep, checkpoints=checkpoints, tasks=tasks, folders=folders, costs=costs)

    @property
    def labels(self) -> list[str]:
        return [checkpoint.label for checkpoint in self.checkpoints]

    def names(self, model: int, task: int) -> dict[str, Any]:
        kind, source = self.tasks[task].kind, self.sweep.tasks[task].source
        return {"model": self.labels[model], "task": source, "kind": kind, "task_number": task + 1}

    @property
    def jobs(self) -> list[_Job]:
        """The longest first; of equals, those of one model together, which is loaded once."""
        return sorted(self.costs, key=lambda job: (-self.costs[job], job.model, job.task, job.seed))

    def folder(self, job: _Job) -> RunFolder:
        return self.folders[job.model, job.task]

    def settings_of(
        self, options: Options, threads: int, *, computed_on: str | None = None, retry_failed: bool
    ) -> _WorkerSettings:
        return _WorkerSettings(
            sweep=self.sweep,
            identities=tuple(checkpoint.identity for checkpoint in self.checkpoints),
            tasks=tuple(with_prompt(task, options.prompt or "") for task in self.tasks),
            folders=self.folders,
            options=options,
            computed_on=computed_on,
            threads=threads,
            retry_failed=retry_failed,
        )

    def log_waiting(self, job: _Job) -> None:
        model, task = self.labels[job.model], self.sweep.tasks[job.task].source
        what = "waiting for another process that fine-tunes %s on %s at layer %d with seed %d"
        logger.info(what, model, task, job.layer, job.seed)


def _log_notes(sweep: Sweep, tasks: Sequence[Task]) -> None:
    lines = [
        (level, f"{settings.source}: {line}")
        for settings, task in zip(sweep.tasks, tasks, strict=True)
        for level, notes in ((logging.INFO, task.notes), (logging.WARNING, task.warnings))
        for line in notes
    ]
    for level, line in dict.fromkeys(lines):  # two tasks can be of one file
        logger.log(level, "%s", line)


def _resolve(model: SweepModel, options: Options) -> Checkpoint:
    return resolve_checkpoint(model.model, trust_remote_code=options.trust_remote_code)


def _alike(sweep: Sweep, checkpoints: Sequence[Checkpoint]) -> Sweep:
    """Return the sweep with the pooling and the prompt that all its models have where it says none.

    Raises:
        DataError: If they have different ones.
    """
    chosen = [agreed(sweep.protocol, sweep.options, checkpoint) for checkpoint in checkpoints]
    for name in ("pooling", "prompt"):
        first, *others = (getattr(options, name) for _, options in chosen)
        if different := [value for value in others if value != first]:
            raise DataError(
                f"expected one {name} in [options] for models that have different ones by themselves, got none for "
                f"{first!r} and {different[0]!r}"
            )
    protocol, options = chosen[0]
    return replace(
        sweep, protocol=protocol, options=replace(sweep.options, pooling=options.pooling, prompt=options.prompt)
    )


def _cost(checkpoint: Checkpoint, task: Task, layer: int) -> float:
    """Return what an epoch costs, in a unit of its own: a block costs about as much as the rest of a step."""
    width = getattr(checkpoint.config, "hidden_size", None) or 1
    return (layer + 1.0) * width**2 * sum(len(text) + 1 for side in task.train.sides for text in side)


class _SweepProgress:
    """The runs of a sweep so far."""

    def __init__(self, loaded: _LoadedSweep, level: float) -> None:
        self.loaded, self.level = loaded, level
        self.runs: dict[_Job, FineTuningRun] = {}
        self.failed: dict[_Job, FailedRun] = {}
        self.curves: dict[tuple[int, int], SweepCurve] = {}  # by model and task, where no run came since
        self.workers: int | None = None  # None: as many as the runs of this sweep took, of the time since it began
        self.began, self.seconds = time.monotonic(), 0.0

    def read(self, *, retry_failed: bool) -> None:
        """Load what is stored."""
        for job in self.loaded.jobs:
            folder = self.loaded.folder(job)
            if run := folder.load(job.layer, job.seed):
                self.runs[job] = run
            elif not retry_failed and (failed := folder.load_failure(job.layer, job.seed)):
                self.failed[job] = failed

    @property
    def missing(self) -> list[_Job]:
        return [job for job in self.loaded.jobs if job not in self.runs and job not in self.failed]

    def add(self, job: _Job, outcome: _Outcome) -> None:
        """Take what a process sent."""
        if isinstance(outcome, Lost):
            # its process may have been lost behind the writing of the result, or another sweep has made it
            outcome = self.loaded.folder(job).load(job.layer, job.seed) or _lost(job, outcome)
        self.curves.pop((job.model, job.task), None)
        if isinstance(outcome, FineTuningRun):
            self.runs[job] = outcome
            self.seconds += outcome.seconds
            return
        self.failed[job] = outcome
        model, task = self.loaded.labels[job.model], self.loaded.sweep.tasks[job.task].source
        logger.warning("%s on %s, layer %d, seed %d failed: %s", model, task, job.layer, job.seed, outcome.message)

    def result(self) -> SweepResult:
        """Return the result so far."""
        return SweepResult(
            curves=tuple(self._curve(*place) for place in self.loaded.folders),
            level=self.level,
            n_runs=len(self.loaded.costs),
            seconds_left=self._seconds_left(),
        )

    def _curve(self, model: int, task: int) -> SweepCurve:
        place = model, task
        if place not in self.curves:
            runs = [run for job, run in self.runs.items() if (job.model, job.task) == place]
            failed = [each for job, each in self.failed.items() if (job.model, job.task) == place]
            folder, data = self.loaded.folders[place], self.loaded.tasks[task]
            items = run_items(data, [(run, folder.run_path(run.layer, run.seed)) for run in runs])
            self.curves[place] = SweepCurve(
                **self.loaded.names(model, task),
                primary=data.primary,
                outcomes=outcomes(runs, items, level=self.level),
                failed=tuple(sorted(failed, key=lambda each: (each.layer, each.seed))),
            )
        return self.curves[place]

    def _seconds_left(self) -> float | None:
        costs = self.loaded.costs
        left = sum(costs[job] for job in self.missing)
        if not left:
            return 0.0
        if not self.runs:
            return None
        pace = sum(run.seconds for run in self.runs.values()) / sum(costs[job] for job in self.runs)
        return left * pace / (self.workers or max(1.0, self.seconds / (time.monotonic() - self.began)))


# ---- in the processes ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _WorkerSettings:
    """What a process needs; it resolves the models again, because some have code of their own."""

    sweep: Sweep
    identities: tuple[dict[str, Any], ...]
    tasks: tuple[Task, ...]
    folders: Mapping[tuple[int, int], RunFolder]
    options: Options
    computed_on: str | None
    """On what, as the folders say; None: on what the sweep began, which is this machine."""
    threads: int
    retry_failed: bool


def _worker_settings(
    loaded: _LoadedSweep, workers: int | None, n_jobs: int, *, retry_failed: bool
) -> list[_WorkerSettings]:
    options = loaded.sweep.options
    device = resolve_device(options.device)
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if str(device) == "cuda" else [str(device)]
    # a process without a run would leave its cores idle
    count = max(1, min(workers or len(gpus), n_jobs))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [
        loaded.settings_of(
            replace(options, device=gpus[i % len(gpus)]), max(1, cores // count), retry_failed=retry_failed
        )
        for i in range(count)
    ]


class _Worker:
    """Makes one run after another, and keeps the encoder of the last one."""

    def __init__(self, settings: _WorkerSettings) -> None:
        self.settings = settings
        if settings.computed_on is not None:
            check_computes(settings.options, settings.computed_on)
        # two processes that both use all cores wait for each other at every step
        torch.set_num_threads(min(settings.threads, torch.get_num_threads()))
        self.encoder = functools.lru_cache(maxsize=1)(self._load)
        self.warned: set[tuple[int, int]] = set()

    def _load(self, model: int) -> Encoder:
        named, options = self.settings.sweep.models[model], self.settings.options
        checkpoint = same_model(named.model, self.settings.identities[model], options)
        return load(checkpoint, options)

    def _encoder_of(self, model: int, task: int) -> Encoder:
        encoder = self.encoder(model)
        if (model, task) not in self.warned:
            self.warned.add((model, task))
            warn_of_cut_texts(encoder, self.settings.tasks[task], self.settings.sweep.protocol)
        return encoder

    def __call__(self, job: _Job) -> FineTuningRun | FailedRun | None:
        """Return the run, or why it failed; None where another process is at it.

        Raises:
            StoreError: If the run cannot be kept, as the next could not.
            WorkerError: If the model is another one here.
        """
        folder = self.settings.folders[job.model, job.task]
        try:
            return load_or_run(
                folder,
                lambda: self._encoder_of(job.model, job.task),
                job.layer,
                self.settings.tasks[job.task],
                seed=job.seed,
                protocol=self.settings.sweep.protocol,
                batch_tokens=self.settings.options.batch_tokens,
                wait=False,
                retry_failed=self.settings.retry_failed,
            )
        except TrainingError as error:
            # what the mark says, where there is one of this failure
            marked = None if isinstance(error, InsufficientMemoryError) else folder.load_failure(job.layer, job.seed)
            return marked or _failed(job, str(error), error.step)
        except (StoreError, WorkerError):
            raise
        except LayerProbeError as error:
            return _failed(job, str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return _failed(job, "out of memory: use fewer workers, a smaller batch or a lower maximum length")


def _lost(job: _Job, lost: Lost) -> FailedRun:
    """Return why there is no run; it is not marked, because that does not follow from its numbers."""
    if lost.trace is not None:
        logger.error("%s", lost.trace)
        return _failed(job, f"an error that was not expected: {lost.trace.splitlines()[-1]}")
    if lost.exit_code is None:
        how = "again and again"
    else:
        how = f"twice ({f'signal {-lost.exit_code}' if lost.exit_code < 0 else f'exit code {lost.exit_code}'})"
    return _failed(job, f"its process was ended {how}: if memory ran out, use fewer workers or a smaller batch")


def _failed(job: _Job, message: str, step: int | None = None) -> FailedRun:
    return FailedRun(layer=job.layer, seed=job.seed, message=message, step=step, versions=versions())
