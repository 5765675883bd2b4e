"""Options from settings: a field of a settings class of the library is an option.

Name, type and default are the field's, and its help is the field's own text in the library's source. A command adds
what only a command line has: flags, a metavar, how a text is read, what the shell completes.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo, ParameterInfo

from layerprobe.errors import LayerProbeError, MissingPackageError

HELP_ALL = "help_all"
PANELS = (
    *("", "Data", "Comparison", "Prediction", "Retrieval", "Probing", "Size", "Fine-tuning", "Search", "Training"),
    *("Model", "Report", "Machine"),
)
"""Panels in the order of the help; "" has all other options."""
LAST = "report", "plotly", "json", "quiet", "traceback"
Parameters = dict[str, tuple[Any, Any]]
"""Annotation and default of options by name, for Typer."""


class Group:
    """Fields of a settings class as options, for `Annotated`.

    Args:
        panel: Panel of the help for options that name no other.
        settings: The class.
        changed: `typer.Option` or `typer.Argument` of fields that differ on the command line, by name; `Annotated` for
            another type. Without a help, the text of the field is the help.
        defaults: Other defaults on the command line, by name of the field.
        only: Names of the fields that are options; by default all. The others keep their defaults.
        without: Names of fields that are not options.
        make: Function of the values of all options; by default the class.
        further: Annotated types of options that are not fields; their defaults are those of `make`, or None.
    """

    def __init__(
        self,
        panel: str,
        settings: type,
        changed: Mapping[str, Any] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        only: Sequence[str] = (),
        without: Sequence[str] = (),
        make: Callable[..., Any] | None = None,
        **further: Any,
    ) -> None:
        self.panel, self.settings, self.changed = panel, settings, changed or {}
        self.make, self.further, self.defaults = make or settings, further, _defaults(settings) | {**(defaults or {})}
        self.fields = [name for name in only or _defaults(settings) if name not in without]

    def made(self, **values: Any) -> Any:
        """Build the settings from the values of the options; omitted options keep the field's default."""
        defaults = _defaults(self.settings)
        return self.make(
            **{name: value for name, value in values.items() if value is not None or defaults.get(name) is None}
        )

    @property
    def options(self) -> Parameters:
        """The options, for Typer."""
        hints, options = typing.get_type_hints(self.settings), Parameters()
        for name in self.fields:
            about, default = self.changed.get(name, typer.Option()), self.defaults[name]
            kind, about = typing.get_args(about) or (hints[name], about)
            if "tuple" in str(kind):  # numbers or names, which the settings take as a text
                kind, default = str | None, ",".join(map(str, default)) if default else None
            text = functools.partial(field_text, self.settings, name)
            options[name] = _declared(name, kind, default, about, text, self.panel), default
        parameters = inspect.signature(self.make).parameters
        for name, hint in self.further.items():
            default = parameters[name].default if name in parameters else None
            kind, about = typing.get_args(hint)
            options[name] = _declared(name, kind, default, about, str, self.panel), default
        return options


def option(panel: str, *flags: str, **settings: Any) -> Any:
    """Return an option in a panel of the help."""
    return typer.Option(*flags, rich_help_panel=panel, **settings)


def usage(make: Callable[..., Any], *words: Any, **values: Any) -> Any:
    """Call a function; its errors count as wrong usage, except for a missing package."""
    try:
        return make(*words, **values)
    except MissingPackageError:
        raise
    except LayerProbeError as error:
        raise typer.BadParameter(str(error)) from None


