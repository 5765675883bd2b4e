"""What a caller may have set torch to, and what numbers and weights of ours must not depend on. Knows torch alone."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from layerprobe.process import while_needed

_CASTING = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices on which autocast may be on; it is undone where it is, so that others need not know it."""


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the precision of the numbers, whatever `torch.autocast` the caller is in."""
    with contextlib.ExitStack() as stack:
        for kind in _CASTING:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Make weights that can be trained, and train them, in the caller's `no_grad` and `inference_mode`, too."""
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
