"""What a run leaves in its directory: its result with its outputs, or why it failed, and with `model/` its weights.

While it goes on, its last epoch is there. Knows files and their checksums, not how a run is made. `model/` is
there whole or not at all, and says what it started from.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.checks import one_layer
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import (
    DamagedStoreError,
    DataError,
    StoreError,
    TrainingError,
    UnsupportedArchitectureError,
    another_folder,
    option,
)
from layerprobe.files.atomic import inside, make_directory, store_errors
from layerprobe.files.folders import folder_errors, folder_problems, new_folder, read_kept, write_kept
from layerprobe.files.serialisation import RARE, sealed
from layerprobe.finetuning.memory import TokenLimit
from layerprobe.finetuning.outcomes import OUTPUTS, RunOutputs, read_outputs, write_outputs
from layerprobe.finetuning.values import FineTuningRun, Weighting
from layerprobe.rng import restore_rng, rng_states
from layerprobe.store.manifest import is_fingerprint
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.tasks.values import Task
from layerprobe.training.artifact import SavedSteps
from layerprobe.training.loop import load_optimizer, optimizer_tensors
from layerprobe.versions import versions

if TYPE_CHECKING:
    from layerprobe.finetuning.tmft import FineTuner

logger = logging.getLogger(__name__)

RESULT, FAILED, ORIGIN = "result.json", "failed.json", "origin.json"
MESSAGE = "message"
"""Of a failure, beside the versions of Python and the libraries: the same ones would fail again."""

Runs = tuple[FineTuningRun, ...]
"""What a directory is of: one run, or of a scan one a layer."""


def load_finished(directory: Path) -> Runs | None:
    """Return the finished run of a directory, or None; one not as it was written, with its outputs, is unfinished."""
    try:
        runs = read_result(directory, root=runs_root(directory))
        for run in runs or ():
            if directory != (of := run_directory(directory.parent, run.layer, run.seed, run.weighting)):
                raise DamagedStoreError(f"{directory / RESULT} cannot be read (it is of {of.name})")
    except DamagedStoreError as error:
        logger.warning("%s: the run is done again", error)
        return None
    return runs if runs and read_outputs(directory) is not None else None


def read_result(directory: Path, *, root: Path) -> Runs | None:
    """Return what a run's directory says of it, without a look at its outputs; None where it says nothing."""
    result = read_kept(dict[str, Runs], directory / RESULT, root=root)
    return None if result is None else tuple(replace(run, directory=directory) for run in result.get("runs", ()))


def save_finished(directory: Path, runs: Runs, outputs: RunOutputs) -> None:
    """Write a run into its directory: outputs first, then the result, which says that all is there."""
    write_outputs(directory, outputs)
    write_kept(directory / RESULT, {"runs": runs}, root=runs_root(directory), files=[OUTPUTS])


def save_failure(directory: Path, message: str) -> None:
    """Mark the run of a directory as failed; StoreError if that cannot be written."""
    write_kept(directory / FAILED, {**versions(), MESSAGE: message}, root=runs_root(directory))


