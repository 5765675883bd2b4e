"""Shared parts of all commands: checks before the library call, and output after it.

It reports problems of the data, the estimated cost and the progress; it writes the page, prints the answer and its
tables, suggests next steps, and turns failures into one line and an exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import traceback as tracebacks
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from layerprobe.checks import check_extra
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files.atomic import obstacle
from layerprobe.process import limit_advice
from layerprobe.results.shown import IMAGES, Shown, is_image
from layerprobe.results.terminal import WIDTH, fitted, wrapped
from layerprobe_cli.derive import option
from layerprobe_cli.output import echo, fail, log_to_stderr, print_json, progress_bar, say, stdout_errors, stream_width
from layerprobe_cli.start import WORDS, interruptible

if TYPE_CHECKING:
    from layerprobe.results.conclusion import Step
    from layerprobe.results.shown import Estimate
    from layerprobe.results.table import Table
    from layerprobe.tasks.values import TextSplit

CHECK_FAILED = 3
"""Exit code if a result fails a check such as --fail-below; 1 is an error, 2 a wrong call."""
PlotlyFrom = Annotated[
    Literal["embedded", "cdn"],
    option(
        "Report",
        "--plotly",
        help="embedded: the page has 2 MB and opens offline. cdn: it is small and loads Plotly from the network.",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a command and how to show it."""

    result: Any
    tables: Sequence[Table | str] = ()
    """Tables to print, for results that are not `Shown`."""
    as_json: Any = None
    """Value that --json prints instead of the result."""
    warnings: Sequence[str] | None = None
    """Warnings to print before the result, unless printed earlier; by default the result's."""
    notes: Sequence[str] | None = None
    """Notes, likewise."""
    steps: Sequence[Step] | None = None
    """Next steps; by default the result's."""
    beside: Sequence[Shown] = ()
    """Further results, printed below and shown on the page."""
    details: bool = False
    """Whether to print the tables of details as well."""
    files: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Written files, by description."""
    failed: str = ""
    """Failed check of a build."""
    code: int = 0


@dataclasses.dataclass(kw_only=True)
class Call:
    """A call of a command, with the options for its output."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False
    wide: Annotated[
        bool, option("Machine", "--wide", help="Print all columns and checks, at the full width of the terminal.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no warnings.")] = False
    traceback: Annotated[bool, option("Machine", "--traceback", help="Print the traceback of an error, too.")] = False
    context: Any = None
    reported: list[str] = dataclasses.field(default_factory=list)
    """Warnings about the data, in the order of printing."""
    claims: list[str] = dataclasses.field(default_factory=list)
    """Beginnings of warnings about how a model reads the data: results and runs repeat them for parts of the data."""

    def notes(self, notes: Sequence[str], warnings: Sequence[str] = ()) -> None:
        """Print notes and warnings on stderr, each once."""
        if not self.quiet:
            lines = (*(f"note: {note}" for note in notes), *(f"warning: {warning}" for warning in warnings))
            for line in dict.fromkeys(lines):
                say(line)

    def data(
        self,
        model: Any,
        data: Any,
        *,
        of: str = "",
        texts: Sequence[str] | None = None,
        split: TextSplit = "all",
        learns: bool = True,
    ) -> None:
        """Print notes and warnings about a task or texts before the work; the page shows them, too.

        With several data sets, `of` is the name of this one, which a line may begin with. With `texts`, only these are
        checked: nothing is scored. Overlaps between splits are not reported if nothing `learns` from a split:
        neither the command, nor scores of the kind of task.
        """

        def named(line: str) -> str:
            return line if line.partition(":")[0].endswith(of) else f"{of}: {line}"

        from layerprobe.encoders.identity import resolve
        from layerprobe.extraction.embeddings import data_quality
        from layerprobe.files.images import readable_as
        from layerprobe.tasks.kind import KINDS
        from layerprobe.tasks.splitting import about_splits
        from layerprobe.tasks.values import Task

        examples = (data if isinstance(data, Task) else data.texts) if texts is None else texts
        items = readable_as(examples.texts(split) if isinstance(examples, Task) else examples)
        models = [resolve(one, items=items) for one in (model if isinstance(model, list) else [model])]
        qualities = [data_quality(model, examples, split=split) for model in models]
        read = [line for model in models for line in model.tokenizer_cautions]
        read += (line for quality in qualities for line in quality.warnings)
        self.claims += (line.partition(": ")[0] for line in read)
        idle = isinstance(data, Task) and not learns and not KINDS[data.kind].fits
        left_out = about_splits(data) if idle else ()
        warnings = [named(line) for line in dict.fromkeys((*data.warnings, *read)) if line not in left_out]
        self.notes([named(note) for note in data.notes], warnings)
        self.reported += warnings

    def estimate(self, estimate: Estimate | None, *, dry_run: bool) -> None:
        """Print the estimated cost: on stderr before the work, or as the result of a dry run, and exit."""
        if estimate is not None and dry_run:
            self.stop_at(estimate)
        self.notes(() if estimate is None else (estimate.sentence,))

    def stop_at(self, estimate: Estimate) -> NoReturn:
        """Print the estimated cost as the result, and exit."""
        self.finish(Done(result=estimate.record, tables=estimate.tables, warnings=estimate.warnings))
        raise typer.Exit

    def given(self, *names: str) -> set[str]:
        """Return which of some options are on the command line, even at their defaults."""
        sources = {name: self.context.get_parameter_source(name) for name in names}
        return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}

    def refuse(self, names: Collection[str], why: str) -> None:
        """Raise BadParameter for options that have no effect here."""
        for parameter in self.context.command.params:
            if names and parameter.name == min(names):
                raise typer.BadParameter(f"expected no {parameter.opts[0]} {why}")

    def step(self, name: str, *words: object, without: Sequence[str] = ()) -> tuple[Step, ...]:
        """Return a next step by its key in `words.toml`; none if it would need further options of this call."""
        from layerprobe.results.conclusion import Step

        return () if self.given(*without) else (Step(name=name, command=tuple(map(str, words))),)

    def finish(self, done: Done) -> None:
        """Print notes, write the page, print the result, and name the next commands."""
        notes, warnings = (
            getattr(done.result, name, ()) if given is None else given
            for name, given in (("notes", done.notes), ("warnings", done.warnings))
        )
        warnings = [warning for warning in warnings if not any(claim in warning for claim in self.claims)]
        self.notes(notes, [warning for warning in warnings if warning not in self.reported])
        self.reported += (warning for warning in warnings if warning not in self.reported)
        written = problem = None
        try:
            written = self.save_page(done)
        except LayerProbeError as error:  # the computed result is still printed
            problem = error
        with stdout_errors():
            if self.json:
                print_json(done.result if done.as_json is None else done.as_json)
            elif isinstance(done.result, Shown):
                typer.echo("\n\n".join(self.texts(done, written)))
            else:
                echo("\n\n".join(map(self.text, done.tables)))
        if problem is not None:
            raise problem
        if done.failed:
            echo(f"failed: {done.failed}", err=True)
        if code := CHECK_FAILED if done.failed else done.code:
            raise typer.Exit(code)

    @property
    def width(self) -> int | None:
        """Width of stdout in characters; None if lines are not wrapped."""
        room = stream_width(sys.stdout)
        return room if self.wide else min(WIDTH, room or WIDTH)

    def text(self, table: Table | str) -> str:
        """Return a table with its title, wrapped to the width."""
        if isinstance(table, str):
            return wrapped(table, self.width)
        return "\n".join(filter(None, (wrapped(table.title, self.width), fitted(table, self.width))))

    def texts(self, done: Done, page: Path | None) -> Iterator[str]:
        """Yield the lines of a result, and of further ones, for a terminal."""
        from layerprobe.results.terminal import shown

        files = {**done.files, **({} if page is None else {"Why": page})}
        below = [f"{what}: {place}" for what, place in files.items()]
        about: dict[str, Any] = {
            "width": self.width,
            "wide": self.wide,
            "details": done.details,
            "colour": sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
            "encoding": sys.stdout.encoding or "ascii",
        }
        yield shown(done.result, steps=done.steps, below=below, **about)
        yield from (shown(result, **about) for result in done.beside)

    def save_page(self, done: Done) -> Path | None:
        """Write the page of a result if one was requested, and return where."""
        return None


