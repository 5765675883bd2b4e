"""Torch's global generators, from which weights and dropout are drawn. Knows devices; knows no model."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerprobe.process import OneAtATime

_IN_USE = OneAtATime()
_DRAWS = {"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_"}
"""Functions of tensors and of `torch.nn.init` that draw all values anew."""
_ASKING = "get_torch_context_manager_or_global_device"


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
    """Within it, in this thread, models are made without drawing weights, which are replaced later.

    Layers of torch keep what was in the memory, which nothing touches. What code draws by itself is 0: it may draw
    until all values lie in a range. Models of transformers do not initialise their weights on the meta device, as which
    it shows itself to them.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in _DRAWS:
            tensor: Tensor = args[0] if args else kwargs["tensor"]
            return tensor if getattr(func, "__module__", None) == nn.init.__name__ else tensor.detach().zero_()
        if name in ("rand", "randn"):
            kwargs.pop("generator", None)
            return torch.zeros(*args, **kwargs)
        if func is torch.tensor and sys._getframe(1).f_code.co_name == _ASKING:
            return torch.empty(0, device="meta")
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
