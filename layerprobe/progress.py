"""How long work tells that it moves on. Knows nothing but the shape of the call, and how to say how long."""

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


def duration(seconds: float) -> str:
    """Return a time in plain words.

    Examples:
        >>> duration(42.3), duration(300), duration(9000)
        ('42 s', '5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
