"""Options from settings: a field of a settings class, or an argument of a function, of the library is an option.

Name, type and default are the field's, and its help is the field's own text in the library's source, which is read
without importing it. A command adds what only a command line has: flags, a metavar, how a text is read.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ParameterInfo

from layerprobe.errors import LayerProbeError, MissingPackageError

HELP_ALL = "help_all"
PLACE = "@"
"""What a help begins with that is to be looked up: `@module:name#field`."""
PANELS = (
    *("", "Data", "Comparison", "Prediction", "Retrieval", "Probing", "Size", "Fine-tuning", "Search", "Training"),
    *("Model", "Report", "Machine"),
)
"""In the order of the help; "" has all others."""
LAST = "report", "plotly", "json", "quiet", "traceback"


@dataclasses.dataclass(frozen=True)
class Group:
    """Fields of a settings class as options, in a panel of the help."""

    kind: type
    panel: str
    names: tuple[str, ...]
    """Fields that are options; the others keep their defaults."""
    special: Mapping[str, Mapping[str, Any]]
    """What options have besides, by name: flags, type, default, panel, argument, and what `typer.Option` takes.

    A name that is no field is an option of its own, for `make`.
    """
    make: Callable[..., Any]
    """What is made of the values; by default the settings."""

    def made(self, **values: Any) -> Any:
        """Build the settings from the values of the options; what was not given is as the field has it."""
        defaults = {field.name: _default(field) for field in dataclasses.fields(self.kind)}
        return self.make(
            **{name: value for name, value in values.items() if value is not None or defaults.get(name) is None}
        )


def group(
    settings: type, panel: str, names: str, /, *, make: Callable[..., Any] | None = None, **special: Mapping[str, Any]
) -> Group:
    """Return fields of a settings class as a group of options, for `Annotated`."""
    return Group(settings, panel, tuple(names.split()), special, make or settings)


def option(panel: str, *names: str, **settings: Any) -> Any:
    """Return an option that the help shows in a panel."""
    return typer.Option(*names, rich_help_panel=panel, **settings)


def usage(make: Callable[..., Any], *words: Any, **values: Any) -> Any:
    """Call a function; what it refuses is a wrong call, but for a package that is missing."""
    try:
        return make(*words, **values)
    except MissingPackageError:
        raise
    except LayerProbeError as error:
        raise typer.BadParameter(str(error)) from None


def expanded(command: Callable[..., Any], of: str, call: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the options of a command, for Typer; it gives what was given to `call`.

    Args:
        command: A parameter that is annotated with a `Group`, or is a dataclass, stands for its options. Another one is
            an option whose help stands in the docstring of the command, or else in that of the library's function; it
            may be annotated with the panel, and with what else it has, as in `Group.special`.
        of: The library's function, as `module:name`.
        call: Called with the context of the call and the arguments of the command.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    texts = _arguments(inspect.getdoc(command) or "")
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *about = typing.get_args(hints[name]) if _is_annotated(hints[name]) else (hints[name],)
        chosen = next((item for item in about if isinstance(item, Group)), None)
        if chosen is None and not dataclasses.is_dataclass(kind):
            parameters.append(
                _of_argument(name, hints[name], parameter.default, texts.get(name) or f"{PLACE}{of}#{name}")
            )
            continue
        group = _of_dataclass(typing.cast(type, kind)) if chosen is None else _of_group(chosen)
        groups[name] = typing.cast(Any, kind) if chosen is None else chosen.made, [field.name for field in group]
        parameters += group
    parameters.sort(key=lambda parameter: (parameter.name in LAST, PANELS.index(_panel_of(parameter))))
    whole = typer.Option("--help-all", hidden=True, is_eager=True, callback=_help_all)
    parameters.append(_parameter(HELP_ALL, Annotated[bool, whole], default=False))

    @functools.wraps(command)
    def with_groups(context: typer.Context, **values: Any) -> None:
        del values[HELP_ALL]
        for name, (make, fields) in groups.items():
            values[name] = usage(make, **{field: values.pop(field) for field in fields})
        call(command, context, values)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def _panel_of(parameter: inspect.Parameter) -> str:
    about = typing.get_args(parameter.annotation)[1:] if _is_annotated(parameter.annotation) else ()
    info = next((item for item in about if isinstance(item, ParameterInfo)), None)
    panel = None if info is None else info.rich_help_panel
    return panel if panel in PANELS else ""


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated


def _of_argument(name: str, hint: Any, default: Any, text: str) -> inspect.Parameter:
    """Return an argument of a command as an option; one that is an option of Typer's stays as it is."""
    kind, *about = typing.get_args(hint) if _is_annotated(hint) else (hint,)
    if any(isinstance(item, ParameterInfo) for item in about):
        return _parameter(name, hint, default)
    panel = next((item for item in about if isinstance(item, str)), None)
    settings = next((item for item in about if isinstance(item, dict)), {})
    return _parameter(name, kind, default, panel, **{"help": text} | settings)


