"""How far a model is in training, and what the protocols of all trainings have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layerprobe.checks import check_fields


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


def check_protocol(protocol: Any, further: Mapping[str, bool], *, example: str) -> None:
    """Raise DataError, naming all that is wrong, unless the numbers of a protocol of any training are in range.

    What they have in common has the same names; `own` says what is expected of further fields, and whether it holds.
    """
    expected = {
        "a finite learning rate above 0": 0 < protocol.learning_rate < math.inf,
        "a finite weight decay of 0 or more": 0 <= protocol.weight_decay < math.inf,
        f"at least one {example} a batch": protocol.batch_size >= 1,
        "a warm-up from 0 to 1": 0 <= protocol.warmup <= 1,
        "a finite gradient norm above 0": 0 < protocol.max_grad_norm < math.inf,
        **further,
    }
    check_fields(protocol, expected)


def masking_in_range(protocol: Any) -> dict[str, bool]:
    """Return what is expected of a protocol that masks tokens, with whether it holds."""
    shares = (protocol.random_share, protocol.kept_share)
    return {
        "at least one batch a step": protocol.accumulation >= 1,
        "a masking rate above 0, at most 1": 0 < protocol.masking_rate <= 1,
        "random and kept shares from 0, together at most 1": min(shares) >= 0 and sum(shares) <= 1,
    }
