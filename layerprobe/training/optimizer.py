"""AdamW and its linear schedule, for every loop that trains. Knows parameters and steps; knows no model and no data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PREFIX = "optimizer."


def adamw(parameters: Sequence[nn.Parameter], protocol: Any, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW at the peak rate of any training's protocol, with its weight decay on matrices alone.

    If `fused`, a step is one pass over the weights instead of a dozen: the same formula, rounded otherwise.
    """
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": protocol.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=protocol.learning_rate, fused=fused or None)


def rate(step: int, *, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate after so many steps: linear up, linear down to 0, and 0 from then on.

    Examples:
        >>> [rate(step, total_steps=10, warmup=0.2) for step in (0, 1, 2, 6, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = round(warmup * total_steps)
    return step / rising if step < rising else max(0.0, (total_steps - step) / max(1, total_steps - rising))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of an optimiser by names to save them under."""
    states = optimizer.state_dict()["state"]
    return {f"{_PREFIX}{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser such moments back; its learning rates stay."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            number, _, field = name.removeprefix(_PREFIX).partition(".")
            states.setdefault(int(number), {})[field] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
