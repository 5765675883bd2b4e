"""Runs as `RunSet.make` leaves them, made by hand."""

from typing import Any

import numpy as np
from filelock import FileLock

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.files.atomic import make_directory
from layerprobe.finetuning.losses import Loss, PreparedItems
from layerprobe.finetuning.outputs import RunOutputs
from layerprobe.finetuning.runs import RunFolder
from layerprobe.finetuning.saved import save_failure, save_finished
from layerprobe.finetuning.tmft import evaluate, fine_tune
from layerprobe.finetuning.values import FailedRun, FineTuningRun, Protocol
from layerprobe.tasks.evaluation import Evaluation

Tuned = tuple[FineTuningRun, RunOutputs]
"""What `fine_tune` returns."""


def outputs_of(layer: int) -> RunOutputs:
    """Some outputs."""
    return RunOutputs(layers=(layer,), validation=np.ones((1, 2)), test=np.ones((1, 3)))


def tuned(*arguments: Any, **options: Any) -> FineTuningRun:
    """The run that `fine_tune` makes, without its outputs."""
    run, _ = fine_tune(*arguments, **options)
    return run


def save_run(folder: RunFolder, run: FineTuningRun) -> None:
    """Write a result with some outputs."""
    directory = folder.run_path(run.layer, run.seed)
    make_directory(directory)
    save_finished(directory, run, outputs_of(run.layer))


def mark_failed(folder: RunFolder, failed: FailedRun) -> None:
    """Mark a run as failed."""
    directory = folder.run_path(failed.layer, failed.seed)
    make_directory(directory)
    save_failure(directory, failed)


def lock_of(folder: RunFolder, layer: int, seed: int) -> FileLock:
    """The lock that a process holds while it makes a run."""
    make_directory(folder.run_path(layer, seed))
    return FileLock(folder.run_path(layer, seed) / "lock")


def evaluated(
    encoder: Encoder,
    model: TruncatedEncoder,
    examples: PreparedItems,
    protocol: Protocol,
    criterion: Loss,
    *,
    kind: str,
    threshold: float | None = None,
) -> Evaluation:
    """What a model of one layer scores."""
    _, (scores,) = evaluate(
        encoder, model, examples, protocol=protocol, criteria=[criterion], kind=kind, thresholds=[threshold]
    )
    assert scores is not None
    return scores
