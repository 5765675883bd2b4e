"""Fine-tuning runs as directories: never repeated, safe between processes.

Knows where a run is and when it is made; `tmft` trains it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from layerprobe.encoders.architecture import declared_dtype
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import SharedModel
from layerprobe.errors import InsufficientMemoryError, TrainingError, option
from layerprobe.extraction.embeddings import reading_cautions
from layerprobe.files.atomic import inside, locked, remove_leftovers, store_errors
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.saved import (
    FAILED,
    Runs,
    forget_epochs,
    has_model,
    keep_origin,
    load_failure,
    load_finished,
    run_directory,
    runs_root,
    save_failure,
    save_finished,
    saving_model,
)
from layerprobe.finetuning.tmft import fine_tune, train_layers
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.jobs.crew import Plan, Share
from layerprobe.names import short_name
from layerprobe.rng import plain_torch
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.versions import FINETUNING_VERSION

logger = logging.getLogger(__name__)


def folder_of_runs(
    root: Path,
    checkpoint: Resolved,
    task: Task,
    protocol: Protocol,
    *,
    computed_on: str,
    batch_tokens: int | None = None,
    attn: str = "auto",
) -> Path:
    """Return the folder under `root` named by everything that the numbers of runs depend on.

    That includes the kind of device and the precision and, if given, the tokens of a pass, which change the dropout
    drawn, and the attention implementation, which changes rounding and dropout.
    """
    values = [*([] if batch_tokens is None else [batch_tokens]), *([] if attn == "auto" else [attn])]
    values += task.unusual_primary  # chooses epochs
    key = [FINETUNING_VERSION, checkpoint.identity, computed_on, task.digest, protocol, *values]
    return inside(root, root / "runs" / digest(key)[:32])


@dataclass(frozen=True, slots=True)
class RunJob:
    """One run of a set."""

    layer: int
    """Number of blocks kept."""
    seed: int
    of: int = 0
    """Index of its set of runs."""
    scan: bool = False
    """Whether all blocks are kept, with a loss at every layer."""
    alone: bool = field(default=False, compare=False)
    """Whether no other run is made meanwhile, so that its worker takes all processors."""

    @property
    def label(self) -> str:
        """The work of a process that makes it, in words."""
        return f"fine-tunes {'all layers' if self.scan else f'layer {self.layer}'} with seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSet:
    """The runs of one model on one task with one protocol: their folder and settings."""

    model: SharedModel
    folder: Path
    """Folder with one directory per run, see `folder_of_runs`."""
    task: Task
    """The task, with the model's prompt before its texts."""
    protocol: Protocol
    weighting: Weighting = "falling"
    """Weighting of the losses of scans."""
    save_models: bool = False
    """Whether to keep the best epoch's checkpoint; a finished run without one is repeated, with the same numbers."""
    retry_failed: bool = False
    """Whether to repeat runs that are marked as failed."""

    def directory(self, job: RunJob) -> Path:
        """Return the directory of one run."""
        return run_directory(self.folder, job.layer, job.seed, self.weighting if job.scan else None)

    def keep_origin(self) -> None:
        """Write model and task of the runs into their folder, unless it has them."""
        keep_origin(self.folder, self.model.checkpoint.label, self.task.name)

    def read(self, job: RunJob) -> Runs | None:
        """Return a finished run, or None."""
        directory = self.directory(job)
        return None if self.save_models and not has_model(directory) else load_finished(directory)

    def make(self, job: RunJob, load: Callable[[], Encoder]) -> Runs | None:
        """Return a run, and make it if necessary; None if another process is making it.

        A run that fails because of its numbers is marked, and not repeated while the mark exists and the libraries are
        the same. A killed run continues after its last epoch on disk, see `layerprobe.finetuning.saved`.
        """
        directory = self.directory(job)
        self.keep_origin()
        with locked(runs_root(directory), directory / "lock") as held:
            return (self.read(job) or self._made(job, directory, load)) if held else None

    def _made(self, job: RunJob, directory: Path, load: Callable[[], Encoder]) -> Runs:
        if not self.retry_failed and (failed := load_failure(directory)):
            raise TrainingError(f"{failed} (this run failed before: to try again, remove {directory / FAILED})")
        encoder = load()
        remove_leftovers(directory)
        try:
            runs, outputs = self._trained(job, directory, encoder)
        except TrainingError as error:
            if is_marked(error):
                save_failure(directory, str(error))
                forget_epochs(directory)
            raise
        save_finished(directory, runs, outputs)
        forget_epochs(directory)
        with store_errors("remove", directory / FAILED):
            (directory / FAILED).unlink(missing_ok=True)
        return tuple(replace(run, directory=directory) for run in runs)

    def _trained(self, job: RunJob, directory: Path, encoder: Encoder) -> tuple[Runs, RunOutputs]:
        model = self.model.checkpoint
        saving: AbstractContextManager[Path | None] = nullcontext()
        if self.save_models:
            layer, recipe = None if job.scan else job.layer, model.recipe
            source = {
                "modules": recipe.kinds,
                "dtype": declared_dtype(model.config),
                "max_length": recipe.max_length or encoder.max_length,
            }
            saving = saving_model(directory, encoder, layer=layer, task=self.task, prompt=model.prompt, **source)
        with saving as save_to:
            common: dict[str, Any] = {
                "protocol": self.protocol,
                "seed": job.seed,
                "batch_tokens": model.asked.batch_tokens,
                "save_to": save_to,
                "unfinished": directory,
            }
            if job.scan:
                return train_layers(encoder, job.layer, self.task, weighting=self.weighting, **common)
            run, outputs = fine_tune(encoder, job.layer, self.task, **common)
            return (run,), outputs