def expanded(command: Callable[..., Any], call: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the options of a command, for Typer; it passes their values to `call`.

    Args:
        command: A parameter annotated with a `Group`, or a dataclass, becomes its options. Any other one is an option
            or an argument of Typer, whose help is in the docstring of the command unless it is declared.
        call: Function of the context and the arguments of the command.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    texts = _arguments(inspect.getdoc(command) or "")
    groups: dict[str, tuple[Callable[..., Any], Parameters]] = {}
    options: Parameters = {}
    for name, parameter in inspect.signature(command).parameters.items():
        is_annotated = typing.get_origin(hints[name]) is Annotated
        kind, *rest = typing.get_args(hints[name]) if is_annotated else (hints[name], typer.Option())
        if is_annotated and isinstance(rest[0], Group):
            groups[name] = rest[0].made, rest[0].options
        elif dataclasses.is_dataclass(kind):
            fields = typing.get_type_hints(kind, include_extras=True)
            declared = ((field, fields[field], default) for field, default in _defaults(kind).items())
            of_options = {field: (hint, rest) for field, hint, rest in declared if typing.get_origin(hint) is Annotated}
            groups[name] = typing.cast(Any, kind), of_options
        else:
            text = functools.partial(texts.__getitem__, name)
            options[name] = _declared(name, kind, parameter.default, rest[0], text), parameter.default
        options |= groups[name][1] if name in groups else {}

    def help_all(context: typer.Context, is_set: bool) -> None:
        if is_set:
            context.meta[HELP_ALL] = True
            typer.echo(context.get_help())
            raise typer.Exit

    whole = typer.Option("--help-all", hidden=True, is_eager=True, callback=help_all)
    all_options = {"context": (typer.Context, inspect.Parameter.empty), **dict(sorted(options.items(), key=_place))}
    all_options[HELP_ALL] = Annotated[bool, whole], False

    @functools.wraps(command)
    def with_groups(context: typer.Context, **values: Any) -> None:
        del values[HELP_ALL]
        for name, (make, fields) in groups.items():
            values[name] = usage(make, **{field: values.pop(field) for field in fields})
        call(command, context, values)

    with_groups.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in all_options.items()
        ]
    )
    with_groups.__annotations__ = {name: hint for name, (hint, _) in all_options.items()}
    return with_groups


def _place(item: tuple[str, tuple[Any, Any]]) -> tuple[bool, int]:
    """Return the position of an option in the help."""
    name, (hint, _) = item
    panels = (about.rich_help_panel for about in typing.get_args(hint) if isinstance(about, ParameterInfo))
    return name in LAST, next((PANELS.index(panel) for panel in panels if panel in PANELS), 0)


def _defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass."""
    return {
        field.name: inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }


def _declared(name: str, kind: Any, default: Any, about: Any, text: Callable[[], str], panel: str | None = None) -> Any:
    """Return a type with an option or argument for Typer, with all that it does not declare itself."""
    about = copy.copy(about)
    about.help = about.help or text()
    if "{names}" in about.help:
        about.help = about.help.replace("{names}", ", ".join(about.autocompletion("")))
    if isinstance(about, ArgumentInfo):
        about.metavar = about.metavar or (name.upper() if default is inspect.Parameter.empty else None)
        return Annotated[kind, about]
    about.rich_help_panel = panel if about.rich_help_panel is None else about.rich_help_panel or None
    if about.default is ...:  # no flags
        flag = name.replace("_", "-")
        switch = isinstance(kind, types.UnionType) and bool in typing.get_args(kind)  # which can be None
        about.default = f"--{flag}/--no-{flag}" if switch else f"--{flag}"
    return Annotated[kind, about]


def field_text(settings: type, name: str) -> str:
    """Return the library's documentation of a field of a class.

    Examples:
        >>> from layerprobe.finetuning.values import Protocol
        >>> field_text(Protocol, "epochs")
        'Training epochs.'
    """
    owner = next(base for base in settings.__mro__ if name in inspect.get_annotations(base))
    if name not in _field_texts(owner):
        raise LookupError(f"{owner.__name__} does not document {name}")
    return " ".join(_field_texts(owner)[name].replace("`", "").split())


@functools.cache
def _field_texts(owner: type) -> dict[str, str]:
    """Return the texts below all fields of a class, by name."""
    statements: Any = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    return {
        ast.unparse(field.target): str(text.value.value)
        for field, text in itertools.pairwise(statements.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _arguments(docstring: str) -> dict[str, str]:
    """Return the texts of the section `Args:` of a docstring."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    texts = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}


def complete(listed: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completion function for the names that a function lists, which may import them."""
    return lambda incomplete: [name for name in listed() if name.startswith(incomplete)]
