"""An unfinished run on disk, beside the folder that it will become. Knows files; knows no model.

`FOLDER.unfinished/` (the ending is the caller's) holds `step-N/`, see `SavedSteps`.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from torch import Tensor

from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import inside, make_directory, remove_leftovers, store_errors
from layerprobe.training.saved_steps import SavedSteps
from layerprobe.training.values import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """Where a run was when it was saved, but for its tensors."""

    fingerprint: str
    """sha256 of all that the weights depend on."""
    step: int
    """Steps taken."""
    n_tokens: int
    """Tokens trained on."""
    seconds: float
    """Of training and evaluation, so far."""
    training_seconds: float
    """Of training alone."""
    totals: dict[str, float]
    """Summed losses of every part since the last evaluation, and the positions that carried them."""
    metrics: tuple[StepMetrics, ...]


class RunDirectory:
    """The directory of an unfinished run beside `out`, which it will become; one process at a time.

    Its name is that of `out` with `suffix`; `doing` is what another process does there, for the message that says so.
    """

    def __init__(self, out: Path, *, suffix: str, doing: str, fingerprint: str) -> None:
        self.out, self.doing, self.fingerprint = out, doing, fingerprint
        self.path = out.with_name(out.name + suffix)
        self.steps = SavedSteps(
            self.path, SavedStep, root=out.parent, advice="choose another place for the model", name=self.path.name
        )
        self.last: tuple[SavedStep, dict[str, Tensor]] | None = None
        """The step to go on from, once it is loaded."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away, or raise StoreError; a directory without a saved step is removed in the end."""
        make_directory(inside(self.out.parent, self.path))
        lock = FileLock(inside(self.path, self.path / "lock"))
        busy = f"another process {self.doing} for {self.out}: wait until it is done, or choose another folder"
        with store_errors("lock", Path(lock.lock_file)):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise StoreError(busy) from None
        try:
            if not self.path.is_dir():  # removed by the process that was done just now
                raise StoreError(busy)
            remove_leftovers(self.path)
            yield
        finally:
            unfinished = bool(self.steps.folders())
            lock.release()
            if not unfinished:
                shutil.rmtree(self.path, ignore_errors=True)

    def save(self, saved: SavedStep, tensors: dict[str, Tensor]) -> None:
        """Write a step, whole or not at all, then remove the one before; StoreError if the disk fails."""
        self.steps.save(saved.step, saved, tensors)

    def load(self, *, overwrite: bool) -> None:
        """Load the last saved step, if there is one; one of another run is removed with `overwrite`, or a DataError."""
        last = self.steps.last()
        if last is None or last[0].fingerprint == self.fingerprint:
            self.last = last
        elif overwrite:
            self.clear()
        else:
            raise DataError(
                f"{self.path} holds an unfinished run with another model, other texts or other settings: go on "
                "with those, choose another folder, or begin anew with --overwrite"
            )

    def clear(self) -> None:
        """Remove all saved steps."""
        self.steps.clear()
