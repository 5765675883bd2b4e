"""Torch's global state: generators of weights and dropout, and modes that a caller may have set.

Knows devices; knows no model.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerprobe.process import while_needed

_CASTING = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices that may have autocast on; `without_autocast` turns it off only there."""


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the tensors' own precision, even inside the caller's `torch.autocast`."""
    with contextlib.ExitStack() as stack:
        for kind in _CASTING:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Make and train weights with gradients, even inside the caller's `no_grad` or `inference_mode`."""
    with without_autocast(), torch.inference_mode(False), torch.enable_grad():
        yield


@while_needed
@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 products, whatever the process allows elsewhere."""
    places: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not all(hasattr(place, "fp32_precision") for place in places):  # before torch 2.9
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
        return
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


_IN_USE = threading.RLock()
_DRAWS = {"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_"}
"""Functions of tensors and of `torch.nn.init` that overwrite all values with random ones."""
_ASKING = "get_torch_context_manager_or_global_device"


@contextlib.contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Draw from the CPU's generator, which draws weights, optionally from a seed; restore its state afterwards.

    Other threads wait, as in `seeded`.
    """
    with _IN_USE, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


class Undrawn(TorchFunctionMode):
    """Make models in this thread without drawing weights, which are replaced later.

    Layers of torch keep uninitialised memory. Values that model code draws by itself are 0: such code may draw
    until all values lie in a range. Models of transformers skip initialisation on the meta device, so the mode
    reports the meta device to them.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DRAWS:
            tensor: Tensor = args[0] if args else kwargs["tensor"]
            return tensor if getattr(func, "__module__", None) == nn.init.__name__ else tensor.detach().zero_()
        if name in ("rand", "randn"):
            kwargs.pop("generator", None)
            return torch.zeros(*args, **kwargs)
        if func is torch.tensor and sys._getframe(1).f_code.co_name == _ASKING:
            return torch.empty(0, device="meta")
        return func(*args, **kwargs)


_LARGE = 2**22
"""Entries above which a weight shares memory, see `SharedWeights`."""


class SharedWeights(TorchFunctionMode):
    """Make models in this thread with random weights; large weights are views of one small tensor.

    Models of any size then take little memory and time. No two rows or columns of a weight are equal.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        written = args[0] if args else kwargs.get("tensor")
        if (name == "__setitem__" or re.fullmatch("[a-z].*_", name)) and self._is_shared(written):
            return written
        if func is torch.linalg.qr:  # drawing orthogonal weights takes minutes
            return args[0], torch.ones(2 * args[0].shape[-1:])
        if func in (torch.empty, torch.randn):
            empty = func(*args, **{**kwargs, "device": "meta"})
            if empty.is_floating_point() and empty.numel() > _LARGE:
                strides = (17, 13, 11, 7, 1)[-empty.ndim :]
                return self._numbers.as_strided(empty.shape, strides)
        return func(*args, **kwargs)

    @cached_property
    def _numbers(self) -> Tensor:
        return 0.02 * torch.randn(2 * _LARGE)

    def _is_shared(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or tensor.device.type != "cpu" or "_numbers" not in self.__dict__:
            return False
        return tensor.untyped_storage().data_ptr() == self._numbers.untyped_storage().data_ptr()


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed the generators, unless the seed is None, and restore their states at the end.

    Other threads wait: their draws would change the numbers here.
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
    """Return the states of the generators that dropout uses on a device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_rng(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore states from `rng_states`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states["mps"])
