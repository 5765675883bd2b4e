"""Terminal output: data to stdout, progress, warnings and errors to stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

import typer

from layerprobe.errors import COMMANDS, as_message, printable
from layerprobe.results.terminal import NARROWEST, wrapped

if TYPE_CHECKING:
    from layerprobe.context import Progress

ERRORS_AS_JSON = ContextVar("ERRORS_AS_JSON", default=False)
"""Whether errors are printed as JSON, too: --json is among the words of the command line."""
LINE_EVERY = 30
"""Seconds from one line of progress to the next where stderr is no terminal."""


def print_json(value: Any) -> None:
    """Print a result as JSON, which is UTF-8 whatever the terminal has."""
    from layerprobe.files.serialisation import to_json
    from layerprobe.results.shown import Shown

    ERRORS_AS_JSON.set(False)  # stdout has one value
    text = value.to_json() if isinstance(value, Shown) else to_json(value)
    # of what commands a terminal, JSON lets C1 through
    typer.echo(COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode())


def fail(message: str, kind: str) -> None:
    """Print one error on stderr and, with --json, as the one value on stdout; its kind is the name of its class."""
    line = " ".join(message.split())
    say(f"error: {line}")
    fail_as_json(line, kind)


def fail_as_json(message: str, kind: str) -> None:
    """Print an error as JSON on stdout, where --json was given and nothing was printed."""
    if ERRORS_AS_JSON.get():
        try:
            print_json({"error": {"type": kind, "message": message}})
        except OSError:  # the line on stderr says what is wrong
            leave_stdout()


def say(line: str) -> None:
    """Print a line on stderr; where that cannot be written, on a full disk for instance, the work goes on."""
    with contextlib.suppress(OSError):
        echo(wrapped(line, width_of(sys.stderr)), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text, on stderr if `err`; every text but help goes this way."""
    typer.echo(printable(text), err=err)


@contextlib.contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn a failed write to stdout, on a full disk for instance, into one line; a reader that left is no error of it.

    Raises:
        StoreError: The line.
    """
    from layerprobe.errors import StoreError

    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        leave_stdout()
        raise StoreError(f"cannot print the result: {error.strerror}: free space, or choose another output") from error


def leave_stdout() -> None:
    """Let what is left in the buffer of stdout, which fails again when Python ends, go to nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- as wide as the terminal -----------------------------------------------------------------------------


def width_of(stream: TextIO | None) -> int | None:
    """Return how many characters a line of a terminal has; None for a file or a pipe, whose lines are not cut."""
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns) if stream and stream.isatty() else None
    except (OSError, ValueError):
        return None


# ---- how far the work is ---------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """Show bars with an estimate on stderr once there is progress, or where that is no terminal a line now and then."""
    from layerprobe.context import pace, silent, stage_of

    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield silent if quiet else _lines()
        return
    with contextlib.ExitStack() as stack:
        bar_ids: dict[str, Any] = {}
        bars: Any = None
        at = pace()

        def report(task: str, done: float, total: float) -> None:
            nonlocal bars
            bars = bars or stack.enter_context(_bars())
            stage = stage_of(task)
            if stage not in bar_ids:
                bar_ids[stage] = bars.add_task(printable(task), total=1.0)
            bars.update(bar_ids[stage], description=printable(task), completed=at(task, done, total)[0])

        yield report


def _bars() -> Any:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), transient=True)


def _lines() -> Progress:
    """Return a progress callback that prints a line on stderr every half minute."""
    from layerprobe.context import duration, pace

    began = last = time.monotonic()
    at = pace()

    def report(task: str, done: float, total: float) -> None:
        nonlocal last
        now, (share, left) = time.monotonic(), at(task, done, total)
        if now - last >= LINE_EVERY:
            last = now
            say(", ".join(filter(None, (f"{task}: {share:.0%} after {duration(now - began)}", left))))

    return report


# ---- what the library logs -------------------------------------------------------------------------------


def log_to_stderr(claims: Sequence[str] = (), *, quiet: bool) -> None:
    """Send the library's log to stderr, one line per message; repeated ones, and those with `claims`, appear once."""
    lines = set[tuple[str, str]]()

    def is_new(record: logging.LogRecord) -> bool:
        line = record.levelname.lower(), as_message(record.getMessage())
        new = line not in lines
        lines.add(line)
        record.levelname, record.msg, record.args = *line, ()
        return new and not any(claim in line[1] for claim in claims)

    handler = logging.StreamHandler()
    handler.addFilter(is_new)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("layerprobe")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False
