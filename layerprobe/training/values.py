"""How far a model is in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The parts of an objective after some steps, each by its name and what is measured, such as mlm_loss.

    A loss is the mean over the positions that carry it, in nats. Of held-out texts there are rates, 0 .. 1, beside:
    accuracy, and of a part that tells which tokens were replaced precision, recall and the share replaced.
    """

    step: int
    """Steps taken; 0 is the model as it was."""
    train: dict[str, float]
    """Mean losses since the last such measurement; empty at the beginning."""
    held_out: dict[str, float | None]
    """Losses and rates of the held-out texts, always the same masks; None where a rate counts nothing."""
