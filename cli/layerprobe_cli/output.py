"""What goes to the terminal: data to stdout, progress, warnings and errors to stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.extraction.values import ExtractionPlan
    from layerprobe.finetuning.plan import TuningPlan
    from layerprobe.lab.adaptation.values import AdaptationPlan
    from layerprobe.lab.pretraining.values import PretrainingPlan
    from layerprobe.progress import Progress
    from layerprobe.results.table import Table
    from layerprobe.shrinking.values import ShrinkingPlan
    from layerprobe.study.plan import ModelsPlan
    from layerprobe.tasks.values import Task
    from layerprobe_cli.options import LoadedTexts

LINE_EVERY = 30
"""Seconds from one line of progress to the next where stderr is no terminal."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints, a group of options."""

    json: Json = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no warnings.")] = False
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", rich_help_panel="Machine", help="Print where an error comes from, before its line."
        ),
    ] = False

    def result(self, value: object, *parts: Table | str, as_json: object = None) -> None:
        """Print a result: as JSON, which can be of another value, or its tables and sentences one below the other."""
        if self.json:
            print_json(value if as_json is None else as_json)
            return
        for part in parts:
            typer.echo(part if isinstance(part, str) else part.text())

    def plan(
        self,
        plan: TuningPlan | ModelsPlan | AdaptationPlan | PretrainingPlan | ExtractionPlan | ShrinkingPlan,
        *,
        dry_run: bool,
    ) -> None:
        """Print what the work will take: on stderr before the work, or as the result, and leave it at that."""
        if dry_run:
            self.result(plan, plan.sentence)
            raise typer.Exit
        self.notes((plan.sentence,), ())

    def notes(self, notes: Sequence[str], warnings: Sequence[str]) -> None:
        """Print notes and warnings on stderr, each once."""
        if not self.quiet:
            for note in dict.fromkeys(notes):
                say(f"note: {note}")
            for warning in dict.fromkeys(warnings):
                say(f"warning: {warning}")

    def data(
        self, model: Checkpoint | list[Checkpoint], data: Task | LoadedTexts, *, of: str = "", **asked: Any
    ) -> tuple[str, ...]:
        """Print what is to be known of data before anything is spent on it; return the warnings, for the page.

        With several data sets, `of` is the name of the one that a line is about, which a line may begin with.
        """

        def named(said: str) -> str:
            return said if said.partition(":")[0].endswith(of) else f"{of}: {said}"

        from layerprobe.extraction.readability import data_quality
        from layerprobe.tasks.values import Task

        examples = data if isinstance(data, Task) else data.task or data.texts
        models = model if isinstance(model, list) else [model]
        read = (said for each in models for said in data_quality(each, examples, **asked).warnings)
        warnings = tuple(map(named, dict.fromkeys((*data.warnings, *read))))
        self.notes([named(note) for note in data.notes], warnings)
        return warnings

    @contextlib.contextmanager
    def progress(self, level: float | None = None) -> Iterator[None]:
        """Show bars on stderr for what is done inside a `with` block, whose intervals are of a level."""
        from layerprobe.context import settings

        with progress_bar(quiet=self.quiet) as progress, settings(progress=progress, level=level):
            yield


def print_json(value: Any) -> None:
    """Print a result as JSON, which is UTF-8 whatever the terminal has."""
    from layerprobe.files.serialisation import to_json

    typer.echo(to_json(value).encode())


def fail(message: str) -> None:
    """Print one error on stderr."""
    say(f"error: {' '.join(message.split())}")


def say(line: str) -> None:
    """Print a line on stderr; where that cannot be written, on a full disk for instance, the work goes on."""
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """Show bars with an estimate on stderr, or where that is no terminal a line now and then."""
    from layerprobe.progress import silent

    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield silent if quiet else _lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        shown: dict[str, TaskID] = {}

        def report(task: str, done: float, total: float) -> None:
            # one bar a stage, whose name is the first word: "TMFT layer 3 seed 0" moves on within its bar
            stage = task.split(" ", 1)[0]
            if stage not in shown:
                shown[stage] = bars.add_task(task, total=total)
            bars.update(shown[stage], description=task, completed=done, total=total)

        yield report


def _lines() -> Progress:
    """Return what says on stderr how far the work is, a line each half minute of it."""
    from layerprobe.progress import duration

    began = said = time.monotonic()

    def report(task: str, done: float, total: float) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= LINE_EVERY:
            said = now
            say(f"{task}: {done / total:.0%} after {duration(now - began)}")

    return report


def log_to_stderr(*, quiet: bool) -> None:
    """Send what the library logs to stderr, one line a message; what each of many runs says is said once."""
    handler = logging.StreamHandler()
    handler.addFilter(_Once())
    handler.setFormatter(_Lowercase("%(levelname)s: %(message)s"))
    logger = logging.getLogger("layerprobe")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said: set[tuple[int, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = (record.levelno, record.getMessage())
        new = line not in self._said
        self._said.add(line)
        return new


class _Lowercase(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)
