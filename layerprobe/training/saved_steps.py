"""Steps of a run on disk, to go on from. Knows tensors and files; knows no model.

A folder holds `step-N/`, whole or not at all: weights, optimiser and states of the generators as safetensors, the rest
as JSON. The last one counts.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from layerprobe.errors import DamagedStoreError
from layerprobe.files.atomic import store_errors
from layerprobe.files.checked_json import read_kept
from layerprobe.files.folders import folder_errors, folder_problems, new_folder
from layerprobe.files.serialisation import sealed

logger = logging.getLogger(__name__)

STATE, TENSORS = "state.json", "tensors.safetensors"

S = TypeVar("S")


class SavedSteps(Generic[S]):
    """The saved steps in a folder that is locked by the caller.

    `kind` is the type of what is saved beside tensors, `root` the folder above that no link may lead out of, `advice`
    what to do where the disk fails, and `name` the end of the folder's path, by which a step that was moved is known.
    """

    def __init__(self, path: Path, kind: type[S], *, root: Path, advice: str, name: str) -> None:
        self.path, self.kind, self.root, self.advice, self.name = path, kind, root, advice, name

    def save(self, step: int, state: S, tensors: Mapping[str, Tensor]) -> None:
        """Write a step, whole or not at all, then remove the one before; StoreError if the disk fails."""
        target = self.path / f"step-{step:09d}"
        with folder_errors(target, advice=self.advice):
            with new_folder(target, replace=True) as folder:
                save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
                (folder / STATE).write_bytes(sealed(state, name=f"{self.name}/{target.name}/{STATE}"))
            for old in self.folders():
                if old != target:
                    shutil.rmtree(old)

    def last(self) -> tuple[S, dict[str, Tensor]] | None:
        """Return the last step that is as it was written, None where there is none; others are removed, and said."""
        for step in reversed(self.folders()):
            with store_errors("read", step):
                try:
                    for problem in folder_problems(step):
                        raise DamagedStoreError(problem)
                    state = read_kept(self.kind, step / STATE, root=self.root)
                    if state is None:
                        raise DamagedStoreError(f"{step / STATE} is missing")
                    # safetensors calls every file that it cannot open missing
                    (step / TENSORS).open("rb").close()
                    return state, load_file(step / TENSORS)
                except (DamagedStoreError, FileNotFoundError, ValueError, SafetensorError) as error:
                    logger.warning("%s cannot be read (%s): the run begins anew", step, error)
                    shutil.rmtree(step, ignore_errors=True)
        return None

    def clear(self) -> None:
        """Remove all saved steps."""
        for step in self.folders():
            shutil.rmtree(step, ignore_errors=True)

    def folders(self) -> list[Path]:
        """Return the folders of the steps, the first one first."""
        return sorted(self.path.glob("step-*"))
