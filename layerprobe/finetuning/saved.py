"""The directory of a run: its result and outputs, or its failure, and its weights in `model/`.

While the run continues, the directory has its last epoch. Knows files and checksums, not training. `model/` is
complete or absent, and names the model it started from.
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
from layerprobe.files.atomic import (
    folder_errors,
    folder_problems,
    inside,
    make_directory,
    new_folder,
    read_kept,
    store_errors,
    write_kept,
)
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
"""Key of a failure's message, beside the versions of Python and the libraries: the same ones would fail again."""

Runs = tuple[FineTuningRun, ...]
"""Content of a directory: one run, or for a scan one per layer."""


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


def runs_root(directory: Path) -> Path:
    """Return the folder of all runs of any model and task."""
    return directory.parent.parent


def run_directory(folder: Path, layer: int, seed: int, weighting: Weighting | None = None) -> Path:
    """Return the directory of a run in the folder of its model, task and protocol; a scan is named by its weighting."""
    return folder / f"{weighting or f'layer-{layer:03d}'}-seed-{seed}"


MODEL = "model"
STARTED_FROM = "layerprobe.json"


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
        origin, runs = _read_origin(directory, root=root), read_result(directory, root=root) or ()
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


# ---- the epochs of an unfinished run ---------------------------------------------------------------------


SAVE_AFTER = 30.0
"""Seconds of training after which an epoch is saved: a kill loses at most these and the current epoch."""
_MODEL, _BEST, _RNG, _OUTPUTS = "model.", "best.", "rng.", "outputs"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpoch:
    """The state of a run at the end of an epoch, without its tensors."""

    epoch: int
    """Number of the last finished epoch, from 1."""
    best_epoch: int
    step: int
    """Steps taken."""
    seconds: float
    """Duration of the run so far."""
    train_losses: tuple[tuple[float | None, ...], ...]
    """(epoch, layer) mean training losses; None where not finite."""
    scores: tuple[tuple[Evaluation | None, ...], ...]
    """(epoch, layer) scores on the validation split; None at layers that failed."""
    failures: dict[str, str]
    """Reasons why layers are left out, by layer."""
    batch_tokens: int | None
    """Largest number of tokens of a training pass; halved when memory runs out."""
    evaluation_tokens: int | None
    versions: dict[str, str]
    """Versions of Python and the libraries; with others the run starts again."""


class Epochs:
    """The epochs of a run so far; `parts` are its model and criteria, `began` is a time of `time.perf_counter`.

    The best epoch has the highest score; with `keeps_last` it is the last one.
    With a folder of the run's own, the last epoch is saved there (a `SavedEpoch` and its tensors), and a run that
    finds one continues from it, to the same numbers.
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
        """(layers, examples) or (layers, examples, classes) outputs of the best epoch for the validation split."""
        self._state: dict[str, Tensor] = {}
        """Weights of the best epoch, on the CPU, since a copy would take much of a GPU's memory."""
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
        """Duration of the run so far, including the time before interruptions."""
        return time.perf_counter() - self._began

    def add(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        """Add a finished epoch, and save it if that is worth the time."""
        self._count(losses, outputs, scores)
        if self._steps is not None and time.perf_counter() - self._saved >= SAVE_AFTER:
            try:
                self._steps.save(len(self), self._where(), self._tensors())
            except StoreError as error:  # the run matters more than resuming it
                logger.warning("%s; fine-tuning continues, but cannot be resumed from here if it stops", error)
            self._saved = time.perf_counter()

    def restore_best(self) -> None:
        """Give the model and the criteria the weights of the best epoch."""
        self._load(self._state)

    def _count(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        self.train_losses.append(list(losses))
        self.scores.append(list(scores))
        # only layers that continue: means would change if a failed layer counted in some of them
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
        """Return current weights, those of the best epoch (if another) with its outputs, moments and generators."""
        weights = self._weights()
        tensors = {_MODEL + name: weight for name, weight in weights.items()}
        if self.best_epoch < len(self):
            tensors |= {_BEST + name: weight for name, weight in self._state.items()}
        states = rng_states(self.tuner.encoder.device)
        tensors |= {_RNG + name: state for name, state in states.items()}
        return tensors | optimizer_tensors(self.tuner.optimizer) | {_OUTPUTS: torch.from_numpy(self.outputs)}

    def _weights(self) -> dict[str, Tensor]:
        """Return the state of model and criteria, shared tensors once."""
        once = [name for name, _ in (*self.parts.named_parameters(), *self.parts.named_buffers())]
        state = self.parts.state_dict()
        return {name: state[name] for name in once if name in state}

    def _kept_weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._weights().items()}

    def _go_on(self) -> None:
        """Resume from the last epoch on disk, if there is one from the same libraries."""
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
