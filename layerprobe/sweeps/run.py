"""A sweep -> its runs, in a pool of processes; finished runs are read, not repeated.

A run is the directory that `finetune` has for the same model, task, layer and seed: they share it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from layerprobe.checks import LEVEL, check_level
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import Checkpoint, resolve_checkpoint, resolve_device
from layerprobe.encoders.options import Options, load
from layerprobe.errors import DataError, InsufficientMemoryError, LayerProbeError, ModelError, StoreError, TrainingError
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.memory import is_out_of_memory
from layerprobe.finetuning.runs import RunFolder, load_or_run, told_what_is_cut
from layerprobe.finetuning.tuning import check_layers, run_folder, with_prompt
from layerprobe.finetuning.values import FailedRun, FineTuningRun
from layerprobe.pool import Lost, pooled
from layerprobe.sweeps.values import PlannedRun, Sweep, SweepCurve, SweepModel, SweepResult
from layerprobe.tasks.settings import load_settings
from layerprobe.tasks.values import Task
from layerprobe.versions import versions

logger = logging.getLogger(__name__)

_Answer = FineTuningRun | FailedRun | StoreError | Lost


def sweep(
    plan: Sweep,
    *,
    workers: int | None = None,
    retry_failed: bool = False,
    level: float = LEVEL,
    watch: Callable[[SweepResult], None] = lambda result: None,
) -> SweepResult:
    """Fine-tune every model on every task at every layer with every seed, in processes of their own.

    The longest run comes first. A run that another process is at is put off; one that fails is marked and the others
    go on; one whose process is killed is begun once more, and is not marked. In a script, call this under
    `if __name__ == "__main__":`, because each process imports the script.

    Args:
        plan: What to run.
        workers: Runs at a time; by default one for each GPU, else one. On a CPU they share its cores.
        retry_failed: Whether runs that are marked as failed are made again.
        level: Confidence level of the intervals.
        watch: Shown what there is at first, and after each run.

    Returns:
        What the runs showed, also which failed.

    Raises:
        ModelError: If a model cannot be had.
        DataError: If a task cannot be read, or a model has no such layer.
        StoreError: If the folder of the runs cannot be read, or a result not be written; what is done is kept.
    """
    check_level(level)
    if workers is not None and workers < 1:
        raise DataError(f"expected at least one worker, got {workers}")
    found = _found(plan)
    state = _State(found, level)
    state.read(retry_failed=retry_failed)
    missing = [job for job in found.jobs if job not in state.runs and job not in state.failed]
    settings = _settings(found, workers, len(missing), retry_failed=retry_failed)
    state.workers = len(settings)
    watch(state.result())
    answers: Generator[tuple[_Job, _Answer], None, None] = pooled(_Worker, settings, missing, waiting=found.say_waiting)
    with contextlib.closing(answers):
        for job, answer in answers:
            state.add(job, answer)
            watch(state.result())
    return state.result()


def planned_runs(plan: Sweep) -> tuple[PlannedRun, ...]:
    """Return the runs of a sweep in the order in which they are begun, the longest first.

    Raises:
        ModelError: If a model cannot be had.
        DataError: If a task cannot be read, or a model has no such layer.
        StoreError: If the folder of the runs cannot be read.
    """
    found = _found(plan)
    state = _State(found, LEVEL)
    state.read(retry_failed=False)
    whole = sum(found.costs.values())
    return tuple(
        PlannedRun(
            model=found.labels[job.model],
            task=plan.tasks[job.task].source,
            kind=found.tasks[job.task].kind,
            task_number=job.task + 1,
            layer=job.layer,
            seed=job.seed,
            state="done" if job in state.runs else "failed" if job in state.failed else "left",
            cost=found.costs[job] / whole,
        )
        for job in found.jobs
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """One run: which model and which task of the plan, the blocks kept, and the seed."""

    model: int
    task: int
    layer: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A plan with its models found and its tasks read."""

    plan: Sweep
    checkpoints: tuple[Checkpoint, ...]
    tasks: tuple[Task, ...]
    folders: Mapping[tuple[int, int], RunFolder]
    """By model and task."""
    costs: Mapping[_Job, float]

    @property
    def labels(self) -> list[str]:
        return [checkpoint.label for checkpoint in self.checkpoints]

    @property
    def jobs(self) -> list[_Job]:
        """The longest first; of equals, those of one model together, which is loaded once."""
        return sorted(self.costs, key=lambda job: (-self.costs[job], job.model, job.task, job.seed))

    def folder(self, job: _Job) -> RunFolder:
        return self.folders[job.model, job.task]

    def say_waiting(self, job: _Job) -> None:
        logger.info(
            "waiting for another process that fine-tunes %s on %s at layer %d with seed %d",
            self.labels[job.model],
            self.plan.tasks[job.task].source,
            job.layer,
            job.seed,
        )


