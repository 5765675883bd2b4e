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

from layerprobe.errors import COMMANDS, printable, to_message
from layerprobe.results.terminal import NARROWEST, wrapped

if TYPE_CHECKING:
    from layerprobe.context import Progress

ERRORS_AS_JSON = ContextVar("ERRORS_AS_JSON", default=False)
"""Whether errors are also printed as JSON, because the command line has --json."""
LINE_EVERY = 30
"""Seconds between two lines of progress if stderr is not a terminal."""


def print_json(value: Any) -> None:
    """Print a result as JSON, in UTF-8 for any terminal."""
    from layerprobe.files.serialisation import to_json
    from layerprobe.results.shown import Shown

    ERRORS_AS_JSON.set(False)  # stdout has its value
    text = value.to_json() if isinstance(value, Shown) else to_json(value)
    # JSON does not escape C1 control characters
    typer.echo(COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode())


def fail(message: str, kind: str) -> None:
    """Print one error on stderr and, with --json, as the only value on stdout; `kind` is the name of its class."""
    line = " ".join(message.split())
    say(f"error: {line}")
    fail_as_json(line, kind)


def fail_as_json(message: str, kind: str) -> None:
    """Print an error as JSON on stdout, with --json and if nothing was printed yet."""
    if ERRORS_AS_JSON.get():
        try:
            print_json({"error": {"type": kind, "message": message}})
        except OSError:  # stderr has the error
            leave_stdout()


def say(line: str) -> None:
    """Print a line on stderr; failures, for instance on a full disk, are ignored."""
    with contextlib.suppress(OSError):
        echo(wrapped(line, stream_width(sys.stderr)), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text, on stderr if `err`; used for every text except help and results."""
    typer.echo(printable(text), file=sys.stderr if err else None, err=err)  # a bar may replace it


@contextlib.contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn a failed write to stdout, for instance on a full disk, into one line; a closed pipe is not an error.

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
    """Discard the buffer of stdout, which would fail again when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stream_width(stream: TextIO | None) -> int | None:
    """Return the width of a terminal in characters; None for a file or a pipe, whose lines are not wrapped."""
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns) if stream and stream.isatty() else None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """Show the current task, the finished share of the command, and the remaining time on stderr.

    Shows a bar, or a line every half minute if stderr is not a terminal.
    """
    from layerprobe.context import pace, silent

    if quiet or sys.stderr is None:
        yield silent
        return
    at = pace()
    last = time.monotonic()
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


def log_to_stderr(claims: Sequence[str] = (), *, quiet: bool) -> None:
    """Send the library's log to stderr, one line per message; repeated ones, and those with `claims`, appear once."""
    lines = set[tuple[str, str]]()

    def is_new(record: logging.LogRecord) -> bool:
        line = record.levelname.lower(), to_message(record.getMessage())
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
