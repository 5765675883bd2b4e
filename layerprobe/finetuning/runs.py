"""Fine-tuning runs as directories: never repeated, safe between processes.

A directory holds the result of a run and its outputs, or its failure, and its weights in `model/`, complete or absent,
with the model they started from. While the run continues, it has its last epoch. Knows where a run is and when it is
made; `tmft` trains it.
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from layerprobe.checks import one_layer, settings_or_default
from layerprobe.encoders.architecture import declared_dtype
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Model, ModelDescription
from layerprobe.errors import (
    DamagedStoreError,
    DataError,
    InsufficientMemoryError,
    StoreError,
    TrainingError,
    UnsupportedArchitectureError,
    another_folder,
    option,
)
from layerprobe.extraction.embeddings import reading_cautions
from layerprobe.files.atomic import (
    folder_errors,
    folder_problems,
    inside,
    locked,
    make_directory,
    new_folder,
    read_kept,
    remove_leftovers,
    store_errors,
    write_kept,
)
from layerprobe.files.serialisation import RARE, digest, sealed
from layerprobe.finetuning.outcomes import OUTPUTS, RunOutputs, read_outputs, write_outputs
from layerprobe.finetuning.tmft import fine_tune, forget_epochs
from layerprobe.finetuning.values import FineTuningRun, Protocol, Runs, Weighting
from layerprobe.jobs.crew import Plan, Share
from layerprobe.names import short_name
from layerprobe.rng import plain_torch
from layerprobe.store.manifest import is_fingerprint
from layerprobe.store.store import Store
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.versions import FINETUNING_VERSION, versions

logger = logging.getLogger(__name__)

RESULT, FAILED, ORIGIN = "result.json", "failed.json", "origin.json"
MESSAGE = "message"
"""Key of a failure's message, beside the versions of Python and the libraries: the same ones would fail again."""
MODEL = "model"
STARTED_FROM = "layerprobe.json"


def agreed(protocol: Protocol | None, checkpoint: Resolved) -> tuple[Protocol, Resolved]:
    """Return protocol and model with the same pooling and length; by default the paper's protocol.

    A protocol with the default mean pooling or 128 tokens states nothing. If neither states a pooling, the model's
    configuration decides: see `Resolved.pooling`. A patience that cannot end a run early is none.

    Raises:
        DataError: If they contradict each other, `protocol` is not a protocol, or the model computes in float16.
    """
    chosen = settings_or_default(protocol, Protocol)
    check_precision(checkpoint.asked)
    checkpoint = pooled_by(protocol, checkpoint)
    limit, length = checkpoint.asked.max_length, chosen.max_length
    if length == Protocol().max_length:
        length = limit or length
    elif limit not in (None, length):
        raise DataError(f"expected one maximum length, got {limit} of the model and {length} of the protocol")
    ends_early = 1 + (chosen.patience or math.inf) < chosen.epochs * chosen.evaluations and not chosen.kept_epoch
    patience = chosen.patience if ends_early else None
    return replace(chosen, pooling=checkpoint.pooling, max_length=length, patience=patience), checkpoint


def pooled_by(protocol: Protocol | None, checkpoint: Resolved) -> Resolved:
    """Return the model with the protocol's pooling, unless it states its own; DataError if they differ."""
    if protocol is None or protocol.pooling == Protocol().pooling:
        return checkpoint
    stated, pooling = checkpoint.asked.pooling, protocol.pooling
    if stated not in (None, pooling):
        raise DataError(f"expected one way of pooling, got {stated} of the model and {pooling} of the protocol")
    return checkpoint.with_options(pooling=pooling)


def check_precision(options: Model) -> None:
    """Raise DataError for float16, in which small gradients vanish."""
    if options.dtype == "float16":
        raise DataError("cannot fine-tune in float16, where small gradients vanish: use float32 or bfloat16")


def with_prompts(task: Task, model: Resolved) -> Task:
    """Return the task with the prompts of extraction: before every text, or before queries and documents."""
    splits = task.train, task.validation, task.test
    if task.train.prompts is not None:
        train, validation, test = (part.with_prompts(*model.retrieval_prompts) for part in splits)
    elif model.prompt:
        train, validation, test = (part.prompted(model.prompt) for part in splits)
    else:
        return task
    return replace(task, train=train, validation=validation, test=test)


def run_folder(checkpoint: Resolved, task: Task, protocol: Protocol) -> Path:
    """Return the folder in which `finetune` keeps the runs of a model on a task; for the protocol see `agreed`.

    It is named by everything that the numbers of runs depend on, including the kind of device and the precision and, if
    given, the tokens of a pass, which change the dropout drawn, and the attention implementation, which changes
    rounding and dropout.
    """
    asked = checkpoint.asked
    task = with_prompts(task, checkpoint)
    values: list[Any] = [] if asked.batch_tokens is None else [asked.batch_tokens]
    values += [] if asked.attn == "auto" else [asked.attn]
    values += task.unusual_primary  # chooses epochs
    key = [FINETUNING_VERSION, checkpoint.identity, checkpoint.computed_on, task.digest, protocol, *values]
    root = Store(asked.cache_dir).root
    return inside(root, root / "runs" / digest(key)[:32])


