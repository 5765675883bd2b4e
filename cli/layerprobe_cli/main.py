"""The `layerprobe` command: its subcommands, and how failures leave it."""

import functools
import inspect
import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from layerprobe.errors import LayerProbeError
from layerprobe.versions import __version__
from layerprobe_cli.commands import (
    adapt,
    bench,
    cache,
    chain,
    compare,
    confirm,
    demo,
    doctor,
    ensemble,
    export,
    extract,
    find,
    finetune,
    predict,
    pretrain,
    probe,
    profile,
    readings,
    report,
    reproduce,
    run,
    score,
    shrink,
    study,
    sweep,
)
from layerprobe_cli.options import Command, Commands, expanded
from layerprobe_cli.output import fail, log_to_stderr

INTERRUPTED = 128 + 2
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""

app = typer.Typer(
    name="layerprobe",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with its failures turned into one line and an exit code."""

    @functools.wraps(command)
    def guarded(*args: Any, **values: Any) -> None:
        log_to_stderr(quiet=values.get("quiet", False))
        try:
            command(*args, **values)
            return
        except LayerProbeError as error:
            if values.get("traceback"):
                typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            message = str(error)
        except KeyboardInterrupt:
            fail("interrupted; what is done is kept, the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.filename is None:
                raise
            # a name that no disk takes, a folder that may not be looked into: wherever it is, it is not ours
            message = f"cannot use {error.filename}: {error.strerror}: check the path and its permissions"
        except (MemoryError, RuntimeError) as error:
            from layerprobe.encoders.failures import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            message = "out of memory: lower --batch-tokens, --batch-size or --max-length, or use fewer texts"
        fail(message)
        raise typer.Exit(1)

    return guarded


def _add(group: typer.Typer, name: str, command: Callable[..., None], panel: str | None = None) -> None:
    group.command(name, cls=Command, help=_unwrapped(command), rich_help_panel=panel)(_guarded(expanded(command)))


def _unwrapped(command: Callable[..., None]) -> str:
    """Return the command's docstring with one line a paragraph: the terminal wraps it to its own width."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")


PANELS = {
    "Find the layer": (demo, find, run, predict, doctor),
    "Look closer": (probe, score, compare, readings, confirm, profile),
    "Make": (shrink, extract, finetune, export, report),
    "Research": (study, bench, sweep, chain, adapt, pretrain, ensemble, reproduce),
}
"""The commands in the order in which a user needs them; the last ones are those of `layerprobe lab`."""

lab = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Pretrain, sweep, train in steps, score rules, do the paper again."
)
kept = typer.Typer(cls=Commands, no_args_is_help=True, help="Look at and clean up what is kept on disk.")
for panel, modules in PANELS.items():
    for module in modules:
        name = module.__name__.rsplit(".", 1)[-1]
        _add(lab if panel == "Research" else app, name, getattr(module, name), None if panel == "Research" else panel)
for name, command in cache.COMMANDS.items():
    _add(kept, name, command)
app.add_typer(kept, name="cache", rich_help_panel="Make")
app.add_typer(lab, name="lab", rich_help_panel="Research")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layerprobe {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the layer of an encoder to keep for sentence embeddings, how sure that is, and what it costs to know.

    The last layers of some encoders serve their pretraining task and spoil sentence embeddings. InfoNCE of the
    pretrained model says where to look; a short search, which fine-tunes truncated models, decides. CKA with a masked
    language model helps to explain why.

    Try it offline:  [bold]layerprobe demo[/bold]

    On your own:  [bold]layerprobe find google/electra-base-discriminator -t stsb[/bold]
    """


app.callback(help=_unwrapped(_root))(_root)


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # the hub's client warns of every retry; what it ends in becomes our one line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal has a ±, and a file may have none
    app()


if __name__ == "__main__":
    main()
