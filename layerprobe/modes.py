"""What a caller may have set torch to, and what numbers and weights of ours must not depend on. Knows torch alone."""

import contextlib
from collections.abc import Iterator

import torch

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
