"""Torch's global generators, from which dropout draws. Knows devices; knows no model."""

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

_IN_USE = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed the generators, unless the seed is None, and leave them in the end as they were.

    Other threads wait: what they drew would be missing here.
    """
    with _IN_USE:
        before = rng_states(device)
        try:
            if seed is not None:
                torch.manual_seed(seed)
            yield
        finally:
            restore_rng(before, device)


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that dropout on a device draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_rng(states: dict[str, Tensor], device: torch.device) -> None:
    """Go back to such states."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:  # runs that were interrupted under 0.2 kept none
        torch.mps.set_rng_state(states["mps"])