@dataclasses.dataclass(kw_only=True)
class PageCall(Call):
    """A call whose result can be a page."""

    report: Annotated[
        Path | None,
        option(
            "Report",
            "--report",
            metavar="FILE.html",
            dir_okay=False,
            callback=report_file,
            help="Also write the result as one HTML page, or its first figure as .png, .svg or .pdf.",
        ),
    ] = None
    plotly: PlotlyFrom = "embedded"
    with_texts: Annotated[
        bool | None,
        option(
            "Report",
            "--with-texts/--no-texts",
            help="Whether the page shows single items with their texts. By default if that adds at most 1.5 MB.",
        ),
    ] = None

    def save_page(self, done: Done) -> Path | None:
        """Write the page of a result if one was requested, and return where."""
        if self.report is None:
            return None
        from layerprobe.results.document import render, write_page

        if is_image(self.report):
            return done.result.save_html(self.report)
        page = render(
            done.result,
            plotly=self.plotly,
            command=command(*sys.argv[1:]),
            warnings=self.reported,
            texts=self.with_texts,
            beside=done.beside,
            steps=done.steps,
        )
        return write_page(self.report, page)


def below(least: float | None, value: float, line: str, digits: int) -> str:
    """Return a message if a value is below `least`, for checks in builds.

    The value replaces `{}` in the line, with at least `digits` decimals.
    """
    from layerprobe.names import format_distinct

    if least is None or value >= least:
        return ""
    return f"{line.format(format_distinct(value, least, digits))}, below {least:.12g}"