def runs_root(directory: Path) -> Path:
    """Return the folder of all runs of any model and task."""
    return directory.parent.parent


def run_directory(folder: Path, layer: int, seed: int, weighting: Weighting | None = None) -> Path:
    """Return the directory of a run in the folder of its model, task and protocol; a scan is named by its weighting."""
    return folder / f"{weighting or f'layer-{layer:03d}'}-seed-{seed}"


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
        the same. A killed run continues after its last epoch on disk, see `layerprobe.finetuning.tmft.Epochs`.
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
            layer = None if job.scan else job.layer
            recipe = model.recipe
            source = {
                "modules": recipe.kinds,
                "dtype": declared_dtype(model.config),
                "max_length": recipe.max_length or encoder.max_length,
            }
            saving = saving_model(directory, encoder, layer=layer, task=self.task, prompt=model.prompt, **source)
        with saving as save_to:
            return fine_tune(
                encoder,
                job.layer,
                self.task,
                protocol=self.protocol,
                weighting=self.weighting if job.scan else None,
                seed=job.seed,
                batch_tokens=model.asked.batch_tokens,
                save_to=save_to,
                unfinished=directory,
            )


def run_set(
    model: SharedModel,
    task: Task,
    protocol: Protocol,
    *,
    weighting: Weighting = "falling",
    save_models: bool = False,
    retry_failed: bool = False,
) -> RunSet:
    """Return the set of runs of a model on a task in the folder of `finetune`; for the protocol see `agreed`."""
    checkpoint = model.checkpoint
    return RunSet(
        model=model,
        folder=run_folder(checkpoint, task, protocol),
        task=with_prompts(task, checkpoint),
        protocol=protocol,
        weighting=weighting,
        save_models=save_models,
        retry_failed=retry_failed,
    )


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


def load_finished(directory: Path) -> Runs | None:
    """Return the finished run of a directory, or None; a damaged result or damaged outputs count as unfinished."""
    try:
        runs = read_result(directory, root=runs_root(directory))
        for run in runs or ():
            if directory != (of := run_directory(directory.parent, run.layer, run.seed, run.weighting)):
                raise DamagedStoreError(f"{directory / RESULT} cannot be read (it belongs to {of.name})")
    except DamagedStoreError as error:
        logger.warning("%s: the run will be repeated", error)
        return None
    return runs if runs and read_outputs(directory) is not None else None


def read_result(directory: Path, *, root: Path) -> Runs | None:
    """Return the result in a run's directory without checking its outputs; None if there is none."""
    result = read_kept(dict[str, Runs], directory / RESULT, root=root)
    return None if result is None else tuple(replace(run, directory=directory) for run in result.get("runs", ()))


def save_finished(directory: Path, runs: Runs, outputs: RunOutputs) -> None:
    """Write a run into its directory: outputs first, then the result, which marks it complete."""
    write_outputs(directory, outputs)
    write_kept(directory / RESULT, {"runs": runs}, root=runs_root(directory), files=[OUTPUTS])


def save_failure(directory: Path, message: str) -> None:
    """Mark the run of a directory as failed; StoreError if that cannot be written."""
    write_kept(directory / FAILED, {**versions(), MESSAGE: message}, root=runs_root(directory))


