"""Torch's global generators, from which weights and dropout are drawn. Knows devices; knows no model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from layerprobe.process import OneAtATime

_IN_USE = OneAtATime()
_IN_PLACE = {"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "erfinv_"}
"""Functions of tensors and of `torch.nn.init` that draw all values anew, or are of use to those alone."""


@contextlib.contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Draw from the CPU's generator, on which weights are drawn, from a seed or as it is; leave it as it was.

    Other threads wait, as in `seeded`.
    """
    with _IN_USE, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


class Undrawn(TorchFunctionMode):
    """In it, for this thread alone, what would be drawn is whatever was in the memory: for weights to be replaced."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in _IN_PLACE:
            return args[0] if args else kwargs["tensor"]
        if name in ("rand", "randn"):
            kwargs.pop("generator", None)
            return torch.empty(*args, **kwargs)
        return func(*args, **kwargs)


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
