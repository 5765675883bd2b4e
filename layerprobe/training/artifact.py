"""A trained model as a folder, and the unfinished run beside it: its record, files, lock, and saved steps.

`FOLDER.unfinished/` (callers choose the suffix) contains `step-N/`, complete or not at all: weights, optimiser and
generator states as safetensors, the rest as JSON. The last one counts. Knows files, not training.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from huggingface_hub import ModelCardData
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from layerprobe.errors import DamagedStoreError, DataError, StoreError, option
from layerprobe.files.atomic import (
    SUMS,
    folder_errors,
    folder_problems,
    locked,
    new_folder,
    read_kept,
    remove_leftovers,
    store_errors,
)
from layerprobe.files.inputs import from_home
from layerprobe.files.serialisation import sealed
from layerprobe.store.manifest import is_fingerprint

logger = logging.getLogger(__name__)

STATE, TENSORS = "state.json", "tensors.safetensors"

S = TypeVar("S")


class SavedSteps(Generic[S]):
    """The saved steps of an unfinished run, in a folder that is locked meanwhile: by the caller, or by `locked`.

    `kind` is the type of the data beside tensors, `root` the folder above that no link may lead out of, `advice`
    the advice if the disk fails, `name` the end of the folder's path, which identifies moved steps, and
    `fingerprint` the sha256 of everything the weights depend on.
    """

    def __init__(self, path: Path, kind: type[S], *, root: Path, advice: str, name: str, fingerprint: str = "") -> None:
        self.path, self.kind, self.root, self.advice, self.name = path, kind, root, advice, name
        self.fingerprint = fingerprint
        self.resumed: tuple[S, dict[str, Tensor]] | None = None
        """The step to continue from, unless the run starts from scratch."""

    @contextlib.contextmanager
    def locked(self, busy: str) -> Iterator[None]:
        """Keep other processes away, or raise StoreError; a folder without a saved step is removed at the end."""
        unfinished = True
        try:
            with locked(self.root, self.path / "lock") as held:
                if not held or not self.path.is_dir():  # removed by a process that has just finished
                    raise StoreError(busy)
                remove_leftovers(self.path)
                try:
                    yield
                finally:
                    unfinished = bool(self.folders())
        finally:
            if not unfinished:
                shutil.rmtree(self.path, ignore_errors=True)

    def save(self, step: int, state: S, tensors: Mapping[str, Tensor]) -> None:
        """Write a step, complete or not at all, then remove the previous one; StoreError if the disk fails."""
        target = self.path / f"step-{step:09d}"
        with folder_errors(target, advice=self.advice):
            with new_folder(target, replace=True) as folder:
                save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
                (folder / STATE).write_bytes(sealed(state, name=f"{self.name}/{target.name}/{STATE}"))
            for old in self.folders():
                if old != target:
                    shutil.rmtree(old)

    def last(self) -> tuple[S, dict[str, Tensor]] | None:
        """Return the last intact step, None if there is none; others are removed, with a warning."""
        for step in reversed(self.folders()):
            with store_errors("read", step):
                try:
                    for problem in folder_problems(step):
                        raise DamagedStoreError(problem)
                    state = read_kept(self.kind, step / STATE, root=self.root)
                    if state is None:
                        raise DamagedStoreError(f"{step / STATE} is missing")
                    # safetensors reports every unreadable file as missing
                    (step / TENSORS).open("rb").close()
                    return state, load_file(step / TENSORS)
                except (DamagedStoreError, FileNotFoundError, ValueError, SafetensorError) as error:
                    logger.warning("%s cannot be read (%s): the run starts again", step, error)
                    shutil.rmtree(step, ignore_errors=True)
        return None

    def clear(self) -> None:
        """Remove all saved steps."""
        for step in self.folders():
            shutil.rmtree(step, ignore_errors=True)

    def folders(self) -> list[Path]:
        """Return the folders of the steps, the first one first."""
        return sorted(self.path.glob("step-*"))


SavedStep = dict[str, Any]
"""State of a run when it was saved, without tensors: its `fingerprint`, `step`, and its trainer's counters."""
R = TypeVar("R")
"""The numbers of a trained model, including its `fingerprint`: the sha256 of everything the weights depend on."""
Work = Callable[[SavedSteps[SavedStep]], tuple[R, Callable[[Path], None]]]
"""Trains, from the last saved step if any; returns the numbers, and a function that writes the model to a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(Generic[R]):
    """A kind of folder with a trained model: an ordinary checkpoint, its numbers and a card."""

    kind: type[R]
    """Type of the numbers."""
    record: str
    """Name of the file with the numbers."""
    card: Callable[[R], str]
    """Returns the model card: YAML front matter and Markdown."""
    verb: str
    """Verb for the training, such as adapt: the model is adapted, and the directory of an unfinished run ends in
    .adapting."""

    @property
    def what(self) -> str:
        """Name of the model in messages."""
        return f"{self.verb}ed model"

    def make(
        self, out: str | Path, work: Work[R], *, fingerprint: str, overwrite: bool, source: Path | None = None
    ) -> R:
        """Train a model into a folder, or return the numbers of an existing one; one process at a time.

        With `overwrite`, such a model there, or another unfinished one, is replaced; nothing else ever is, and never
        `source`, the local model to train.
        """
        target, _ = self.check(out, overwrite=overwrite, source=source)
        steps = self.steps(target, fingerprint=fingerprint)
        busy = f"another process {self.verb}s a model for {target}: wait until it is done, or choose another folder"
        with steps.locked(busy):
            target, finished = self.check(out, overwrite=overwrite, source=source)
            if finished is not None and not overwrite:
                if getattr(finished, "fingerprint", None) != fingerprint:
                    raise DataError(
                        f"{out} has another {self.what}: its model, texts or settings differ; choose another folder, "
                        f"or replace it with {option('overwrite', True)}"
                    )
                return finished
            _go_on(steps, overwrite=overwrite)
            record, save_model = work(steps)
            advice = f"choose another folder for the {self.what}"
            with folder_errors(target, advice=advice), new_folder(target, replace=overwrite) as folder:
                save_model(folder)
                # folders of the store are named by content, those of users freely
                name = f"{target.name}/{self.record}" if is_fingerprint(target.name) else ""
                (folder / self.record).write_bytes(sealed(record, name=name))
                (folder / "README.md").write_bytes(self.card(record).encode("utf-8", "backslashreplace"))
            steps.clear()
        return record

    def steps(self, target: Path, *, fingerprint: str) -> SavedSteps[SavedStep]:
        """Return the saved steps of an unfinished run, in a directory beside its future folder."""
        path, advice = target.with_name(f"{target.name}.{self.verb}ing"), "choose another folder for the model"
        return SavedSteps(path, SavedStep, root=target.parent, advice=advice, name=path.name, fingerprint=fingerprint)

    def check(self, out: str | Path, *, overwrite: bool = False, source: Path | None = None) -> tuple[Path, R | None]:
        """Return the real path of a folder that may be written, and the numbers of an existing model.

        With `overwrite` a damaged model has no numbers.
        """
        target = Path(os.path.realpath(from_home(out)))
        with folder_errors(Path(out), advice=f"choose another folder for the {self.what}"):
            if not target.exists():
                return target, None
            if not target.is_dir():
                raise DataError(f"expected a folder for the {self.what}, got the file {out}")
            if not any(target.iterdir()):
                return target, None
        # a list of checksums beside the record shows that we wrote the folder, even if both are damaged
        ours = (target / self.record).is_file() and (target / SUMS).is_file()
        record = None
        try:
            record = self.read(target)
        except DamagedStoreError as error:
            if ours and not overwrite:
                advice = f"remove {out}, or replace it with {option('overwrite', True)} if available"
                raise DamagedStoreError(f"{error}: {advice}") from error
        if record is None and not ours:
            raise DataError(f"{out} is not empty and has no {self.what}, so it is not replaced: choose another folder")
        if overwrite and source is not None and target in (real := Path(os.path.realpath(source)), *real.parents):
            raise DataError(f"{out} is the folder of the model itself: choose another folder")
        return target, record

    def read(self, folder: Path) -> R | None:
        """Return the numbers of the model in a folder, None if there is none."""
        for problem in folder_problems(folder):
            raise DamagedStoreError(problem)
        return read_kept(self.kind, folder / self.record, root=folder.parent)


def _go_on(steps: SavedSteps[SavedStep], *, overwrite: bool) -> None:
    """Find the step to continue from; one of another run is removed with `overwrite`, else DataError."""
    last = steps.last()
    if last is None or last[0]["fingerprint"] == steps.fingerprint:
        steps.resumed = last
    elif overwrite:
        steps.clear()
    else:
        raise DataError(
            f"{steps.path} contains an unfinished run with another model, other texts or settings: continue "
            f"with those, choose another folder, or start again with {option('overwrite', True)}"
        )


def model_card(tags: Sequence[str], *parts: str, base_model: str | None = None) -> str:
    """Return a card from its parts: YAML front matter and Markdown."""
    data = ModelCardData(
        library_name="transformers", tags=["feature-extraction", "layerprobe", *tags], base_model=base_model
    )
    return "\n\n".join((f"---\n{data.to_yaml()}\n---", *parts)) + "\n"


def as_block(lines: Iterable[str]) -> str:
    """Return lines as an indented block that Markdown renders verbatim."""
    return "\n".join(f"    {' '.join(line.splitlines())}".rstrip() for line in lines)