def _found(plan: Sweep) -> _Found:
    tasks = tuple(load_settings(task) for task in plan.tasks)
    told = [
        (level, f"{source.source}: {line}")
        for source, task in zip(plan.tasks, tasks, strict=True)
        for level, lines in ((logging.INFO, task.notes), (logging.WARNING, task.warnings))
        for line in lines
    ]
    for level, line in dict.fromkeys(told):  # two tasks can be of one file
        logger.log(level, "%s", line)
    checkpoints = tuple(_find(model, plan.options) for model in plan.models)
    costs = {}
    for m, (model, checkpoint) in enumerate(zip(plan.models, checkpoints, strict=True)):
        layers = model.layers or plan.layers or range(count_blocks(checkpoint.config) + 1)
        check_layers(checkpoint, layers)
        for t, task in enumerate(tasks):
            costs.update(
                {
                    _Job(m, t, layer, seed): _cost(checkpoint, task, layer) * plan.protocol.epochs
                    for layer in layers
                    for seed in plan.seeds
                }
            )
    return _Found(
        plan=plan,
        checkpoints=checkpoints,
        tasks=tasks,
        folders={
            (m, t): run_folder(checkpoint, task, plan.protocol, plan.options)
            for m, checkpoint in enumerate(checkpoints)
            for t, task in enumerate(tasks)
        },
        costs=costs,
    )


def _find(model: SweepModel, options: Options) -> Checkpoint:
    return resolve_checkpoint(model.model, trust_remote_code=options.trust_remote_code)


def _cost(checkpoint: Checkpoint, task: Task, layer: int) -> float:
    """Return what an epoch costs, in a unit of its own: a block costs about as much as the rest of a step."""
    width = getattr(checkpoint.config, "hidden_size", None) or 1
    sides = (task.train.first, task.train.second or ())
    return (layer + 1.0) * width**2 * sum(len(text) + 1 for texts in sides for text in texts)


class _State:
    """What there is of a sweep so far."""

    def __init__(self, found: _Found, level: float) -> None:
        self.found, self.level = found, level
        self.runs: dict[_Job, FineTuningRun] = {}
        self.failed: dict[_Job, FailedRun] = {}
        self.workers = 1

    def read(self, *, retry_failed: bool) -> None:
        """Take what is on disk."""
        for job in self.found.jobs:
            folder = self.found.folder(job)
            run = folder.load(job.layer, job.seed)
            failed = None if run or retry_failed else folder.load_failure(job.layer, job.seed)
            if run is not None:
                self.runs[job] = run
            elif failed is not None:
                self.failed[job] = failed

    def add(self, job: _Job, answer: _Answer) -> None:
        """Take the answer of a process; raise StoreError where a result cannot be kept, as the next could not."""
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, Lost):
            # its process may have been lost behind the writing of the result, or another sweep has made it
            answer = self.found.folder(job).load(job.layer, job.seed) or _lost(job, answer)
        if isinstance(answer, FineTuningRun):
            self.runs[job] = answer
            return
        self.failed[job] = answer
        logger.warning(
            "%s on %s, layer %d, seed %d failed: %s",
            self.found.labels[job.model],
            self.found.plan.tasks[job.task].source,
            job.layer,
            job.seed,
            answer.message,
        )

    def result(self) -> SweepResult:
        """Return it as a value."""
        return SweepResult(
            curves=tuple(self._curve(m, t) for m, t in self.found.folders),
            level=self.level,
            n_runs=len(self.found.costs),
            seconds_left=self._seconds_left(),
        )

    def _curve(self, model: int, task: int) -> SweepCurve:
        runs = [run for job, run in self.runs.items() if (job.model, job.task) == (model, task)]
        failed = [each for job, each in self.failed.items() if (job.model, job.task) == (model, task)]
        return SweepCurve(
            model=self.found.labels[model],
            task=self.found.plan.tasks[task].source,
            kind=self.found.tasks[task].kind,
            task_number=task + 1,
            primary=self.found.tasks[task].primary,
            outcomes=outcomes(runs, level=self.level),
            failed=tuple(sorted(failed, key=lambda each: (each.layer, each.seed))),
        )

    def _seconds_left(self) -> float | None:
        costs = self.found.costs
        left = sum(cost for job, cost in costs.items() if job not in self.runs and job not in self.failed)
        if not left:
            return 0.0
        if not self.runs:
            return None
        pace = sum(run.seconds for run in self.runs.values()) / sum(costs[job] for job in self.runs)
        return left * pace / self.workers


