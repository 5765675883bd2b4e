"""How long work tells that it moves on. Knows nothing but the shape of the call."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, how much of it is done, and how much there is."""

    def __call__(self, task: str, done: float, total: float) -> None:
        """Report that `done` of `total` units of `task` are done."""


def silent(task: str, done: float, total: float) -> None:
    """Report nothing."""
