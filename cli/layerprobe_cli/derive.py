"""Options from settings: a field of a settings class, or an argument of a function, of the library is an option.

Name, type and default are the field's, and its help is the field's own text in the library's source, which is read
without importing it. A command adds what only a command line has: flags, a metavar, how a text is read, what the shell
completes.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import pkgutil
import re
import types
import typing
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.models import ParameterInfo

from layerprobe.errors import LayerProbeError, MissingPackageError

HELP_ALL = "help_all"
PANELS = (
    *("", "Data", "Comparison", "Prediction", "Retrieval", "Probing", "Size", "Fine-tuning", "Search", "Training"),
    *("Model", "Report", "Machine"),
)
"""Panels in the order of the help; "" has all other options."""
LAST = "report", "plotly", "json", "quiet", "traceback"
LISTED = {
    "kinds": "layerprobe.tasks.kind:KINDS",
    "measures": "layerprobe.similarity.values:MEASURES",
    "objectives": "layerprobe.lab.pretraining.values:OBJECTIVES",
}
"""Registries whose names replace {kinds} and so on in a help: other packages may add to them."""
Parameters = dict[str, tuple[Any, Any]]
"""Annotation and default of options by name, for Typer."""


class Group:
    """Fields of a settings class as options, in a panel of the help, for `Annotated`.

    Args:
        settings: The class.
        panel: Default panel of the options.
        names: Fields that are options; the others keep their defaults.
        make: Function of the values; by default the class.
        special: Settings of single options by name: flags, type, default, panel, argument, and arguments of
            `typer.Option`. A name that is not a field is a separate option, for `make`.
    """

    def __init__(
        self, settings: type, panel: str, names: str, /, *, make: Callable[..., Any] | None = None, **special: Any
    ) -> None:
        self.settings, self.panel, self.make = settings, panel, make or settings
        self.names, self.special = names.split(), special

    def made(self, **values: Any) -> Any:
        """Build the settings from the values of the options; omitted options keep the field's default."""
        defaults = _defaults(self.settings)
        return self.make(
            **{name: value for name, value in values.items() if value is not None or defaults.get(name) is None}
        )

    @property
    def options(self) -> Parameters:
        """The options, for Typer."""
        hints, fields, made = typing.get_type_hints(self.settings), _defaults(self.settings), Parameters()
        for name in dict.fromkeys((*self.names, *(name for name in self.special if name not in fields))):
            about: dict[str, Any] = {"panel": self.panel, "type": hints.get(name), "default": fields.get(name)}
            about |= self.special.get(name, {})
            default, hint = about.pop("default"), about.pop("type")
            if "tuple" in str(hint):  # numbers or names, which the settings take as a text
                hint, default = str | None, ",".join(map(str, default)) if default else None
            if "help" not in about:
                owner = next(base for base in self.settings.__mro__ if name in inspect.get_annotations(base))
                about["help"] = field_text(f"{owner.__module__}:{owner.__qualname__}", name)
            made[name] = _annotated(name, hint, default, **about), default
        return made


def option(panel: str, *names: str, **settings: Any) -> Any:
    """Return an option in a panel of the help."""
    return typer.Option(*names, rich_help_panel=panel, **settings)


def usage(make: Callable[..., Any], *words: Any, **values: Any) -> Any:
    """Call a function; its errors count as wrong usage, except for a missing package."""
    try:
        return make(*words, **values)
    except MissingPackageError:
        raise
    except LayerProbeError as error:
        raise typer.BadParameter(str(error)) from None


def expanded(command: Callable[..., Any], of: str, call: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the options of a command, for Typer; it passes their values to `call`.

    Args:
        command: A parameter annotated with a `Group`, or a dataclass, becomes its options. Any other one is
            an option with its help in the docstring of the command, or else of the library's function; it
            may be annotated with the panel, and with further settings, as in `Group.special`.
        of: The library's function, as `module:name`.
        call: Function of the context and the arguments of the command.
    """
    hints, texts = typing.get_type_hints(command, include_extras=True), _arguments(inspect.getdoc(command) or "")
    groups, options = dict[str, tuple[Callable[..., Any], Parameters]](), Parameters()
    for name, parameter in inspect.signature(command).parameters.items():
        is_annotated = typing.get_origin(hints[name]) is Annotated
        kind, *about = typing.get_args(hints[name]) if is_annotated else (hints[name],)
        group = next((item for item in about if isinstance(item, Group)), None)
        if group is not None:
            groups[name] = group.made, group.options
        elif dataclasses.is_dataclass(kind):
            fields = typing.get_type_hints(kind, include_extras=True)
            declared = ((field, fields[field], default) for field, default in _defaults(kind).items())
            of_options = {field: (hint, rest) for field, hint, rest in declared if typing.get_origin(hint) is Annotated}
            groups[name] = typing.cast(Any, kind), of_options
        elif any(isinstance(item, ParameterInfo) for item in about):
            options[name] = hints[name], parameter.default
        else:
            panel = next((item for item in about if isinstance(item, str)), None)
            special = next((item for item in about if isinstance(item, dict)), {})
            if "help" not in special:
                special = special | {"help": " ".join(texts[name].split()) if name in texts else field_text(of, name)}
            options[name] = _annotated(name, kind, parameter.default, panel=panel, **special), parameter.default
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


# ---- texts from the library ------------------------------------------------------------------------------


def field_text(owner: str, name: str) -> str:
    """Return the library's documentation of a field of a class or an argument of a function, `module:name`.

    Examples:
        >>> field_text("layerprobe.finetuning.values:Protocol", "epochs")
        'Training epochs.'
    """
    texts = _field_texts(owner)
    if name not in texts:
        raise LookupError(f"{owner} does not document {name}")
    return " ".join(texts[name].replace("`", "").split())


@functools.cache
def _field_texts(owner: str) -> dict[str, str]:
    """Return the texts of all fields or arguments by name, without importing the module."""
    module, _, qualified = owner.partition(":")
    spec: Any = find_spec(module)
    node: Any = ast.parse(spec.loader.get_source(module))
    for name in qualified.split("."):
        node = next((statement for statement in node.body if getattr(statement, "name", None) == name), None)
        if node is None:
            raise LookupError(f"{module} has no {name}")
    fields = {
        ast.unparse(field.target): str(text.value.value)
        for field, text in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    return _arguments(ast.get_docstring(node) or "") | fields


def _arguments(docstring: str) -> dict[str, str]:
    """Return the texts of the section `Args:` of a docstring."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    return dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE))


def complete_names(place: str) -> Callable[[str], list[str]]:
    """Return a completion function for the names in a registry, or from a function: `module:attribute`.

    Nothing is loaded before the shell asks.
    """

    def complete(incomplete: str) -> list[str]:
        names = pkgutil.resolve_name(place)
        return [choice for choice in (names() if callable(names) else names) if choice.startswith(incomplete)]

    return complete
