"""What a run leaves in its directory: its result with its outputs, or why it failed, and with `model/` its weights.

Knows files and their checksums; knows nothing of how a run is made. `model/` is there whole or not at all, and says
what it started from.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

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
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import RARE, parse_json, sealed
from layerprobe.finetuning.outputs import OUTPUTS, RunOutputs, read_outputs, write_outputs
from layerprobe.finetuning.values import FailedRun, FineTuningRun, JointRun, R, RunsOrigin
from layerprobe.store.manifest import is_fingerprint
from layerprobe.tasks.values import Task
from layerprobe.versions import versions

RESULT, FAILED, ORIGIN = "result.json", "failed.json", "origin.json"


def load_finished(kind: type[R], directory: Path) -> R | None:
    """Return the finished run of a directory, or None; one not as it was written, with its outputs, is unfinished."""
    try:
        run = read_kept(kind, directory / RESULT, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: the run is done again", error)
        return None
    return run if run is not None and read_outputs(directory) is not None else None


def save_finished(directory: Path, run: FineTuningRun | JointRun, outputs: RunOutputs) -> None:
    """Write a run into its directory: outputs first, then the result, which says that all is there."""
    write_outputs(directory, outputs)
    write_kept(directory / RESULT, run, root=runs_root(directory), files=[OUTPUTS])


def save_failure(directory: Path, failed: FailedRun) -> None:
    """Mark the run of a directory as failed; StoreError if that cannot be written."""
    write_kept(directory / FAILED, failed, root=runs_root(directory))


def load_failure(directory: Path) -> FailedRun | None:
    """Return why the run of a directory failed, or None; a garbled mark, or one of other libraries, is none."""
    try:
        failed = read_kept(FailedRun, directory / FAILED, root=runs_root(directory))
    except DamagedStoreError as error:
        logger.warning("%s: the run is done again", error)
        return None
    return failed if failed is not None and failed.versions == versions() else None


def keep_origin(folder: Path, origin: RunsOrigin) -> None:
    """Write next to the runs of a folder what they are of, where it is missing; a disk that refuses is passed over."""
    try:
        if read_origin(folder) == origin:
            return
    except DamagedStoreError as error:
        logger.warning("%s: it is written again", error)
    with contextlib.suppress(StoreError):  # runs are read without it, and those that are made meet the same disk
        make_directory(folder)
        write_kept(folder / ORIGIN, origin, root=folder.parent)


def read_origin(folder: Path) -> RunsOrigin | None:
    """Return what the runs of a folder are of; None where that was not written."""
    return read_kept(RunsOrigin, folder / ORIGIN, root=folder.parent)


def runs_root(directory: Path) -> Path:
    """Return the folder of all runs, of whatever model and task."""
    return directory.parent.parent


def directory_name(run: FineTuningRun | JointRun) -> str:
    """Return the name of the folder that a run is kept in."""
    return f"{run.weighting}-seed-{run.seed}" if isinstance(run, JointRun) else f"layer-{run.layer:03d}-seed-{run.seed}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A finished run with its weights."""

    path: Path
    """The Hugging Face checkpoint."""
    run: FineTuningRun
    """Of a joint run, what it says of the requested layer."""
    origin: RunOrigin
    joint: bool = False
    """Whether the checkpoint is the whole model of a joint run, to be truncated at the layer."""


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


def load_saved_run(directory: Path, layer: int | None = None) -> SavedRun | None:
    """Return the run that a directory holds with its weights, or None where it is no directory of a run.

    The layer is one of a joint run; a run of TMFT has its own.
    """
    directory = Path(os.path.realpath(directory))
    # elsewhere it is a copy that somebody made and named
    root = runs_root(directory) if is_fingerprint(directory.parent.name) else directory
    result = directory / RESULT
    if not result.is_file():
        return None
    if not (directory / MODEL / STARTED_FROM).is_file():
        raise DataError(
            f"the run {directory} was made without {option('save_models', True)}, so its weights were not kept: repeat "
            "`layerprobe finetune` with --save-models"
        )
    try:
        origin, joint = _read_origin(directory, root=root), is_joint(result)
        read: FineTuningRun | JointRun | None = (
            read_kept(JointRun, result, root=root) if joint else read_kept(FineTuningRun, result, root=root)
        )
    except DamagedStoreError as error:
        raise DamagedStoreError(
            f"{error}: repeat `layerprobe finetune` with --save-models, which makes it again"
        ) from error
    if isinstance(read, JointRun):
        if layer is None:
            raise DataError(
                f"expected a layer to truncate the joint run at: give {option('layer')}, 0 to {read.n_layers - 1}"
            )
        read = read.truncated(layer)
    assert isinstance(read, FineTuningRun)
    return SavedRun(path=directory / MODEL, run=read, origin=origin, joint=joint)


def is_joint(result: Path) -> bool:
    """Return whether a run's result is that of a joint run."""
    with store_errors("read", result), contextlib.suppress(DataError):
        content = parse_json(read_document(result, limit=None))
        return isinstance(content, dict) and "weighting" in content
    return False


def runs_of_layer(saved: SavedRun) -> list[FineTuningRun]:
    """Return this run and those of other seeds that lie next to it, by seed; what cannot be read is left out."""
    directory, run = saved.path.parent, saved.run
    runs = {run.seed: run}
    if saved.joint:
        return [run]
    for other_directory in directory.parent.glob(f"layer-{run.layer:03d}-seed-*"):
        with contextlib.suppress(StoreError):
            other = load_finished(FineTuningRun, other_directory)
            if other and (other.layer, other.protocol, other.primary) == (run.layer, run.protocol, run.primary):
                runs.setdefault(other.seed, other)
    return [runs[seed] for seed in sorted(runs)]
