"""Settings of every call that need not be passed: level of intervals, progress, scores by item."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from layerprobe.checks import LEVEL, check_level
from layerprobe.progress import Progress, notebook_bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that hold for every call."""

    level: float = LEVEL
    """Of all intervals, between 0 and 1."""
    progress: Progress = notebook_bar
    """Called with what is being done, how much of it is done, and how much there is; by default a bar in notebooks."""
    by_item: bool = False
    """Whether scores without fine-tuning keep what each item adds to them, from which their errors are computed."""


DEFAULT_SETTINGS = Settings()

_CURRENT: ContextVar[Settings] = ContextVar("settings", default=DEFAULT_SETTINGS)


def current() -> Settings:
    """Return the settings that hold here."""
    return _CURRENT.get()


@contextlib.contextmanager
def settings(
    *, level: float | None = None, progress: Progress | None = None, by_item: bool | None = None
) -> Iterator[Settings]:
    """Let other settings hold inside a `with` block, in this thread.

    Args:
        level: Of all intervals, between 0 and 1.
        progress: Called with what is being done, how much of it is done, and how much there is.
        by_item: Whether scores without fine-tuning keep what each item adds to them.

    Raises:
        DataError: If the level is not between 0 and 1.

    Examples:
        >>> with settings(level=0.99):
        ...     current().level
        0.99
    """
    check_level(current().level if level is None else level)
    changes: dict[str, Any] = {"level": level, "progress": progress, "by_item": by_item}
    chosen = replace(current(), **{name: value for name, value in changes.items() if value is not None})
    token = _CURRENT.set(chosen)
    try:
        yield chosen
    finally:
        _CURRENT.reset(token)


def report(task: str, done: float, total: float) -> None:
    """Report that `done` of `total` units of a task are done."""
    current().progress(task, done, total)


def part(*, start: float, share: float, whole: float) -> contextlib.AbstractContextManager[Settings]:
    """Count progress reported inside a `with` block as the `share` of a whole that begins at `start`."""
    outer = current().progress

    def scaled(task: str, done: float, total: float) -> None:
        outer(task, start + share * done / total, whole)

    return settings(progress=scaled)


@contextlib.contextmanager
def labelled(label: str) -> Iterator[None]:
    """Put a label before the names of tasks that are reported inside a `with` block."""
    outer = current().progress
    with settings(progress=lambda task, done, total: outer(f"{label}: {task}", done, total)):
        yield
