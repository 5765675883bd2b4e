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
    """Print a text, on stderr if `err`; every text but help and results goes this way."""
    typer.echo(printable(text), file=sys.stderr if err else None, err=err)  # which a bar may stand for


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
    """Show on stderr what is being done, the share of the command that is done, and the time left.

    A bar, or where stderr is no terminal, a line every half minute.
    """
    from layerprobe.context import pace, silent

    if quiet or sys.stderr is None:
        yield silent
        return
    at, last = pace(), time.monotonic()
    bars: Any = None

    def report(task: str, done: float, total: float) -> None:
        nonlocal bars, last
        share, line = at(task, done, total)
        if sys.stderr.isatty():
            bars = bars or stack.enter_context(_bar())
            bars.update(bars.task_ids[0], description=printable(line), completed=share)
        elif time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            say(line)

    with contextlib.ExitStack() as stack:
        yield report


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    bar = Progress(BarColumn(bar_width=20), text, console=Console(stderr=True), transient=True)
    bar.add_task("", total=1.0)
    return bar


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

    handler = logging.Handler()
    handler.emit = lambda record: say(f"{record.levelname}: {record.msg}")  # type: ignore[method-assign]
    handler.addFilter(is_new)
    logger = logging.getLogger("layerprobe")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False
