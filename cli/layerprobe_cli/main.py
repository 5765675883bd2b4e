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
"""Base class of all wrong calls; Typer has no public name for it."""
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
"""Options of each panel in --help; other panels show all options."""


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


def listed(module: str) -> dict[str, str]:
    """Return the first line of each command of a module by the name of its function; does not import it."""
    source = Path(__file__).with_name("commands").joinpath(f"{module}.py").read_text("utf-8")
    command = r'^def ([a-z]\w*)\(\s*call: .*?^    r?"""(.+?)(?:""")?$'
    return dict(re.findall(command, source, re.MULTILINE | re.DOTALL))


class Commands(TyperGroup):
    """Commands by name; the epilog of a command that was not imported yet holds its location."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it with its options."""
        registered = self.commands.get(cmd_name)
        if registered is None or isinstance(registered, Command | TyperGroup):
            return registered
        from layerprobe_cli.derive import expanded
        from layerprobe_cli.shell import run

        module_name, _, name = (registered.epilog or "").partition(":")
        command = getattr(import_module(f"layerprobe_cli.commands.{module_name}"), name)
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        about = unwrapped(inspect.getdoc(command))
        panel = registered.rich_help_panel  # type: ignore[attr-defined]
        app.command(cmd_name, cls=Command, help=about, rich_help_panel=panel)(expanded(command, run))
        self.commands[cmd_name] = typer.main.get_command(app)
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing any command."""
        unloaded: Any = copy.copy(self)
        unloaded.get_command = lambda _, name: self.commands[name]
        TyperGroup.format_help(unloaded, ctx, formatter)

    def main(self, *words: Any, **settings: Any) -> Any:
        """Run a command line; messages name options."""
        from layerprobe.errors import ON_COMMAND_LINE
        from layerprobe_cli.output import ERRORS_AS_JSON

        arguments = next(iter(words), settings.get("args")) or sys.argv[1:]
        token = ON_COMMAND_LINE.set(True)
        as_json = ERRORS_AS_JSON.set("--json" in arguments)
        try:
            return super().main(*words, **settings)
        finally:
            ON_COMMAND_LINE.reset(token)
            ERRORS_AS_JSON.reset(as_json)

    def invoke(self, ctx: Any) -> Any:
        """Call a command; messages about wrong calls contain no control characters."""
        from layerprobe.errors import LayerProbeError, to_message
        from layerprobe_cli.output import fail, fail_as_json

        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = to_message(error.message)
            fail_as_json(error.format_message(), "UsageError")
            raise
        except LayerProbeError as error:  # from an option that is checked before the command
            fail(str(error), type(error).__name__)
            raise typer.Exit(1) from None
        except EOFError as error:  # from a failed import; typer would treat it as the end of input
            raise RuntimeError(*error.args) from error


class Command(TyperCommand):
    """A command whose --help lists the usual options with a sentence each, and --help-all every option in full."""

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


PANELS = {"Choose a layer": ("choose",), "Inspect": ("probe", "inspection"), "Produce": ("produce",)}
"""Modules of commands, in the order of use."""
GROUPS = {
    "cache": ("Produce", "List and remove what is kept on disk."),
    "lab": ("Research", "Run recipes, pretrain, score rules, repeat the paper."),
}
"""Modules whose commands have a word before them, with the panel and the help of that word."""

app = typer.Typer(
    name="layerprobe",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _list(group: typer.Typer, module: str, panel: str | None = None) -> None:
    """Add the commands of a module to a help; it is imported when one is called."""
    for name, line in listed(module).items():
        word = name.removeprefix(f"{module}_")
        group.command(word, help=line, epilog=f"{module}:{name}", rich_help_panel=panel)(lambda: None)


for panel, modules in PANELS.items():
    for module in modules:
        _list(app, module, panel)
for module, (panel, text) in GROUPS.items():
    group = typer.Typer(cls=Commands, no_args_is_help=True, help=text)
    _list(group, module)
    app.add_typer(group, name=module, rich_help_panel=panel)


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
    # the hub's client warns about every retry; the final error becomes one line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some terminals and files cannot encode ±
    try:
        app()
    except OSError as error:
        from layerprobe_cli.output import fail, leave_stdout
        from layerprobe_cli.shell import run

        if any(frame.f_code is run.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # an error of a command, not a failure to print its help or message
        leave_stdout()
        fail(f"cannot print: {error.strerror}: free space, or choose another output", "OSError")
        sys.exit(2 if isinstance(error.__context__, UsageError) else 1)


if __name__ == "__main__":
    main()
