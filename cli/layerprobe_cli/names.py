"""Commands, imported when they are called, and their help."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of which every wrong call is one; Typer has no public name for it."""


WIDEST = 12
"""Characters that short help has for what an option takes."""


def unwrapped(docstring: str | None) -> str:
    """Return a docstring with one line a paragraph, without its arguments: the terminal wraps it to its own width."""
    text, _, _ = (docstring or "").partition("\n\nArgs:\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def first_line(place: str) -> str:
    """Return the first line of the docstring of a command, `module:function`, which is not imported."""
    module, _, name = place.partition(":")
    source = Path(__file__).with_name("commands").joinpath(f"{module}.py").read_text("utf-8")
    docstring = re.search(rf'^def {name}\(.*?^    r?"""(.+?)(?:""")?$', source, re.MULTILINE | re.DOTALL)
    return docstring[1] if docstring else ""


class Listed(TyperCommand):
    """A command as the help of its group lists it; its epilog is where it is."""

    def loaded(self) -> Command:
        """Import the command and derive its options."""
        from layerprobe_cli.derive import expanded
        from layerprobe_cli.shell import run

        module_name, _, name = (self.epilog or "").partition(":")
        module = import_module(f"layerprobe_cli.commands.{module_name}")
        command = getattr(module, name)
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        options = expanded(command, getattr(module, "OF", ""), run)
        app.command(self.name, cls=Command, help=unwrapped(inspect.getdoc(command)))(options)
        loaded = typer.main.get_command(app)
        assert isinstance(loaded, Command)
        return loaded


class Commands(TyperGroup):
    """Commands by their names."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with its options."""
        command = self.commands.get(cmd_name)
        if isinstance(command, Listed):
            command = self.commands[cmd_name] = command.loaded()
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, for which no command is imported."""
        listed: Any = copy.copy(self)
        listed.get_command = lambda _, name: self.commands[name]
        TyperGroup.format_help(listed, ctx, formatter)

    def main(self, *words: Any, **settings: Any) -> Any:
        """Run a command line, whose messages name options."""
        from layerprobe.errors import ON_COMMAND_LINE

        token = ON_COMMAND_LINE.set(True)
        try:
            return super().main(*words, **settings)
        finally:
            ON_COMMAND_LINE.reset(token)

    def invoke(self, ctx: Any) -> Any:
        """Call a command; what is wrong with its call is said without characters that command a terminal."""
        from layerprobe_cli.output import printable

        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = printable(error.message)
            raise
        except EOFError as error:  # by which an import fails; typer takes it for the end of what is typed
            raise RuntimeError(*error.args) from error


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


def _is_data(word: str, first: str) -> bool:
    """Return whether the last argument of a call is data; that of embeddings, which come first, is their targets."""
    from layerprobe.tasks.hub import ALIASES

    if os.path.isfile(first) or (os.path.isdir(first) and not _is_model(first)):  # noqa: PTH112, PTH113
        return False
    if os.path.isdir(word):  # noqa: PTH112 - of any name, too long ones as well
        return not _is_model(word)
    if word in ALIASES:
        return True
    if not os.path.isfile(word) or word.lower().endswith(".toml"):  # noqa: PTH113
        return False
    from layerprobe.comparison.arrays import SUFFIXES

    return Path(first).suffix not in SUFFIXES  # else embeddings that are not there


def _is_model(folder: str) -> bool:
    return any(Path(folder, name).is_file() for name in ("config.json", "modules.json", "adapter_config.json"))


def _kind_of(data: str, flags: Mapping[str, str]) -> str:
    """Return which option data is given with: a text file without tabs is texts, where texts are taken."""
    if "texts" not in flags or not data.lower().endswith((".txt", ".txt.gz")):
        return "source"
    with contextlib.suppress(OSError), open(data, "rb") as file:  # noqa: PTH123
        return "source" if b"\t" in file.readline(2**16) else "texts"
    return "texts"


class Command(TyperCommand):
    """A command whose help has the usual options, and by --help-all every one.

    Names of what is registered are looked up when it is shown: other packages may add to it.
    """

    def make_context(self, info_name: str | None, args: list[str], *words: Any, **settings: Any) -> Any:
        """Return the context of a call, whose options are checked; what they contradict is one line, as elsewhere."""
        from layerprobe.errors import LayerProbeError
        from layerprobe_cli.output import fail

        try:
            self._refuse_empty_paths(args)
            return super().make_context(info_name, args, *words, **settings)
        except typer.BadParameter as error:
            if errors := getattr(error.__cause__, "errors", None):  # of pydantic, which does not say what came
                value, line = errors()[0]["input"], error.message.removeprefix("Value error, ").rstrip(".")
                line = line.replace("Input should be", "expected")
                error.message = line if repr(value) in line else f"{line}, got {value}"
            raise
        except LayerProbeError as error:
            fail(str(error))
            raise typer.Exit(1) from None

    def _refuse_empty_paths(self, args: list[str]) -> None:
        """Raise BadParameter for an empty path, as of a variable that is not set: it would be the working directory."""
        for parameter in self.params:
            if "Path" in str(parameter.type_descriptor.annotation):  # type: ignore[attr-defined]
                for flag in parameter.opts:
                    if f"{flag}=" in args or any(pair == (flag, "") for pair in itertools.pairwise(args)):
                        raise typer.BadParameter(f"expected a path with {flag}, got none: is a variable not set?")

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the words of a call, of which the last one may be data."""
        return super().parse_args(ctx, self._with_data_last(ctx, args))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands behind the name in the first line of the help."""
        return [*super().collect_usage_pieces(ctx), *(["[DATA]"] if self._data_flags() else [])]

    def _data_flags(self) -> dict[str, str]:
        """Return the options that data can be given with, of a command whose first argument is a model."""
        first = next((parameter.name for parameter in self.params if not isinstance(parameter, TyperOption)), "")
        flags = {str(option.name): option.opts[0] for option in self.params if option.name in ("source", "texts")}
        return flags if first == "name" and "source" in flags else {}

    def _with_data_last(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the words of a call, with the option before data that is the last argument."""
        flags = self._data_flags()
        if not flags or ctx.resilient_parsing:
            return args
        options = copy.copy(self)
        options.params = [parameter for parameter in self.params if isinstance(parameter, TyperOption)]
        try:
            values, words, _ = options.make_parser(ctx).parse_args([*args])
            if len(words) < 2 or values.get("source") or values.get("texts") or not _is_data(words[-1], words[0]):
                return args
            for place in (place for place in reversed(range(len(args))) if args[place] == words[-1]):
                others = [*args[:place], *args[place + 1 :]]
                if options.make_parser(ctx).parse_args([*others])[1] == words[:-1]:
                    return [flags[_kind_of(words[-1], flags)], words[-1], *others]
        except UsageError:
            pass  # it is said where all of it is read
        return args

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, whose texts are those of the library."""
        from layerprobe_cli.derive import PLACE, text_of

        for parameter in self.params:
            if (text := getattr(parameter, "help", None) or "").startswith(PLACE):
                parameter.help = text_of(text)  # type: ignore[attr-defined]
        return super().get_params(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: by --help-all the whole of it, else the usual options, with a sentence each."""
        from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
        from layerprobe.similarity.registry import MEASURES
        from layerprobe.tasks.kind import KINDS
        from layerprobe_cli.derive import HELP_ALL

        self.get_params(ctx)
        registered: dict[str, Any] = {"{measures}": MEASURES, "{objectives}": OBJECTIVES, "{kinds}": KINDS}
        written = copy.copy(self)
        written.params = [copy.copy(parameter) for parameter in self.params]
        for parameter in written.params:
            for place, names in registered.items():
                parameter.help = (parameter.help or "").replace(place, ", ".join(names))  # type: ignore[attr-defined]
        if not ctx.meta.get(HELP_ALL):
            written._shorten(ctx)
        TyperCommand.format_help(written, ctx, formatter)

    def _shorten(self, ctx: Any) -> None:
        from layerprobe_cli.derive import first_sentence

        n_more = 0
        for parameter in self.params:
            short = SHORT.get(parameter.rich_help_panel or "")  # type: ignore[attr-defined]
            if isinstance(parameter, TyperOption) and not parameter.hidden:
                parameter.hidden = short is not None and parameter.name not in short.split()
                n_more += parameter.hidden
                parameter.rich_help_panel = None
                if parameter.secondary_opts:  # what is not done anyway
                    parameter.opts = parameter.secondary_opts if parameter.default else parameter.opts
                    parameter.secondary_opts = []
                if parameter.is_flag or len(parameter.metavar or "x" * 99) > WIDEST:
                    number = isinstance(parameter.default, int | float)
                    parameter.metavar = " " if parameter.is_flag else "N" if number else "TEXT"
            parameter.help = first_sentence(parameter.help or "").removesuffix(".")  # type: ignore[attr-defined]
            default = getattr(parameter.default, "value", parameter.default)
            if default is True:  # the flag turns it off
                parameter.help = f"Unless given: {parameter.help}"  # type: ignore[attr-defined]
            elif parameter.show_default and default not in (None, False, "", ()):  # type: ignore[attr-defined]
                parameter.help += f" [dim]({default})[/dim]"  # type: ignore[attr-defined]
            parameter.show_default = False  # type: ignore[attr-defined]
        first, *_ = (self.help or "").split("\n\nExample:  ")[1:] or [""]
        self.help = (self.help or "").split("\n\nExample:  ")[0] + (f"\n\nExample:  {first}" if first else "")
        self.epilog = f"{n_more} more options: {ctx.command_path} --help-all" if n_more else None
