"""Settings that hold for every call without being passed, and progress reports."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from typing import Any, TypeVar

from layerprobe.checks import LEVEL, check_level

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str, float, float], None]
"""Called with the name of the task, the amount of finished work and the total amount."""


def silent(task: str, done: float, total: float) -> None:
    """Report nothing."""


def pace(clock: Callable[[], float] = time.monotonic) -> Callable[[str, float, float], tuple[float, str]]:
    """Return a function that turns reports into the finished share of all work, which never falls, and a line of text.

    The remaining time assumes the average speed so far.
    """
    began, first, highest = clock(), 0.0, -1.0

    def at(task: str, done: float, total: float) -> tuple[float, str]:
        nonlocal began, first, highest
        share = min(done / total, 1.0) if total else 0.0
        if highest < 0:
            began, first = clock(), share
        highest = max(highest, share)
        line = f"{task}: {100 * highest:.0f} %"
        if first < highest < 1:
            left = (clock() - began) * (1 - highest) / (highest - first)
            line += f", about {duration(left)} left"
        return highest, line

    return at


REFRESHED = 0.2
"""Seconds between two updates of a bar in a notebook."""


class NotebookBar:
    """A progress bar below the running cell of a notebook; does nothing elsewhere.

    Functions report progress to it unless `layerprobe.context` sets another receiver.
    """

    def __init__(self) -> None:
        self._display: Any = None
        self._changed = 0.0
        self._pace = pace()

    def __call__(self, task: str, done: float, total: float) -> None:
        """Show how much of a task is done."""
        shell = _notebook()
        if shell is None:
            return
        share, line = self._pace(task, done, total)
        if self._display is not None and time.monotonic() - self._changed < REFRESHED:
            return
        bar = f'<progress value="{share:g}" style="width: 16em"></progress> {escape(line)}'
        self._show(shell, {"text/html": bar, "text/plain": line})

    def _show(self, shell: Any, content: dict[str, str]) -> None:
        self._changed = time.monotonic()
        if self._display is not None:
            self._display.update(content, raw=True)
            return
        display = import_module("IPython.display").display
        self._display = display(content, raw=True, display_id=True)
        shell.events.register("post_run_cell", self._clear)

    def _clear(self, *_: Any) -> None:
        """Remove the bar from a finished cell."""
        shell = _notebook()
        shell.events.unregister("post_run_cell", self._clear)
        self._display.update({"text/html": "", "text/plain": ""}, raw=True)
        self._display, self._pace = None, pace()


notebook_bar = NotebookBar()


def _notebook() -> Any:
    """Return the shell of the running notebook, None elsewhere."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def duration(seconds: float) -> str:
    """Return a time in plain words.

    Examples:
        >>> duration(42.3), duration(300), duration(9000)
        ('42 s', '5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """Settings that hold for every call."""

    level: float = LEVEL
    """Confidence level of all intervals, between 0 and 1."""
    progress: Progress = notebook_bar
    """Called with the name of a task, the finished amount and the total; by default a bar in notebooks."""
    by_item: bool = False
    """Whether scores without fine-tuning keep each item's contribution, from which their errors are computed."""
    outputs: bool = False
    """Whether scores keep the model outputs behind them; then no score comes from the store."""


DEFAULT_SETTINGS = CallSettings()

_CURRENT: ContextVar[CallSettings] = ContextVar("settings", default=DEFAULT_SETTINGS)


def current() -> CallSettings:
    """Return the settings that hold here."""
    return _CURRENT.get()


@contextlib.contextmanager
def settings(
    *,
    level: float | None = None,
    progress: Progress | None = None,
    by_item: bool | None = None,
    outputs: bool | None = None,
) -> Iterator[CallSettings]:
    """Change settings inside a `with` block, in this thread.

    Args:
        level: Confidence level of all intervals, between 0 and 1.
        progress: Called with the name of a task, the finished amount and the total.
        by_item: Whether scores without fine-tuning keep each item's contribution.
        outputs: Whether scores keep the model outputs behind them.

    Raises:
        DataError: If the level is not between 0 and 1.

    Examples:
        >>> with settings(level=0.99):
        ...     current().level
        0.99
    """
    check_level(current().level if level is None else level)
    changes: dict[str, Any] = {"level": level, "progress": progress, "by_item": by_item, "outputs": outputs}
    chosen = replace(current(), **{name: value for name, value in changes.items() if value is not None})
    token = _CURRENT.set(chosen)
    try:
        yield chosen
    finally:
        _CURRENT.reset(token)


def report(task: str, done: float, total: float) -> None:
    """Report that `done` of `total` units of a task are done."""
    current().progress(task, done, total)


def part(*, start: float, share: float, whole: float) -> contextlib.AbstractContextManager[CallSettings]:
    """Count progress reported inside a `with` block as a `share` of the `whole`, beginning at `start`."""
    outer = current().progress

    def scaled(task: str, done: float, total: float) -> None:
        outer(task, start + share * (min(done / total, 1.0) if total else 0.0), whole)

    return settings(progress=scaled)


EMBEDDED = 0.7
"""Share of the time spent on embedding, where layers are compared, scored or probed afterwards."""


def in_parts(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of each item; progress reported for each counts as an equal part of the whole."""
    items = tuple(items)
    for number, item in enumerate(items):
        with part(start=number, share=1, whole=len(items)):
            result = work(item)
        yield result


@contextlib.contextmanager
def labelled(label: str) -> Iterator[None]:
    """Put a label before the names of tasks reported inside a `with` block."""
    outer = current().progress
    with settings(progress=lambda task, done, total: outer(f"{label}: {task}", done, total)):
        yield