def load_failure(directory: Path) -> str | None:
    """Return why the run of a directory failed, or None; a garbled mark, or one of other libraries, is none."""
    try:
        failed = read_kept(dict[str, str], directory / FAILED, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: the run is done again", error)
        return None
    return failed[MESSAGE] if failed and failed == {**versions(), MESSAGE: failed.get(MESSAGE)} else None


def keep_origin(folder: Path, model: str, task: str) -> None:
    """Write next to the runs of a folder what they are of, where it is missing; a disk that refuses is passed over."""
    with contextlib.suppress(StoreError):  # runs are read without it, and those that are made meet the same disk
        if not (folder / ORIGIN).is_file():
            make_directory(folder)
            write_kept(folder / ORIGIN, {"model": {"name": model}, "task": task}, root=folder.parent)


def runs_root(directory: Path) -> Path:
    """Return the folder of all runs, of whatever model and task."""
    return directory.parent.parent


def run_directory(folder: Path, layer: int, seed: int, weighting: Weighting | None = None) -> Path:
    """Return the directory of a run in the folder of its model, task and protocol; that of a scan by its weighting."""
    return folder / f"{weighting or f'layer-{layer:03d}'}-seed-{seed}"


MODEL = "model"
STARTED_FROM = "layerprobe.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What a run started from."""

    model: ModelDescription
    """The whole pretrained model."""
    task: str
    """Name of the data."""
    task_digest: str
    """Of all its sentences and scores, the prompt included."""
    pairs: tuple[int, int, int]
    """Of training, validation and test."""
    prompt: str
    """Put before every sentence."""
    query_prompt: str = field(default="", metadata=RARE)
    """Put before every query in its place, where documents have another."""
    document_prompt: str = field(default="", metadata=RARE)
    """Put before every document in its place."""
    modules: tuple[str, ...] = field(default=(), metadata=RARE)
    """Of the model's configuration of sentence-transformers; those behind the pooling took no part in training."""
    dtype: str = field(default="float32", metadata=RARE)
    """Of the pretrained weights, as their configuration says."""
    max_length: int | None = field(default=None, metadata=RARE)
    """Tokens at which the pretrained model cuts texts, whatever the protocol says; None where it does not say."""


def has_model(directory: Path) -> bool:
    """Return whether a run's directory holds its weights as they were written; warns where they are not."""
    with store_errors("read", directory / MODEL):
        if not (directory / MODEL / STARTED_FROM).is_file():  # it is written last
            return False
    try:
        _read_origin(directory, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: expected the weights of the run, which are made again", error)
        return False
    return True


def _read_origin(directory: Path, *, root: Path) -> RunOrigin:
    """Return what the run of a directory with weights started from; DamagedStoreError if weights are not as written."""
    folder = inside(root, directory / MODEL)
    for problem in folder_problems(folder):
        raise DamagedStoreError(problem)
    origin = read_kept(RunOrigin, folder / STARTED_FROM, root=root)
    if origin is None:
        raise DamagedStoreError(f"{folder / STARTED_FROM} is missing")
    return origin


def without_checkpoint(encoder: Encoder) -> str:
    """Return why layer 0 of a model has no checkpoint to save; nothing where it has one."""
    if not TruncatedEncoder(encoder, 0, share=True).reads_input_of_block:
        return ""
    return f"{encoder.description.architecture} does not run without a block, so layer 0 has no checkpoint to save"


@contextlib.contextmanager
def saving_model(
    directory: Path, encoder: Encoder, *, layer: int | None, task: Task, prompt: str, **source: Any
) -> Iterator[Path]:
    """Give a folder for the checkpoint of a locked run; it becomes the run's `model/` when all is written.

    The layer is None for a joint run, whose model is the whole one. `source` are modules, dtype and max_length of a
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
    """Keep transformers from showing how far it is with writing a file."""
    logging_: Any = transformers.utils.logging
    enabled = logging_.is_progress_bar_enabled()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging_.enable_progress_bar()


def load_saved_run(directory: Path, layer: int | None = None) -> tuple[FineTuningRun, RunOrigin] | None:
    """Return the run that a directory holds with its weights and what it started from; None of no directory of a run.

    The layer is one of a scan; a run of TMFT has its own.
    """
    directory = Path(os.path.realpath(directory))
    # elsewhere it is a copy that somebody made and named
    root = runs_root(directory) if is_fingerprint(directory.parent.name) else directory
    if not (directory / RESULT).is_file():
        return None
    if not (directory / MODEL / STARTED_FROM).is_file():
        raise DataError(
            f"the run {directory} was made without {option('save_models', True)}, so its weights were not kept: repeat "
            "`layerprobe finetune` with --save-models"
        )
    try:
        origin, runs = _read_origin(directory, root=root), read_result(directory, root=root) or ()
    except DamagedStoreError as error:
        raise DamagedStoreError(
            f"{error}: repeat `layerprobe finetune` with --save-models, which makes it again"
        ) from error
    if len(runs) > 1 and layer is None:
        raise DataError(f"expected a layer to truncate the scan at: give {option('layer')}, 0 to {len(runs) - 1}")
    if len(runs) > 1:
        layer = one_layer(layer, len(runs) - 1, of=f"the scan {directory}")
    run = next((run for run in runs if len(runs) == 1 or run.layer == layer), None)
    if run is None or run.error:
        why = f"layer {layer}: {run.error}" if run else layer
        raise DataError(f"expected a layer that the scan {directory} has scores of, got {why}")
    return run, origin


def runs_of_layer(run: FineTuningRun) -> list[FineTuningRun]:
    """Return this run and those of other seeds that lie next to it, by seed; what cannot be read is left out."""
    runs = {run.seed: run}
    if run.weighting is not None:
        return [run]
    for directory in run.directory.parent.glob(f"layer-{run.layer:03d}-seed-*"):
        with contextlib.suppress(StoreError):
            for other in load_finished(directory) or ():
                if (other.layer, other.protocol, other.primary) == (run.layer, run.protocol, run.primary):
                    runs.setdefault(other.seed, other)
    return [runs[seed] for seed in sorted(runs)]


# ---- the epochs of a run that is going on ----------------------------------------------------------------


SAVE_AFTER = 30.0
"""Seconds of training that are worth the time to write them down: a kill loses these and the epoch it comes in."""
_MODEL, _BEST, _RNG, _OUTPUTS = "model.", "best.", "rng.", "outputs"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpoch:
    """Where a run was at the end of an epoch, but for its tensors."""

    epoch: int
    """The last one that is done, from 1."""
    best_epoch: int
    step: int
    """Steps taken."""
    seconds: float
    """Of the run so far."""
    train_losses: tuple[tuple[float | None, ...], ...]
    """(epoch, layer): the means; None where one is not finite."""
    scores: tuple[tuple[Evaluation | None, ...], ...]
    """(epoch, layer): on the validation split; None at layers that failed."""
    failures: dict[str, str]
    """Why a layer is left out, by its number."""
    batch_tokens: int | None
    """Of a training pass at most; it is halved where memory runs out."""
    evaluation_tokens: int | None
    versions: dict[str, str]
    """Of Python and the libraries: others begin anew."""


class Epochs:
    """The epochs of a run so far; `parts` are its model and its criteria, `began` is by `time.perf_counter`.

    The best epoch is the one with the highest score, or with `keeps_last` the last one.
    With a folder, which is the run's alone, the last one is kept there, and a run that finds one goes on from it, to
    the same numbers: a `SavedEpoch` and its tensors.
    """

    def __init__(
        self,
        tuner: FineTuner,
        parts: nn.Module,
        limit: TokenLimit,
        *,
        primary: str,
        began: float,
        folder: Path | None = None,
        keeps_last: bool = False,
    ) -> None:
        self.keeps_last = keeps_last
        self.tuner, self.parts, self.limit, self.primary = tuner, parts, limit, primary
        self.train_losses: list[list[float]] = []
        self.scores: list[list[Evaluation | None]] = []
        self.best_epoch = 0
        self.outputs: Array = np.empty(0)
        """(layers, examples) or (layers, examples, classes): what the best epoch outputs for the validation split."""
        self._state: dict[str, Tensor] = {}
        """The weights of the best epoch, on the CPU: a copy of all of them is much of a GPU's memory."""
        self._began, self._saved = began, time.perf_counter()
        self._steps: SavedSteps[SavedEpoch] | None = None
        if folder is not None:
            self._steps = _saved_epochs(folder)
            self._go_on()

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def best(self) -> list[Evaluation | None]:
        """Validation scores of the best epoch, by layer."""
        return self.scores[self.best_epoch - 1]

    @property
    def seconds(self) -> float:
        """How long the run takes so far, before it was interrupted, too."""
        return time.perf_counter() - self._began

    def add(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        """Add an epoch that is done, and write it down if that is worth the time."""
        self._count(losses, outputs, scores)
        if self._steps is not None and time.perf_counter() - self._saved >= SAVE_AFTER:
            try:
                self._steps.save(len(self), self._where(), self._tensors())
            except StoreError as error:  # the run is worth more than a way to go on with it
                logger.warning("%s; fine-tuning continues, but cannot be resumed from here if it stops", error)
            self._saved = time.perf_counter()

    def restore_best(self) -> None:
        """Give the model and the criteria the weights of the best epoch."""
        self._load(self._state)

    def _count(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        self.train_losses.append(list(losses))
        self.scores.append(list(scores))
        # of the layers that go on: one that failed counts in no mean, or what is left would seem better or worse
        going_on = [layer for layer, score in enumerate(scores) if score is not None]
        if self.keeps_last or not self.best_epoch or self._mean(scores, going_on) > self._mean(self.best, going_on):
            self.best_epoch, self.outputs = len(self), outputs
            self._state = self._kept_weights()

    def _mean(self, scores: Sequence[Evaluation | None], layers: Sequence[int]) -> float:
        return float(np.mean([score.metrics[self.primary] for k in layers if (score := scores[k]) is not None]))

    # ---- to disk and back --------------------------------------------------------------------------------

    def _where(self) -> SavedEpoch:
        return SavedEpoch(
            epoch=len(self),
            best_epoch=self.best_epoch,
            step=self.tuner.step,
            seconds=self.seconds,
            train_losses=tuple(
                tuple(loss if math.isfinite(loss) else None for loss in losses) for losses in self.train_losses
            ),
            scores=tuple(map(tuple, self.scores)),
            failures={str(layer): str(error) for layer, error in self.tuner.failures.items()},
            batch_tokens=self.tuner.limit.tokens,
            evaluation_tokens=self.limit.tokens,
            versions=versions(),
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Return weights, those of the best epoch where it is another, moments, generators and its outputs."""
        weights = self._weights()
        tensors = {_MODEL + name: weight for name, weight in weights.items()}
        if self.best_epoch < len(self):
            tensors |= {_BEST + name: weight for name, weight in self._state.items()}
        states = rng_states(self.tuner.encoder.device)
        tensors |= {_RNG + name: state for name, state in states.items()}
        return tensors | optimizer_tensors(self.tuner.optimizer) | {_OUTPUTS: torch.from_numpy(self.outputs)}

    def _weights(self) -> dict[str, Tensor]:
        """Return what the state of model and criteria consists of, each tensor once, whatever shares it."""
        once = [name for name, _ in (*self.parts.named_parameters(), *self.parts.named_buffers())]
        state = self.parts.state_dict()
        return {name: state[name] for name in once if name in state}

    def _kept_weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._weights().items()}

    def _go_on(self) -> None:
        """Go back to the last epoch on disk, if there is one of the same libraries."""
        assert self._steps is not None
        last = self._steps.last()
        if last is None:
            return
        saved, tensors = last
        if saved.versions != versions():
            self._steps.clear()
            return
        tuner = self.tuner
        for losses, scores in zip(saved.train_losses, saved.scores, strict=True):
            self.train_losses.append([math.nan if loss is None else loss for loss in losses])
            self.scores.append(list(scores))
        self.best_epoch, self.outputs = saved.best_epoch, tensors[_OUTPUTS].numpy()
        self._load(tensors, _BEST if self.best_epoch < len(self) else _MODEL)
        self._state = self._kept_weights()
        self._load(tensors, _MODEL)
        load_optimizer(tuner.optimizer, tensors)
        tuner.go_on_from(saved.step)
        tuner.failures.update({int(layer): TrainingError(message) for layer, message in saved.failures.items()})
        tuner.limit.tokens, self.limit.tokens = saved.batch_tokens, saved.evaluation_tokens
        states = {name.removeprefix(_RNG): state for name, state in tensors.items() if name.startswith(_RNG)}
        restore_rng(states, tuner.encoder.device)
        self._began -= saved.seconds
        logger.info("resuming after epoch %d of %d", saved.epoch, tuner.protocol.epochs)

    @torch.no_grad()
    def _load(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        for name, weight in self._weights().items():
            weight.copy_(tensors[prefix + name])


def forget_epochs(folder: Path) -> None:
    """Remove the saved epochs of a run from its folder."""
    _saved_epochs(folder).clear()


def _saved_epochs(folder: Path) -> SavedSteps[SavedEpoch]:
    return SavedSteps(
        folder,
        SavedEpoch,
        root=runs_root(folder),
        advice=another_folder(),
        name=f"{folder.parent.name}/{folder.name}",
    )
