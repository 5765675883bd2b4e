"""Progress of a training, and common parts of the protocols of all trainings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layerprobe.checks import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The parts of an objective after some steps, each by its name and metric, such as mlm_loss.

    A loss is the mean over its positions, in nats. The held-out set also has rates, 0 .. 1: accuracy,
    and for detection of replaced tokens precision, recall and the share replaced.
    """

    step: int
    """Number of steps taken; 0 is the initial model."""
    train: dict[str, float]
    """Mean losses since the last evaluation; empty at the beginning."""
    held_out: dict[str, float | None]
    """Losses and rates of the held-out set, always with the same masks; None for a rate without counts."""


def check_protocol(protocol: Any, further: Mapping[str, bool], *, example: str) -> None:
    """Raise DataError, listing all errors, unless the numbers of a training protocol are in range.

    Common fields have the same names in all protocols; `further` has conditions on other fields with their truth.
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
    """Return the expectations of a protocol that masks tokens, and whether they hold."""
    shares = (protocol.random_share, protocol.kept_share)
    return {
        "at least one batch a step": protocol.accumulation >= 1,
        "a masking rate above 0, at most 1": 0 < protocol.masking_rate <= 1,
        "random and kept shares from 0, together at most 1": min(shares) >= 0 and sum(shares) <= 1,
    }