def command(*words: str) -> str:
    """Return a call of layerprobe as a line for a shell."""
    return shlex.join(["layerprobe", *words])


def replaced(words: Sequence[str], option: str, value: str) -> tuple[str, ...]:
    """Return the words of a command with another value of an option, at the end."""
    left = [word for word in words if not word.startswith(f"{option}=")]
    if option in left:
        place = left.index(option)
        left[place : place + 2] = []
    return (*left, option, value)


def run(command: Callable[..., Any], context: typer.Context, values: dict[str, Any]) -> None:
    """Call a command and print its outcome; failures become one line and an exit code."""
    call: Call = next(value for value in values.values() if isinstance(value, Call))
    call.context = context
    log_to_stderr(call.claims, quiet=call.quiet)
    try:
        from layerprobe.context import settings

        cache_dir = next(filter(None, (getattr(value, "cache_dir", None) for value in values.values())), None)
        with interruptible(), usable_cache(command.__name__, cache_dir) as note:
            call.notes([note] if note else [])
            with progress_bar(quiet=call.quiet) as progress, settings(progress=progress, level=values.get("level")):
                done = command(**values)
            if done is not None:
                call.finish(done if isinstance(done, Done) else Done(result=done))
        return
    except LayerProbeError as error:
        if call.traceback:
            echo("".join(tracebacks.format_exception(error)).rstrip("\n"), err=True)
        message, kind = str(error), type(error).__name__
    except KeyboardInterrupt as error:
        number = signal.Signals(next(iter(error.args), signal.SIGINT))
        fail(f"{WORDS[number]}; finished work is kept: repeat the command to continue", "KeyboardInterrupt")
        raise typer.Exit(128 + number) from None
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        answer = _system_error(error)
        if answer is None:
            raise
        message, kind = answer, type(error).__name__
    fail(message, kind)
    raise typer.Exit(1)


def _system_error(error: Exception) -> str | None:
    """Return the line for an error of the system, such as a lack of memory; None for other errors."""
    no_room = isinstance(error, MemoryError)
    if not no_room and "torch" in sys.modules:  # otherwise there may be no memory to import it
        from layerprobe.encoders.failures import is_out_of_memory

        no_room = is_out_of_memory(error)
    if no_room:
        return "out of memory: lower --batch-tokens, --batch-size or --max-length, or use fewer texts"
    advice = limit_advice(error)
    if isinstance(error, OSError) and error.filename is not None:
        # an impossible name, a folder without permission: not an error of ours
        return f"cannot use {error.filename}: {error.strerror}: {advice or 'check the path and its permissions'}"
    return advice and f"{getattr(error, 'strerror', None) or error}: {advice}"


def file_to_write(path: Path | None) -> Path | None:
    """Check that a file can be written, and return it."""
    return path and _free(path, path)


def folder_to_write(path: Path | None) -> Path | None:
    """Check that files can be written to a folder, and return it."""
    return path and _free(path, path / "file")


def _free(path: Path, file: Path) -> Path:
    if reason := obstacle(file):
        raise typer.BadParameter(f"cannot write {path}: {reason}")
    return path


def report_file(path: Path | None) -> Path | None:
    """Check the file of a page, or of its first figure, which needs a package, and return it."""
    if path is not None and is_image(path):
        check_extra("figures", needed_by=f"--report {path}")
    elif path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"expected a file that ends in .html, {', '.join(IMAGES)}, got {path}")
    return file_to_write(path)


KEEP_NOTHING = ("predict", "score", "compare", "probe", "profile", "check", "export")
"""Commands that need no store: only their results count."""


@contextlib.contextmanager
def usable_cache(command: str, cache_dir: object) -> Iterator[str]:
    """Give a command that needs no store a temporary cache if the usual one cannot be written; yield a note."""
    reason = ""
    if command in KEEP_NOTHING and not cache_dir and not os.environ.get("LAYERPROBE_CACHE"):
        from layerprobe.store.store import Store

        root = Store().root
        reason = obstacle(root / "locks" / "any.lock")
    if not reason:
        yield ""
        return
    with TemporaryDirectory(prefix="layerprobe-", ignore_cleanup_errors=True) as folder:
        os.environ["LAYERPROBE_CACHE"] = folder
        try:
            yield f"{root} cannot be written ({reason}): nothing is cached for the next command"
        finally:
            del os.environ["LAYERPROBE_CACHE"]


def new_folder(folder: Path | None) -> Path | None:
    """Return a folder to write; raise before torch is loaded if it contains other files."""
    with contextlib.suppress(OSError):
        if folder and folder.is_dir() and any(folder.iterdir()) and not (folder / "README.md").is_file():
            if (folder / "config.json").is_file():
                raise DataError(f"{folder} contains a model: to export that one, put it first")
            raise DataError(f"{folder} is not empty and has no model written by layerprobe: choose another folder")
    return folder
