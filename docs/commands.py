"""Write the reference of the command line, from the code: `python docs/commands.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from layerprobe_cli.main import app


def reference() -> Iterator[str]:
    """Yield the page: every command with its help, arguments and options."""
    root = typer.main.get_command(app)
    context = root.make_context("layerprobe", [], resilient_parsing=True)
    yield "# Command line\n\nEvery command has `--help`; data goes to stdout, all else to stderr.\n"
    yield from _commands(root, context, "layerprobe")


def _commands(group: Any, context: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, context, f"{path} {name}")
            continue
        here = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"## {path} {name}\n\n{_code(command.help or '')}\n"
        yield "| | |\n|---|---|"
        for parameter in command.get_params(here):
            if (record := parameter.get_help_record(here)) and parameter.name not in ("help",):
                yield f"| `{record[0]}` | {_cell(record[1])} |"
        yield ""


def _cell(text: str) -> str:
    return _code(" ".join(text.split()).replace("|", "\\|"))


def _code(text: str) -> str:
    return text.replace("[bold]", "`").replace("[/bold]", "`")


if __name__ == "__main__":
    folder = Path(__file__).parent / "reference"
    (folder / "cli.md").write_text("\n".join(reference()))