# ---- in the processes ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """What a process is told; the models are found again in it, because some have code of their own."""

    models: tuple[SweepModel, ...]
    identities: tuple[dict[str, Any], ...]
    tasks: tuple[Task, ...]
    folders: Mapping[tuple[int, int], RunFolder]
    plan: Sweep
    options: Options
    threads: int
    retry_failed: bool


def _settings(found: _Found, workers: int | None, n_jobs: int, *, retry_failed: bool) -> list[_Setting]:
    options = found.plan.options
    device = resolve_device(options.device)
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if str(device) == "cuda" else [str(device)]
    # a process without a run would leave its cores idle
    count = max(1, min(workers or len(gpus), n_jobs))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [
        _Setting(
            models=found.plan.models,
            identities=tuple(checkpoint.identity for checkpoint in found.checkpoints),
            tasks=tuple(with_prompt(task, options.prompt) for task in found.tasks),
            folders=found.folders,
            plan=found.plan,
            options=replace(options, device=gpus[i % len(gpus)]),
            threads=max(1, cores // count),
            retry_failed=retry_failed,
        )
        for i in range(count)
    ]


class _Worker:
    """Makes one run after another, and keeps the encoder of the last one."""

    def __init__(self, setting: _Setting) -> None:
        self.setting = setting
        # two processes that both use all cores wait for each other at every step
        torch.set_num_threads(min(setting.threads, torch.get_num_threads()))
        self.encoder = functools.lru_cache(maxsize=1)(self._load)
        self.cut: set[tuple[int, int]] = set()

    def _load(self, model: int) -> Encoder:
        named, options = self.setting.models[model], self.setting.options
        checkpoint = _find(named, options)
        if checkpoint.identity != self.setting.identities[model]:
            raise ModelError(f"{named.model.label} changed since the sweep began: begin it again")
        return load(checkpoint, options)

    def _told(self, model: int, task: int) -> Encoder:
        encoder = self.encoder(model)
        if (model, task) not in self.cut:
            self.cut.add((model, task))
            told_what_is_cut(encoder, self.setting.tasks[task], self.setting.plan.protocol)
        return encoder

    def __call__(self, job: _Job) -> FineTuningRun | FailedRun | StoreError | None:
        """Return the run, or why it failed or cannot be kept; None where another process is at it."""
        folder = self.setting.folders[job.model, job.task]
        try:
            return load_or_run(
                folder,
                lambda: self._told(job.model, job.task),
                job.layer,
                self.setting.tasks[job.task],
                seed=job.seed,
                protocol=self.setting.plan.protocol,
                batch_tokens=self.setting.options.batch_tokens,
                wait=False,
                retry_failed=self.setting.retry_failed,
            )
        except TrainingError as error:
            # what the mark says, where there is one of this failure
            marked = None if isinstance(error, InsufficientMemoryError) else folder.load_failure(job.layer, job.seed)
            return marked or _failed(job, str(error), error.step)
        except StoreError as error:
            return error
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
    how = f"signal {-lost.exit_code}" if lost.exit_code < 0 else f"exit code {lost.exit_code}"
    return _failed(job, f"its process was ended twice ({how}): if memory ran out, use fewer workers or a smaller batch")


def _failed(job: _Job, message: str, step: int | None = None) -> FailedRun:
    return FailedRun(layer=job.layer, seed=job.seed, message=message, step=step, versions=versions())
