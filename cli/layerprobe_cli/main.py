"""The `layerprobe` command: its subcommands, and how failures leave it."""

import inspect
import io
import os
import sys
import traceback
from typing import Annotated

import typer

from layerprobe_cli.names import Commands, Listed, UsageError, first_line, unwrapped

PANELS = {
    "Find the layer": "demo find predict check",
    "Look closer": "probe score compare profile",
    "Make": "shrink extract finetune export",
}
"""The commands in the order in which a user needs them."""
GROUPS = {
    "cache": ("Make", "Look at and clean up what is kept on disk.", "list prune"),
    "lab": (
        "Research",
        "Run recipes, pretrain, score rules, do the paper again.",
        "run bench adapt pretrain reproduce",
    ),
}

app = typer.Typer(
    name="layerprobe",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _list(group: typer.Typer, name: str, place: str, panel: str | None = None) -> None:
    """Put a command into a help; it is imported when it is called."""
    listed = group.command(name, cls=Listed, help=first_line(place), epilog=place, rich_help_panel=panel)
    listed(lambda: None)


for panel, names in PANELS.items():
    for name in names.split():
        _list(app, name, f"{name}:{name}", panel)
for group_name, (panel, text, names) in GROUPS.items():
    group = typer.Typer(cls=Commands, no_args_is_help=True, help=text)
    for name in names.split():
        _list(group, name, f"{name}:{name}" if group_name == "lab" else f"{group_name}:{group_name}_{name}")
    app.add_typer(group, name=group_name, rich_help_panel=panel)


def _print_version(is_set: bool) -> None:
    if is_set:
        from layerprobe.versions import __version__

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


app.callback(help=unwrapped(inspect.getdoc(_root)))(_root)


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # the hub's client warns of every retry; what it ends in becomes our one line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal has a ±, and a file may have none
    try:
        app()
    except OSError as error:
        from layerprobe_cli.output import fail, leave_stdout
        from layerprobe_cli.shell import run

        if any(frame.f_code is run.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # of a command, and no help or answer to a wrong call that could not be printed
        leave_stdout()
        fail(f"cannot print: {error.strerror}: free space, or choose another output", "OSError")
        sys.exit(2 if isinstance(error.__context__, UsageError) else 1)


if __name__ == "__main__":
    main()
