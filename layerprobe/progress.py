"""Progress of long work. Knows the callback, a notebook's cell, and durations in words."""

import sys
import time
from html import escape
from importlib import import_module
from typing import Any, Protocol


class Progress(Protocol):
    """Called with what is being done, how much of it is done, and how much there is."""

    def __call__(self, task: str, done: float, total: float) -> None:
        """Report that `done` of `total` units of `task` are done."""


def silent(task: str, done: float, total: float) -> None:
    """Report nothing."""


REFRESHED = 0.2
"""Seconds between two looks of a bar in a notebook."""


class NotebookBar:
    """A bar below the cell of a notebook while the cell runs; nothing anywhere else.

    It is where functions report to unless `layerprobe.context` says otherwise.
    """

    def __init__(self) -> None:
        self._display: Any = None
        self._changed = 0.0

    def __call__(self, task: str, done: float, total: float) -> None:
        """Show how much of a task is done."""
        shell = _notebook()
        if shell is None or (self._display is not None and time.monotonic() - self._changed < REFRESHED):
            return
        share = f"{task}: {done / total:.0%}"
        bar = f'<progress value="{done:g}" max="{total:g}" style="width: 16em"></progress> {escape(share)}'
        self._show(shell, {"text/html": bar, "text/plain": share})

    def _show(self, shell: Any, content: dict[str, str]) -> None:
        self._changed = time.monotonic()
        if self._display is not None:
            self._display.update(content, raw=True)
            return
        display = import_module("IPython.display").display
        self._display = display(content, raw=True, display_id=True)
        shell.events.register("post_run_cell", self._clear)

    def _clear(self, *_: Any) -> None:
        """Leave nothing of the bar in a cell that is done."""
        shell = _notebook()
        shell.events.unregister("post_run_cell", self._clear)
        self._display.update({"text/html": "", "text/plain": ""}, raw=True)
        self._display = None


notebook_bar = NotebookBar()


def _notebook() -> Any:
    """Return the shell of the notebook that this is run in, None elsewhere."""
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
