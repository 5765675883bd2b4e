"""The `layerprobe` command: its subcommands, imported when they are called, their help, and how failures leave it."""

from __future__ import annotations

import copy
import inspect
import io
import os
import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of which every wrong call is one; Typer has no public name for it."""
SHORT = {
    "Data": "source texts columns kind",
    "Model": "pooling device size",
    "Comparison": "reference measure",
    "Fine-tuning": "seeds epochs layers fine_tuning save_models scan",
    "Search": "tolerance budget",
    "Training": "steps epochs learning_rate",
    "Prediction": "",
    "Retrieval": "",
    "Machine": "",
    "Report": "report",
    "Probing": "groups target tolerance",
}
"""What --help shows of each panel; of the others it shows all."""


def unwrapped(docstring: str | None) -> str:
    """Return a docstring with one line a paragraph, without its arguments: the terminal wraps it to its own width."""
    text, _, _ = (docstring or "").partition("\n\nArgs:\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text.

    Examples:
        >>> first_sentence("Tokens a text at most. By default as the model says.")
        'Tokens a text at most.'
    """
    return re.split(r"(?<=[\w)\]%])\. (?=[A-Z])", text)[0].removesuffix(".") + "." if text else ""


def first_line(place: str) -> str:
    """Return the first line of the docstring of a command, `module:function`, which is not imported."""
    module, _, name = place.partition(":")
    source = Path(__file__).with_name("commands").joinpath(f"{module}.py").read_text("utf-8")
    docstring = re.search(rf'^def {name}\(.*?^    r?"""(.+?)(?:""")?$', source, re.MULTILINE | re.DOTALL)
    return docstring[1] if docstring else ""


class Commands(TyperGroup):
    """Commands by their names; of one that was not called yet, the epilog says where it is."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with its options; it is imported here."""
        listed = self.commands.get(cmd_name)
        if listed is None or isinstance(listed, Command | TyperGroup):
            return listed
        from layerprobe_cli.derive import expanded
        from layerprobe_cli.shell import run

        module_name, _, name = (listed.epilog or "").partition(":")
        module = import_module(f"layerprobe_cli.commands.{module_name}")
        command = getattr(module, name)
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        options = expanded(command, getattr(module, "OF", ""), run)
        app.command(cmd_name, cls=Command, help=unwrapped(inspect.getdoc(command)))(options)
        self.commands[cmd_name] = typer.main.get_command(app)
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, for which no command is imported."""
        listed: Any = copy.copy(self)
        listed.get_command = lambda _, name: self.commands[name]
        TyperGroup.format_help(listed, ctx, formatter)

    def main(self, *words: Any, **settings: Any) -> Any:
        """Run a command line, whose messages name options."""
        from layerprobe.errors import ON_COMMAND_LINE
        from layerprobe_cli.output import ERRORS_AS_JSON

        arguments = next(iter(words), settings.get("args")) or sys.argv[1:]
        token, as_json = ON_COMMAND_LINE.set(True), ERRORS_AS_JSON.set("--json" in arguments)
        try:
            return super().main(*words, **settings)
        finally:
            ON_COMMAND_LINE.reset(token)
            ERRORS_AS_JSON.reset(as_json)

    def invoke(self, ctx: Any) -> Any:
        """Call a command; what is wrong with its call is said without characters that command a terminal."""
        from layerprobe.errors import LayerProbeError, as_message
        from layerprobe_cli.output import fail, fail_as_json

        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = as_message(error.message)
            fail_as_json(error.format_message(), "UsageError")
            raise
        except LayerProbeError as error:  # of an option that was looked at before the command began
            fail(str(error), type(error).__name__)
            raise typer.Exit(1) from None
        except EOFError as error:  # by which an import fails; typer takes it for the end of what is typed
            raise RuntimeError(*error.args) from error


class Command(TyperCommand):
    """A command whose help has the usual options with a sentence each, and by --help-all every one in full."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from layerprobe_cli.derive import HELP_ALL

        TyperCommand.format_help(self if ctx.meta.get(HELP_ALL) else self._short(ctx), ctx, formatter)

    def _short(self, ctx: Any) -> Command:
        short = copy.copy(self)
        short.params = [copy.copy(parameter) for parameter in self.params]
        for parameter in short.params:
            usual = SHORT.get(parameter.rich_help_panel or "")  # type: ignore[attr-defined]
            if isinstance(parameter, TyperOption) and not parameter.hidden:
                parameter.hidden = usual is not None and parameter.name not in usual.split()
                parameter.rich_help_panel = None
                parameter.metavar = " " if parameter.is_flag else parameter.metavar or "TEXT"
            default = getattr(parameter.default, "value", parameter.default)
            note = f" [dim]({default})[/dim]" if parameter.show_default and default else ""  # type: ignore[attr-defined]
            parameter.show_default = False  # type: ignore[attr-defined]
            parameter.help = f"{first_sentence(parameter.help or '').removesuffix('.')}{note}"  # type: ignore[attr-defined]
        text, *examples = (self.help or "").split("\n\nExample:  ")
        short.help = "\n\nExample:  ".join((text, *examples[:1]))
        if any(new.hidden != old.hidden for new, old in zip(short.params, self.params, strict=True)):  # type: ignore[attr-defined]
            short.epilog = f"See all options: {ctx.command_path} --help-all"
        return short


PANELS = {
    "Choose a layer": "demo find predict check",
    "Inspect": "probe score compare profile",
    "Produce": "shrink extract finetune export",
}
"""The commands in the order in which a user needs them."""
GROUPS = {
    "cache": ("Produce", "List and remove what is kept on disk.", "list prune"),
    "lab": (
        "Research",
        "Run recipes, pretrain, score rules, repeat the paper.",
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
    group.command(name, help=first_line(place), epilog=place, rich_help_panel=panel)(lambda: None)


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
    """Find which layer of an encoder to keep for sentence embeddings, with a confidence and a cost.

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