def is_marked(error: Exception) -> bool:
    """Return whether an error concerns one run alone, to be marked as failed; lack of memory may be temporary."""
    return isinstance(error, TrainingError) and not isinstance(error, InsufficientMemoryError)


class RunWorker:
    """A worker that makes runs of some sets, one after another, and keeps the model of the last one."""

    def __init__(self, sets: Sequence[RunSet], share: Share) -> None:
        self.sets = sets
        self.model: SharedModel | None = None
        self.checked: set[tuple[SharedModel, str, frozenset[str]]] = set()
        self.advice = "" if share.device is None else "fewer workers, "
        self.all_threads = torch.get_num_threads()
        for runs in sets:
            runs.model.take_over(share)
        self.threads = torch.get_num_threads()

    @plain_torch()
    def __call__(self, job: RunJob) -> Runs | None:
        """Return a run, read or made; None if another process is making it."""
        if self.threads != self.all_threads:
            torch.set_num_threads(self.all_threads if job.alone else self.threads)
        try:
            return self.sets[job.of].make(job, lambda: self._load(job.of))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise InsufficientMemoryError(
                f"out of memory: use {self.advice}a smaller batch or a lower maximum length"
            ) from error

    def _load(self, number: int) -> Encoder:
        runs = self.sets[number]
        if self.model is not None and self.model is not runs.model:
            self.model.forget()
        self.model = runs.model
        of = runs.model, runs.task.kind, frozenset(runs.task.texts())  # the same for all folds of a task
        if of not in self.checked:
            self.checked.add(of)
            log_reading(runs.model.checkpoint, runs.model.encoder, runs.task, runs.protocol)
        return runs.model.encoder


def log_reading(checkpoint: Resolved, encoder: Encoder, task: Task, protocol: Protocol) -> None:
    """Log oddities and truncation of the texts of a task in training; they are the same for all its folds."""
    splits = task.train, task.validation, task.test
    cut = KINDS[task.kind].learning().loss.cut(encoder, splits, max_length=protocol.max_length)
    for warning in (*reading_cautions(checkpoint, sorted(set(task.texts()))), *filter(None, [cut])):
        logger.warning("%s", warning)
    recipe = checkpoint.recipe
    if recipe.dim or not recipe.include_prompt:
        logger.info("fine-tuning pools all features and tokens, unlike the configuration of %s", checkpoint.label)
    usual, limit = checkpoint.recipe.max_length or encoder.max_length, encoder.limit(protocol.max_length)
    if encoder.reader is None and usual is not None and limit < usual:
        shorter = "%s reads up to %d tokens per text, but fine-tuning and its exports only %d: %s keeps its length"
        logger.info(shorter, short_name(checkpoint.label), usual, limit, option("max_length", str(usual)))


def runs_plan(
    sets: Sequence[RunSet], jobs: Mapping[RunJob, float], *, unit: str = "runs", whole: float = 0.0
) -> Plan[RunJob, Runs]:
    """Return a plan of runs of some sets for `RunWorker`s; the jobs come with their costs, at most `whole` in total."""
    for runs in sets:
        runs.keep_origin()
    return Plan(jobs=jobs, done=lambda job: sets[job.of].read(job), label=lambda job: job.label, unit=unit, whole=whole)
