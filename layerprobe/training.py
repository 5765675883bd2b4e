"""What trainings share: the optimiser and its schedule, and the saved steps of an unfinished run.

`FOLDER/step-N/` is complete or not there at all: weights, optimiser and generator states as safetensors, the rest as
JSON. The last one counts. Knows files and tensors, not models.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from layerprobe.errors import DamagedStoreError, StoreError
from layerprobe.files.atomic import (
    folder_errors,
    folder_problems,
    locked,
    new_folder,
    read_kept,
    remove_leftovers,
    store_errors,
)
from layerprobe.files.serialisation import sealed

logger = logging.getLogger(__name__)

STATE, TENSORS = "state.json", "tensors.safetensors"
_PREFIX = "optimizer."

S = TypeVar("S")


def adamw(parameters: Sequence[nn.Parameter], protocol: Any, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW at the peak rate of a training protocol, with weight decay on matrices only.

    If `fused`, a step is one pass over the weights instead of a dozen: the same formula with other rounding.
    """
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": protocol.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=protocol.learning_rate, fused=fused or None)


def rate(step: int, *, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate after `step` steps: linear up, linear down to 0, then 0.

    Examples:
        >>> [rate(step, total_steps=10, warmup=0.2) for step in (0, 1, 2, 6, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else max(0.0, (total_steps - step) / max(1, total_steps - rising))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of an optimiser under names for saving."""
    states = optimizer.state_dict()["state"]
    return {f"{_PREFIX}{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the moments of an optimiser; its learning rates stay."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            number, _, field = name.removeprefix(_PREFIX).partition(".")
            states.setdefault(int(number), {})[field] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


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
            with locked(self.root, self.path / "lock") as acquired:
                if not acquired or not self.path.is_dir():  # removed by a process that has just finished
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
