"""The weights of fine-tuning runs: a run's directory holds `model/`, whole or not at all, with where it comes from.

Knows a run's directory; knows nothing of how it was trained.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError, UnsupportedArchitectureError
from layerprobe.files import store_errors
from layerprobe.finetuning.values import FineTuningRun, JointRun
from layerprobe.folders import folder_errors, new_folder
from layerprobe.serialisation import from_json, to_bytes
from layerprobe.tasks.values import Task

MODEL = "model"
ORIGIN = "layerprobe.json"
_ADVICE = "choose another folder with --cache-dir or LAYERPROBE_CACHE"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A finished run with its weights."""

    path: Path
    """The Hugging Face checkpoint."""
    run: FineTuningRun
    """Of a joint run, what it says of the layer that was asked for."""
    origin: RunOrigin
    joint: bool = False
    """Whether the checkpoint is the whole model of a joint run, to be truncated at the layer."""


def has_model(directory: Path) -> bool:
    """Return whether a run's directory holds its weights; the origin is written last."""
    return (directory / MODEL / ORIGIN).is_file()


@contextlib.contextmanager
def saving_model(directory: Path, encoder: Encoder, *, layer: int | None, task: Task, prompt: str) -> Iterator[Path]:
    """Give a folder for the checkpoint of a locked run; it becomes the run's `model/` when all is written.

    The layer is None for a joint run, whose model is the whole one.

    Raises:
        UnsupportedArchitectureError: Before any training, if this layer has no checkpoint.
        StoreError: If the folder cannot be written.
    """
    if layer == 0 and TruncatedEncoder(encoder, 0, share=True).reads_input_of_block:
        raise UnsupportedArchitectureError(
            f"{encoder.description.architecture} does not run without a block, so layer 0 has no checkpoint to save: "
            "expected layers from 1 with --save-models"
        )
    origin = RunOrigin(
        model=encoder.description,
        task=task.name,
        task_digest=task.digest,
        pairs=(len(task.train), len(task.validation), len(task.test)),
        prompt=prompt,
    )
    with folder_errors(directory / MODEL, advice=_ADVICE), new_folder(directory / MODEL, replace=True) as folder:
        with _no_bars():
            yield folder
        (folder / ORIGIN).write_bytes(to_bytes(origin))


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from showing how far it is with writing a file."""
    logging_: Any = transformers.utils.logging
    shown = logging_.is_progress_bar_enabled()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging_.enable_progress_bar()


def load_saved_run(directory: Path, layer: int | None = None) -> SavedRun | None:
    """Return the run that a directory holds with its weights, or None where it is no directory of a run.

    The layer is one of a joint run; a run of TMFT has its own.

    Raises:
        DataError: If its weights were not kept, what it holds cannot be read, or a joint run has no such layer.
        StoreError: If the disk does not let it be read.
    """
    result, origin = directory / "result.json", directory / MODEL / ORIGIN
    if not result.is_file():
        return None
    if not has_model(directory):
        raise DataError(
            f"the run {directory} was not asked to keep its weights: repeat `layerprobe finetune` or `layerprobe scan` "
            "with --save-models"
        )
    with store_errors("read", directory):
        texts = result.read_bytes(), origin.read_bytes()
    try:
        result_text, started_from = texts[0].decode(), from_json(RunOrigin, texts[1].decode())
        joint = from_json(JointRun, result_text) if "weighting" in json.loads(result_text) else None
        run = from_json(FineTuningRun, result_text) if joint is None else None
    except (ValueError, TypeError) as error:  # DataError is a ValueError
        raise DataError(f"the run {directory} cannot be read: {error}") from error
    if joint is not None:
        if layer is None:
            raise DataError(f"expected a layer to truncate the joint run at: give --layer, 0 to {joint.n_layers - 1}")
        run = joint.truncated(layer)
    assert run is not None
    return SavedRun(path=directory / MODEL, run=run, origin=started_from, joint=joint is not None)


def runs_of_layer(saved: SavedRun) -> list[FineTuningRun]:
    """Return this run and those of other seeds that lie beside it, by seed; what cannot be read is left out."""
    directory, run = saved.path.parent, saved.run
    runs = {run.seed: run}
    if saved.joint:
        return [run]
    for file in directory.parent.glob(f"layer-{run.layer:03d}-seed-*/result.json"):
        with contextlib.suppress(OSError, ValueError):  # DataError is one
            other = from_json(FineTuningRun, file.read_text(encoding="utf-8"))
            if (other.layer, other.protocol, other.primary) == (run.layer, run.protocol, run.primary):
                runs.setdefault(other.seed, other)
    return [runs[seed] for seed in sorted(runs)]
