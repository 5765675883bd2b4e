"""AdamW and its linear schedule, for every loop that trains. Knows parameters and steps; knows no model and no data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def adamw(
    parameters: Sequence[nn.Parameter], *, learning_rate: float, weight_decay: float, fused: bool
) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices alone, not on biases and norms.

    Args:
        parameters: Those that are trained.
        learning_rate: Peak of the schedule.
        weight_decay: Of the matrices.
        fused: Whether a step is one pass over the weights instead of a dozen: the same formula, rounded otherwise.
    """
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=fused or None)


def rate(step: int, *, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a step, from 0: linear up, linear down to 0, and 0 from then on.

    Args:
        step: Steps taken.
        total_steps: Of the run.
        warmup: Share of them in which the rate rises.

    Example:
        >>> [rate(step, total_steps=10, warmup=0.2) for step in (0, 1, 2, 6, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else max(0.0, (total_steps - step) / max(1, total_steps - rising))
