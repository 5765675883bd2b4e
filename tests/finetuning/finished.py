"""Runs as `RunSet.make` leaves them, made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.files.atomic import make_directory
from layerprobe.finetuning.losses import Loss, PreparedItems
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.runs import load_finished, run_directory, save_failure, save_finished
from layerprobe.finetuning.tmft import evaluate, fine_tune
from layerprobe.finetuning.values import FineTuningRun, Protocol, TuningResult
from layerprobe.tasks.evaluation import Evaluation

Tuned = tuple[tuple[FineTuningRun, ...], RunOutputs]
"""What `fine_tune` returns."""


def outputs_of(layer: int) -> RunOutputs:
    """Some outputs."""
    return RunOutputs(layers=(layer,), validation=np.ones((1, 2)), test=np.ones((1, 3)))


def tuned(*arguments: Any, **options: Any) -> FineTuningRun:
    """The run that `fine_tune` makes, without its outputs."""
    (run,), _ = fine_tune(*arguments, **options)
    return run


def save_run(folder: Path, run: FineTuningRun) -> None:
    """Write a result with some outputs."""
    directory = run_directory(folder, run.layer, run.seed)
    make_directory(directory)
    save_finished(directory, (run,), outputs_of(run.layer))


def run_in(folder: Path, layer: int, seed: int) -> FineTuningRun | None:
    """The finished run, or None."""
    runs = load_finished(run_directory(folder, layer, seed))
    return None if runs is None else runs[0]


def directories_of(result: TuningResult) -> list[Path]:
    """Where the runs of a result are kept, each directory once."""
    return list(dict.fromkeys(run.directory for run in result.runs))


def mark_failed(folder: Path, layer: int, seed: int, message: str = "no") -> None:
    """Mark a run as failed."""
    directory = run_directory(folder, layer, seed)
    make_directory(directory)
    save_failure(directory, message)


def lock_of(folder: Path, layer: int, seed: int) -> FileLock:
    """The lock that a process holds while it makes a run."""
    directory = run_directory(folder, layer, seed)
    make_directory(directory)
    return FileLock(directory / "lock")


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