def _of_dataclass(kind: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        _parameter(field.name, hints[field.name], _default(field))
        for field in dataclasses.fields(kind)
        if _is_annotated(hints[field.name])
    ]


def _of_group(group: Group) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group.kind)
    fields = {field.name: field for field in dataclasses.fields(group.kind)}
    parameters = []
    for name in dict.fromkeys((*group.names, *(name for name in group.special if name not in fields))):
        about = dict(group.special.get(name, {}))
        default = about.pop("default", _default(fields[name]) if name in fields else None)
        if name in fields:
            about.setdefault("help", f"{PLACE}{_place(group.kind, name)}#{name}")
        panel = about.pop("panel", group.panel)
        hint = about.pop("type", hints.get(name))
        if "tuple" in str(hint):  # numbers or names, which the settings take as a text
            hint, default = str | None, ",".join(map(str, default)) if default else None
        parameters.append(_parameter(name, hint, default, panel, **about))
    return parameters


def _default(field: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def _parameter(name: str, hint: Any, default: Any, panel: str | None = None, **about: Any) -> inspect.Parameter:
    """Return an option as Typer reads it."""
    if about:
        flags = about.pop("flags", _flags(name, hint))
        if default is inspect.Parameter.empty and about.get("argument"):
            about.setdefault("metavar", name.upper())
        info = (
            typer.Argument(rich_help_panel=panel, **about)
            if about.pop("argument", False)
            else typer.Option(*flags, rich_help_panel=panel, **about)
        )
        hint = Annotated[hint, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _flags(name: str, kind: Any) -> tuple[str, ...]:
    """Return the flags of an option: those of a switch that is off are one, those of one that can be None two."""
    flag = name.replace("_", "-")
    if kind is bool:
        return (f"--{flag}",)
    switch = isinstance(kind, types.UnionType) and bool in typing.get_args(kind)
    return (f"--{flag}/--no-{flag}",) if switch else (f"--{flag}",)


# ---- the texts of the library ----------------------------------------------------------------------------


def _place(kind: type, name: str) -> str:
    """Return the class that declares a field, as `module:Class`."""
    base = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    return f"{base.__module__}:{base.__qualname__}"


def text_of(place: str) -> str:
    """Return the library's documentation of a field or an argument, `@module:name#field`.

    Examples:
        >>> text_of("@layerprobe.finetuning.values:Protocol#epochs")
        'Passes over the training examples.'
    """
    owner, _, name = place.removeprefix(PLACE).partition("#")
    texts = texts_of(owner)
    if name not in texts:
        raise LookupError(f"{owner} says nothing of {name}")
    return " ".join(texts[name].replace("`", "").split())


def first_sentence(text: str) -> str:
    """Return the first sentence of a text.

    Examples:
        >>> first_sentence("Tokens a text at most. By default as the model says.")
        'Tokens a text at most.'
    """
    return re.split(r"(?<=[\w)\]%])\. (?=[A-Z])", text)[0].removesuffix(".") + "." if text else ""


@functools.cache
def texts_of(owner: str) -> dict[str, str]:
    """Return the texts of the fields of a class, or of the arguments of a function, by name; it is not imported."""
    module, _, qualified = owner.partition(":")
    spec = find_spec(module.partition(".")[0])
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    node: Any = ast.parse(source.read_text("utf-8"))
    for name in qualified.split("."):
        node = next((statement for statement in node.body if getattr(statement, "name", None) == name), None)
        if node is None:
            raise LookupError(f"{module} has no {name}")
    arguments = _arguments(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return arguments
    return arguments | {
        ast.unparse(field.target): str(text.value.value)
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _arguments(docstring: str) -> dict[str, str]:
    """Return the texts of the section `Args:` of a docstring."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    return dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE))


def _help_all(context: typer.Context, is_set: bool) -> None:
    if is_set:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit
