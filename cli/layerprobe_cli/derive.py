"""Options from settings: a field of a settings class, or an argument of a function, of the library is an option.

Name, type and default are the field's, and its help is the field's own text in the library's source, which is read
without importing it. A command adds what only a command line has: flags, a metavar, how a text is read.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import pkgutil
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
PANELS = (
    *("", "Data", "Comparison", "Prediction", "Retrieval", "Probing", "Size", "Fine-tuning", "Search", "Training"),
    *("Model", "Report", "Machine"),
)
"""In the order of the help; "" has all others."""
LAST = "report", "plotly", "json", "quiet", "traceback"
LISTED = {
    "kinds": "layerprobe.tasks.kind:KINDS",
    "measures": "layerprobe.similarity.registry:MEASURES",
    "objectives": "layerprobe.lab.pretraining.values:OBJECTIVES",
}
"""Names that a help lists where it has {kinds} and so on: other packages may add to them."""
Parameters = dict[str, tuple[Any, Any]]
"""The annotation and the default of options by name, as Typer reads them."""


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

    @property
    def options(self) -> Parameters:
        """What Typer gets to know of its options."""
        hints, made = typing.get_type_hints(self.kind), Parameters()
        fields = {field.name: field for field in dataclasses.fields(self.kind)}
        for name in dict.fromkeys((*self.names, *(name for name in self.special if name not in fields))):
            about: dict[str, Any] = {"panel": self.panel, "type": hints.get(name)} | dict(self.special.get(name, {}))
            default, hint = about.pop("default", _default(fields[name]) if name in fields else None), about.pop("type")
            if "tuple" in str(hint):  # numbers or names, which the settings take as a text
                hint, default = str | None, ",".join(map(str, default)) if default else None
            if "help" not in about:
                owner = next(base for base in self.kind.__mro__ if name in inspect.get_annotations(base))
                about["help"] = text_of(f"{owner.__module__}:{owner.__qualname__}", name)
            made[name] = _annotated(name, hint, default, **about), default
        return made


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
    hints, texts = typing.get_type_hints(command, include_extras=True), _arguments(inspect.getdoc(command) or "")
    groups, options = dict[str, tuple[Callable[..., Any], Parameters]](), Parameters()
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *about = typing.get_args(hints[name]) if _is_annotated(hints[name]) else (hints[name],)
        chosen = next((item for item in about if isinstance(item, Group)), None)
        if chosen is not None:
            groups[name] = chosen.made, chosen.options
        elif dataclasses.is_dataclass(kind):
            groups[name] = typing.cast(Any, kind), _fields_of(typing.cast(type, kind))
        elif any(isinstance(item, ParameterInfo) for item in about):
            options[name] = hints[name], parameter.default
        else:
            panel = next((item for item in about if isinstance(item, str)), None)
            special = next((item for item in about if isinstance(item, dict)), {})
            if "help" not in special:
                special = special | {"help": " ".join(texts[name].split()) if name in texts else text_of(of, name)}
            options[name] = _annotated(name, kind, parameter.default, panel=panel, **special), parameter.default
        options |= groups[name][1] if name in groups else {}
    whole = typer.Option("--help-all", hidden=True, is_eager=True, callback=_help_all)
    ordered = sorted(options.items(), key=lambda item: (item[0] in LAST, PANELS.index(_panel_of(item[1][0]))))
    all_options = {"context": (typer.Context, inspect.Parameter.empty), **dict(ordered)}
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


def _panel_of(hint: Any) -> str:
    about = typing.get_args(hint)[1:] if _is_annotated(hint) else ()
    panels = (item.rich_help_panel for item in about if isinstance(item, ParameterInfo))
    return next((panel for panel in panels if panel in PANELS), "")


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated


def _fields_of(kind: type) -> Parameters:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = ((field.name, hints[field.name], _default(field)) for field in dataclasses.fields(kind))
    return {name: (hint, default) for name, hint, default in fields if _is_annotated(hint)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def _annotated(name: str, hint: Any, default: Any, *, panel: str | None, argument: bool = False, **about: Any) -> Any:
    """Return a type with the settings of an option or an argument for Typer."""
    for listed in re.findall(r"\{(\w+)\}", about["help"]):
        about["help"] = about["help"].replace(f"{{{listed}}}", ", ".join(pkgutil.resolve_name(LISTED[listed])))
    if argument:
        about = ({"metavar": name.upper()} if default is inspect.Parameter.empty else {}) | about
        return Annotated[hint, typer.Argument(rich_help_panel=panel, **about)]
    flag = name.replace("_", "-")
    switch = isinstance(hint, types.UnionType) and bool in typing.get_args(hint)  # which can be None
    flags = about.pop("flags", (f"--{flag}/--no-{flag}" if switch else f"--{flag}",))
    return Annotated[hint, typer.Option(*flags, rich_help_panel=panel, **about)]


# ---- the texts of the library ----------------------------------------------------------------------------


def text_of(owner: str, name: str) -> str:
    """Return the library's documentation of a field of a class or an argument of a function, `module:name`.

    Examples:
        >>> text_of("layerprobe.finetuning.values:Protocol", "epochs")
        'Passes over the training examples.'
    """
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
