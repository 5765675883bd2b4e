"""The epochs of a fine-tuning run: which one is best, and the last one on disk, to go on from.

Knows weights, scores and a folder; knows nothing of how an epoch is trained.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.errors import StoreError, TrainingError, another_folder
from layerprobe.finetuning.memory import TokenLimit
from layerprobe.finetuning.saved import runs_root
from layerprobe.rng import restore_rng, rng_states
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.training.artifact import SavedSteps
from layerprobe.training.loop import load_optimizer, optimizer_tensors
from layerprobe.versions import versions

if TYPE_CHECKING:
    from layerprobe.finetuning.tmft import FineTuner

logger = logging.getLogger(__name__)

SAVE_AFTER = 30.0
"""Seconds of training that are worth the time to write them down: a kill loses these and the epoch it comes in."""
_MODEL, _BEST, _RNG, _OUTPUTS = "model.", "best.", "rng.", "outputs"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpoch:
    """Where a run was at the end of an epoch, but for its tensors."""

    epoch: int
    """The last one that is done, from 1."""
    best_epoch: int
    step: int
    """Steps taken."""
    seconds: float
    """Of the run so far."""
    train_losses: tuple[tuple[float | None, ...], ...]
    """(epoch, layer): the means; None where one is not finite."""
    scores: tuple[tuple[Evaluation | None, ...], ...]
    """(epoch, layer): on the validation split; None at layers that failed."""
    failures: dict[str, str]
    """Why a layer is left out, by its number."""
    batch_tokens: int | None
    """Of a training pass at most; it is halved where memory runs out."""
    evaluation_tokens: int | None
    versions: dict[str, str]
    """Of Python and the libraries: others begin anew."""


class Epochs:
    """The epochs of a run so far; `parts` are its model and its criteria, `began` is by `time.perf_counter`.

    The best epoch is the one with the highest score, or with `keeps_last` the last one.
    With a folder, which is the run's alone, the last one is kept there, and a run that finds one goes on from it, to
    the same numbers: a `SavedEpoch` and its tensors.
    """

    def __init__(
        self,
        tuner: FineTuner,
        parts: nn.Module,
        limit: TokenLimit,
        *,
        primary: str,
        began: float,
        folder: Path | None = None,
        keeps_last: bool = False,
    ) -> None:
        self.keeps_last = keeps_last
        self.tuner, self.parts, self.limit, self.primary = tuner, parts, limit, primary
        self.train_losses: list[list[float]] = []
        self.scores: list[list[Evaluation | None]] = []
        self.best_epoch = 0
        self.outputs: Array = np.empty(0)
        """(layers, examples) or (layers, examples, classes): what the best epoch outputs for the validation split."""
        self._state: dict[str, Tensor] = {}
        """The weights of the best epoch, on the CPU: a copy of all of them is much of a GPU's memory."""
        self._began, self._saved = began, time.perf_counter()
        self._steps: SavedSteps[SavedEpoch] | None = None
        if folder is not None:
            self._steps = _saved_epochs(folder)
            self._go_on()

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def best(self) -> list[Evaluation | None]:
        """Validation scores of the best epoch, by layer."""
        return self.scores[self.best_epoch - 1]

    @property
    def seconds(self) -> float:
        """How long the run takes so far, before it was interrupted, too."""
        return time.perf_counter() - self._began

    def add(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        """Add an epoch that is done, and write it down if that is worth the time."""
        self._count(losses, outputs, scores)
        if self._steps is not None and time.perf_counter() - self._saved >= SAVE_AFTER:
            try:
                self._steps.save(len(self), self._where(), self._tensors())
            except StoreError as error:  # the run is worth more than a way to go on with it
                logger.warning("%s; fine-tuning continues, but cannot be resumed from here if it stops", error)
            self._saved = time.perf_counter()

    def restore_best(self) -> None:
        """Give the model and the criteria the weights of the best epoch."""
        self._load(self._state)

    def _count(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        self.train_losses.append(list(losses))
        self.scores.append(list(scores))
        # of the layers that go on: one that failed counts in no mean, or what is left would seem better or worse
        going_on = [layer for layer, score in enumerate(scores) if score is not None]
        if self.keeps_last or not self.best_epoch or self._mean(scores, going_on) > self._mean(self.best, going_on):
            self.best_epoch, self.outputs = len(self), outputs
            self._state = self._kept_weights()

    def _mean(self, scores: Sequence[Evaluation | None], layers: Sequence[int]) -> float:
        return float(np.mean([score.metrics[self.primary] for k in layers if (score := scores[k]) is not None]))

    # ---- to disk and back --------------------------------------------------------------------------------

    def _where(self) -> SavedEpoch:
        return SavedEpoch(
            epoch=len(self),
            best_epoch=self.best_epoch,
            step=self.tuner.step,
            seconds=self.seconds,
            train_losses=tuple(
                tuple(loss if math.isfinite(loss) else None for loss in losses) for losses in self.train_losses
            ),
            scores=tuple(map(tuple, self.scores)),
            failures={str(layer): str(error) for layer, error in self.tuner.failures.items()},
            batch_tokens=self.tuner.limit.tokens,
            evaluation_tokens=self.limit.tokens,
            versions=versions(),
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Return weights, those of the best epoch where it is another, moments, generators and its outputs."""
        weights = self._weights()
        tensors = {_MODEL + name: weight for name, weight in weights.items()}
        if self.best_epoch < len(self):
            tensors |= {_BEST + name: weight for name, weight in self._state.items()}
        states = rng_states(self.tuner.encoder.device)
        tensors |= {_RNG + name: state for name, state in states.items()}
        return tensors | optimizer_tensors(self.tuner.optimizer) | {_OUTPUTS: torch.from_numpy(self.outputs)}

    def _weights(self) -> dict[str, Tensor]:
        """Return what the state of model and criteria consists of, each tensor once, whatever shares it."""
        once = [name for name, _ in (*self.parts.named_parameters(), *self.parts.named_buffers())]
        state = self.parts.state_dict()
        return {name: state[name] for name in once if name in state}

    def _kept_weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._weights().items()}

    def _go_on(self) -> None:
        """Go back to the last epoch on disk, if there is one of the same libraries."""
        assert self._steps is not None
        last = self._steps.last()
        if last is None:
            return
        saved, tensors = last
        if saved.versions != versions():
            self._steps.clear()
            return
        tuner = self.tuner
        for losses, scores in zip(saved.train_losses, saved.scores, strict=True):
            self.train_losses.append([math.nan if loss is None else loss for loss in losses])
            self.scores.append(list(scores))
        self.best_epoch, self.outputs = saved.best_epoch, tensors[_OUTPUTS].numpy()
        self._load(tensors, _BEST if self.best_epoch < len(self) else _MODEL)
        self._state = self._kept_weights()
        self._load(tensors, _MODEL)
        load_optimizer(tuner.optimizer, tensors)
        tuner.go_on_from(saved.step)
        tuner.failures.update({int(layer): TrainingError(message) for layer, message in saved.failures.items()})
        tuner.limit.tokens, self.limit.tokens = saved.batch_tokens, saved.evaluation_tokens
        states = {name.removeprefix(_RNG): state for name, state in tensors.items() if name.startswith(_RNG)}
        restore_rng(states, tuner.encoder.device)
        self._began -= saved.seconds
        logger.info("resuming after epoch %d of %d", saved.epoch, tuner.protocol.epochs)

    @torch.no_grad()
    def _load(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        for name, weight in self._weights().items():
            weight.copy_(tensors[prefix + name])


def forget_epochs(folder: Path) -> None:
    """Remove the saved epochs of a run from its folder."""
    _saved_epochs(folder).clear()


def _saved_epochs(folder: Path) -> SavedSteps[SavedEpoch]:
    return SavedSteps(
        folder,
        SavedEpoch,
        root=runs_root(folder),
        advice=another_folder(),
        name=f"{folder.parent.name}/{folder.name}",
    )
