"""What a run leaves in its directory: its result with its outputs, or why it failed, and with `model/` its weights.

Knows files and their checksums; knows nothing of how a run is made. `model/` is there whole or not at all, and says
what it started from.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import transformers

from layerprobe.checks import one_layer
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import (
    DamagedStoreError,
    DataError,
    StoreError,
    UnsupportedArchitectureError,
    another_folder,
    option,
)
from layerprobe.files.atomic import inside, make_directory, store_errors
from layerprobe.files.folders import folder_errors, folder_problems, new_folder, read_kept, write_kept
from layerprobe.files.serialisation import RARE, sealed
from layerprobe.finetuning.outputs import OUTPUTS, RunOutputs, read_outputs, write_outputs
from layerprobe.finetuning.values import FineTuningRun, Weighting
from layerprobe.store.manifest import is_fingerprint
from layerprobe.tasks.values import Task
from layerprobe.versions import versions

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


logger = logging.getLogger(__name__)

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
