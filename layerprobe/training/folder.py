"""The folder of a trained model: what may be replaced, its numbers and its card, and how a run becomes one.

Knows folders, records and locks; knows nothing of training.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from huggingface_hub import ModelCardData

from layerprobe.errors import DamagedStoreError, DataError
from layerprobe.files.atomic import from_home
from layerprobe.files.checked_json import read_kept
from layerprobe.files.folders import SUMS, folder_errors, folder_problems, new_folder
from layerprobe.files.serialisation import sealed
from layerprobe.store.key import is_fingerprint
from layerprobe.training.run_directory import RunDirectory


class Record(Protocol):
    """The numbers of a trained model."""

    @property
    def fingerprint(self) -> str:
        """sha256 of all that the weights depend on."""


R = TypeVar("R", bound=Record)
Work = Callable[[RunDirectory], tuple[R, Callable[[Path], None]]]
"""Trains, from the last saved step if there is one: the numbers, and what writes the model to a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(Generic[R]):
    """A kind of folder with a trained model: an ordinary checkpoint, its numbers and a card."""

    kind: type[R]
    """Of the numbers."""
    record: str
    """The name of their file."""
    card: Callable[[R], str]
    """Returns the model card: YAML front matter and Markdown."""
    what: str
    """What the model is called in messages, such as adapted model."""
    suffix: str
    """What the directory of an unfinished run is called, behind the name of the folder."""
    doing: str
    """What another process does there, such as adapts a model."""
    differs: str
    """What another model at the folder was made of, such as: was adapted to other texts."""

    def make(
        self, out: str | Path, work: Work[R], *, fingerprint: str, overwrite: bool, source: Path | None = None
    ) -> R:
        """Train a model into a folder, or return the numbers of the one that is there; one process at a time.

        With `overwrite`, such a model there, or an unfinished other one, is replaced; nothing else ever is, and never
        `source`, the local model that is trained.
        """
        target, _ = self.check(out, overwrite=overwrite, source=source)
        run_directory = RunDirectory(target, suffix=self.suffix, doing=self.doing, fingerprint=fingerprint)
        with run_directory.locked():
            target, finished = self.check(out, overwrite=overwrite, source=source)
            if finished is not None and not overwrite:
                if finished.fingerprint != fingerprint:
                    raise DataError(
                        f"{out} holds a model that {self.differs}: choose another folder, or replace it with "
                        "--overwrite"
                    )
                return finished
            run_directory.load(overwrite=overwrite)
            record, save_model = work(run_directory)
            advice = f"choose another place for the {self.what}"
            with folder_errors(target, advice=advice), new_folder(target, replace=overwrite) as folder:
                save_model(folder)
                # a folder of the store is named by what it holds, one of a user as it pleases
                name = f"{target.name}/{self.record}" if is_fingerprint(target.name) else ""
                (folder / self.record).write_bytes(sealed(record, name=name))
                (folder / "README.md").write_bytes(self.card(record).encode("utf-8", "backslashreplace"))
            run_directory.clear()
        return record

    def check(self, out: str | Path, *, overwrite: bool = False, source: Path | None = None) -> tuple[Path, R | None]:
        """Return the real path of a folder that may be written, and the numbers of the model that is there.

        With `overwrite` there are none of a model that is not as it was written.
        """
        target = Path(os.path.realpath(from_home(out)))
        with folder_errors(Path(out), advice=f"choose another place for the {self.what}"):
            if not target.exists():
                return target, None
            if not target.is_dir():
                raise DataError(f"expected a folder for the {self.what}, got the file {out}")
            if not any(target.iterdir()):
                return target, None
        # a list of checksums beside the record is our hand, whatever became of both
        ours = (target / self.record).is_file() and (target / SUMS).is_file()
        record = None
        try:
            record = self.read(target)
        except DamagedStoreError as error:
            if ours and not overwrite:
                advice = f"remove {out}, or where there is --overwrite, replace it with that"
                raise DamagedStoreError(f"{error}: {advice}") from error
        if record is None and not ours:
            raise DataError(
                f"{out} is not empty and holds no {self.what}, so it is not replaced: choose another folder"
            )
        if overwrite and source is not None and target in (real := Path(os.path.realpath(source)), *real.parents):
            raise DataError(f"{out} holds the model itself, so it is not replaced: choose another folder")
        return target, record

    def read(self, folder: Path) -> R | None:
        """Return the numbers of the model in a folder, None where there are none."""
        for problem in folder_problems(folder):
            raise DamagedStoreError(problem)
        return read_kept(self.kind, folder / self.record, root=folder.parent)


def model_card(tags: Sequence[str], *parts: str, base_model: str | None = None) -> str:
    """Return a card of such parts: YAML front matter and Markdown."""
    data = ModelCardData(
        library_name="transformers", tags=["feature-extraction", "layerprobe", *tags], base_model=base_model
    )
    return "\n\n".join((f"---\n{data.to_yaml()}\n---", *parts)) + "\n"


def as_block(lines: Iterable[str]) -> str:
    """Return lines as an indented block, in which Markdown sees no markup."""
    return "\n".join(f"    {' '.join(line.splitlines())}".rstrip() for line in lines)


def check_intervals(checkpoint_every: int, evaluate_every: int | None) -> None:
    """Raise DataError unless there is at least one step between two saved or evaluated ones."""
    if checkpoint_every < 1 or (evaluate_every is not None and evaluate_every < 1):
        raise DataError(
            "expected at least one step between two saved or evaluated ones, got "
            f"checkpoint_every={checkpoint_every} and evaluate_every={evaluate_every}"
        )
