"""How long work tells that it moves on. Knows nothing but the shape of the call."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, how much of it is done, and how much there is."""

    def __call__(self, task: str, done: float, total: float) -> None:
        """Report that `done` of `total` units of `task` are done."""


def part_of(progress: Progress, *, start: float, share: float, whole: float) -> Progress:
    """Return what reports a piece of work as the `share` of a whole that begins at `start`."""

    def report(task: str, done: float, total: float) -> None:
        progress(task, start + share * done / total, whole)

    return report


def silent(task: str, done: float, total: float) -> None:
    """Report nothing."""
