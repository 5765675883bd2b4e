"""How far a model is in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The parts of an objective after some steps, each by its name and metric, such as mlm_loss.

    A loss is the mean over the positions that carry it, in nats. The held-out set has rates, 0 .. 1, too: accuracy,
    and of a part that detects replaced tokens precision, recall and the share replaced.
    """

    step: int
    """Steps taken; 0 is the model as it was."""
    train: dict[str, float]
    """Mean losses since the last evaluation; empty at the beginning."""
    held_out: dict[str, float | None]
    """Losses and rates of the held-out set, always with the same masks; None where a rate counts nothing."""
