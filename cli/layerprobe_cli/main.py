"""The `layerprobe` command: its subcommands, and how failures leave it."""

import inspect
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

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
from layerprobe_cli.derive import expanded
from layerprobe_cli.names import Command, Commands
from layerprobe_cli.shell import run as call

app = typer.Typer(
    name="layerprobe",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(group: typer.Typer, name: str, command: Callable[..., Any], panel: str | None = None) -> None:
    of = getattr(sys.modules[command.__module__], "OF", "")
    added = expanded(command, of, call)
    group.command(name, cls=Command, help=_unwrapped(command), rich_help_panel=panel)(added)


def _unwrapped(command: Callable[..., None]) -> str:
    """Return the command's docstring with one line a paragraph: the terminal wraps it to its own width."""
    text, _, _ = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


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
cache_group = typer.Typer(cls=Commands, no_args_is_help=True, help="Look at and clean up what is kept on disk.")
for panel, modules in PANELS.items():
    for module in modules:
        name = module.__name__.rsplit(".", 1)[-1]
        _add(lab if panel == "Research" else app, name, getattr(module, name), None if panel == "Research" else panel)
for name, command in cache.COMMANDS.items():
    _add(cache_group, name, command)
app.add_typer(cache_group, name="cache", rich_help_panel="Make")
app.add_typer(lab, name="lab", rich_help_panel="Research")


def _print_version(is_set: bool) -> None:
    if is_set:
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
