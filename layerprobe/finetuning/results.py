"""What a run leaves in its directory: its result with its outputs, or why it failed.

Knows files and their checksums; knows nothing of how a run is made.
"""

import contextlib
import logging
from pathlib import Path

from layerprobe.errors import DamagedStoreError, StoreError
from layerprobe.files.atomic import make_directory
from layerprobe.files.folders import read_kept, write_kept
from layerprobe.finetuning.outputs import OUTPUTS, RunOutputs, read_outputs, write_outputs
from layerprobe.finetuning.values import FailedRun, FineTuningRun, JointRun, R, RunsOrigin
from layerprobe.versions import versions

logger = logging.getLogger(__name__)

RESULT, FAILED, ORIGIN = "result.json", "failed.json", "origin.json"


def load_finished(kind: type[R], directory: Path) -> R | None:
    """Return the finished run of a directory, or None; one not as it was written, with its outputs, is unfinished.

    One without a checksum, of an older layerprobe, is read if it is of this directory and its outputs are whole.
    """
    try:
        run = read_kept(kind, directory / RESULT, root=runs_root(directory))
        if run is not None and directory.name != (expected := directory_name(run)):
            raise DamagedStoreError(f"{directory / RESULT} cannot be read (it is of {expected})")
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
    """Return what the runs of a folder are of; None where an older layerprobe made them, which did not write it."""
    return read_kept(RunsOrigin, folder / ORIGIN, root=folder.parent)


def runs_root(directory: Path) -> Path:
    """Return the folder of all runs, of whatever model and task."""
    return directory.parent.parent


def directory_name(run: FineTuningRun | JointRun) -> str:
    """Return the name of the folder that a run is kept in."""
    return f"{run.weighting}-seed-{run.seed}" if isinstance(run, JointRun) else f"layer-{run.layer:03d}-seed-{run.seed}"