def load_failure(directory: Path) -> str | None:
    """Return why the run of a directory failed, or None; a damaged mark, or one of other libraries, counts as None."""
    try:
        failed = read_kept(dict[str, str], directory / FAILED, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: the run will be repeated", error)
        return None
    return failed[MESSAGE] if failed and failed == {**versions(), MESSAGE: failed.get(MESSAGE)} else None


def keep_origin(folder: Path, model: str, task: str) -> None:
    """Write the model and task of the runs into their folder, if missing; a disk that refuses is ignored."""
    with contextlib.suppress(StoreError):  # runs are read without it, and new ones meet the same disk
        if not (folder / ORIGIN).is_file():
            make_directory(folder)
            write_kept(folder / ORIGIN, {"model": {"name": model}, "task": task}, root=folder.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The starting point of a run: model and data."""

    model: ModelDescription
    """The whole pretrained model."""
    task: str
    """Name of the data."""
    task_digest: str
    """sha256 of all its sentences and scores, with the prompt."""
    pairs: tuple[int, int, int]
    """Number of training, validation and test items."""
    prompt: str
    """Prompt before every sentence."""
    query_prompt: str = field(default="", metadata=RARE)
    """Prompt before every query, instead of `prompt`, if documents have another."""
    document_prompt: str = field(default="", metadata=RARE)
    """Prompt before every document, instead of `prompt`."""
    modules: tuple[str, ...] = field(default=(), metadata=RARE)
    """Modules of the model's sentence-transformers configuration; those after the pooling took no part in training."""
    dtype: str = field(default="float32", metadata=RARE)
    """Precision of the pretrained weights, by their configuration."""
    max_length: int | None = field(default=None, metadata=RARE)
    """Tokens at which the pretrained model truncates texts, regardless of the protocol; None if unspecified."""


def has_model(directory: Path) -> bool:
    """Return whether a run's directory holds its weights, undamaged; warns if they are damaged."""
    with store_errors("read", directory / MODEL):
        if not (directory / MODEL / STARTED_FROM).is_file():  # it is written last
            return False
    try:
        _read_origin(directory, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: the weights of the run are made again", error)
        return False
    return True


def _read_origin(directory: Path, *, root: Path) -> RunOrigin:
    """Return the origin of a run with weights; DamagedStoreError if the weights are damaged."""
    folder = inside(root, directory / MODEL)
    for problem in folder_problems(folder):
        raise DamagedStoreError(problem)
    origin = read_kept(RunOrigin, folder / STARTED_FROM, root=root)
    if origin is None:
        raise DamagedStoreError(f"{folder / STARTED_FROM} is missing")
    return origin


def without_checkpoint(encoder: Encoder) -> str:
    """Return why layer 0 of a model has no checkpoint to save; empty if it has one."""
    if not TruncatedEncoder(encoder, 0, share=True).reads_input_of_block:
        return ""
    return f"{encoder.description.architecture} does not run without a block, so layer 0 has no checkpoint to save"


@contextlib.contextmanager
def saving_model(
    directory: Path, encoder: Encoder, *, layer: int | None, task: Task, prompt: str, **source: Any
) -> Iterator[Path]:
    """Yield a folder for the checkpoint of a locked run; it becomes the run's `model/` once complete.

    The layer is None for a joint run, which saves the whole model. `source` are modules, dtype and max_length of a
    `RunOrigin`.
    """
    if layer == 0 and (why := without_checkpoint(encoder)):
        raise UnsupportedArchitectureError(f"{why}: expected layers from 1 with {option('save_models', True)}")
    before_query, before_document = (prefix or "" for prefix in task.train.prompts or (prompt, prompt))
    alike = before_query == before_document
    origin = RunOrigin(
        model=encoder.description,
        task=task.name,
        task_digest=task.digest,
        pairs=(len(task.train), len(task.validation), len(task.test)),
        prompt=before_query if alike else "",
        query_prompt="" if alike else before_query,
        document_prompt="" if alike else before_document,
        **source,
    )
    target = inside(runs_root(directory), directory / MODEL)
    name = (target / STARTED_FROM).relative_to(runs_root(directory)).as_posix()
    with folder_errors(target, advice=another_folder()), new_folder(target, replace=True) as folder:
        with _no_bars():
            yield folder
        (folder / STARTED_FROM).write_bytes(sealed(origin, name=name))


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Hide the progress bars of transformers for writing files."""
    logging_: Any = transformers.utils.logging
    enabled = logging_.is_progress_bar_enabled()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging_.enable_progress_bar()


def load_saved_run(directory: Path, layer: int | None = None) -> tuple[FineTuningRun, RunOrigin] | None:
    """Return the run in a directory with its origin, if its weights are saved; None if it is no directory of a run.

    The layer selects one of a scan; a run of TMFT has its own.
    """
    directory = Path(os.path.realpath(directory))
    # elsewhere it is a copy with a name of its own
    root = runs_root(directory) if is_fingerprint(directory.parent.name) else directory
    if not (directory / RESULT).is_file():
        return None
    if not (directory / MODEL / STARTED_FROM).is_file():
        raise DataError(
            f"the run {directory} has no weights, since it was made without {option('save_models', True)}: repeat "
            "`layerprobe finetune` with --save-models"
        )
    try:
        origin = _read_origin(directory, root=root)
        runs = read_result(directory, root=root) or ()
    except DamagedStoreError as error:
        raise DamagedStoreError(
            f"{error}: to make it again, repeat `layerprobe finetune` with --save-models"
        ) from error
    if len(runs) > 1 and layer is None:
        raise DataError(f"expected a layer to truncate the scan at: give {option('layer')}, 0 to {len(runs) - 1}")
    if len(runs) > 1:
        layer = one_layer(layer, len(runs) - 1, of=f"the scan {directory}")
    run = next((run for run in runs if len(runs) == 1 or run.layer == layer), None)
    if run is None or run.error:
        why = f"layer {layer}: {run.error}" if run else layer
        raise DataError(f"expected a layer with scores in the scan {directory}, got {why}")
    return run, origin


def runs_of_layer(run: FineTuningRun) -> list[FineTuningRun]:
    """Return this run and those of other seeds in the same folder, by seed; unreadable ones are left out."""
    runs = {run.seed: run}
    if run.weighting is not None:
        return [run]
    for directory in run.directory.parent.glob(f"layer-{run.layer:03d}-seed-*"):
        with contextlib.suppress(StoreError):
            for other in load_finished(directory) or ():
                if (other.layer, other.protocol, other.primary) == (run.layer, run.protocol, run.primary):
                    runs.setdefault(other.seed, other)
    return [runs[seed] for seed in sorted(runs)]
