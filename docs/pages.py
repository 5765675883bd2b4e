"""Write what the site shows into build/pages: `python docs/pages.py`.

These are the documents and the research with links as they are on the site, the pages of the gallery from results that
commands printed with --json, and the reference of the command line from its code.
"""

import ast
import collections
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from layerprobe_cli.derive import PANELS
from layerprobe_cli.main import app

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import from_dict, parse_json
from layerprobe.results.document import render, write_page
from layerprobe.results.shown import load, save

ROOT = Path(__file__).parents[1]
DOCS, RESEARCH = ROOT / "docs", ROOT / "research"
PAGES = ROOT / "build" / "pages"
PUBLISHED = ("*.md", "images/*", "assets/*", "data/*", "recipes/*")
LINK = re.compile(r"\[((?:!\[[^\[\]]*\]\([^()]*\)|[^\[\]])*)\]\(([^()\s:#]+)(#[^()\s]*)?\)")
"""The text of a link, which may be a picture, its path and its anchor."""
INDEX = """\
# Command line

Every command has `--help`, which lists the usual options, and `--help-all`, which lists all. Results go to stdout,
everything else to stderr. [Options of several commands](options.md) are described once.

| command | |
|---|---|"""
VALUES = {
    "list[str]": "TEXT ...",
    "list[Path]": "PATH ...",
    "str": "TEXT",
    "path": "PATH",
    "int": "N",
    "float": "NUMBER",
}
"""How the reference names the values of options that have no name of their own."""


# ---- documents ---------------------------------------------------------------------------------------------


def staged(path: Path) -> Path | None:
    """Return where a file of the documents is on the site; None of a file that is not published."""
    if path.is_relative_to(RESEARCH):
        return Path("research") / path.relative_to(RESEARCH)
    return path.relative_to(DOCS) if path.is_relative_to(DOCS) else None


def with_links(text: str, page: Path) -> str:
    """Return the text of a page with links as they are on the site; of a link to another file its text stays."""
    here = staged(page)
    assert here is not None, page

    def link(match: re.Match[str]) -> str:
        text = LINK.sub(link, match[1])
        place = staged(Path(os.path.normpath(page.parent / match[2])))
        if place is None:
            return text
        return f"[{text}]({Path(os.path.relpath(place, here.parent)).as_posix()}{match[3] or ''})"

    return LINK.sub(link, text)


def with_modules(text: str, folder: Path) -> str:
    """Write a page for each module of a list, `::: module` a line; return the text with a table of links to them."""

    def table(match: re.Match[str]) -> str:
        rows = ["| module | |", "|---|---|"]
        for module in match[0].split()[1::2]:
            folder.mkdir(exist_ok=True)
            page = f"---\ntitle: {module}\n---\n\n::: {module}\n    options:\n      heading_level: 1\n"
            (folder / f"{module}.md").write_text(page, encoding="utf-8")
            source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
            about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
            rows.append(f"| [{module}](python/{module}.md) | {_cell(' '.join(about.split()))} |")
        return "\n".join([*rows, ""])

    return re.sub(r"(?:^::: \S+\n+)+", table, text, flags=re.MULTILINE)


def write_documents(out: Path) -> None:
    """Copy what is published, and rewrite the links of its pages."""
    for folder in (DOCS, RESEARCH):
        for path in sorted({path for pattern in PUBLISHED for path in folder.rglob(pattern)}):
            place = out / (staged(path) or "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                text = with_modules(with_links(path.read_text(encoding="utf-8"), path), place.parent / "python")
                place.write_text(text, encoding="utf-8")
            else:
                shutil.copyfile(path, place)


def write_gallery(out: Path) -> None:
    """Write a page for each result of the gallery."""
    results = DOCS / "gallery"
    out.mkdir(parents=True, exist_ok=True)
    save(load(results / "finding.json"), out / "finding.html")
    measured = parse_json((results / "compare.json").read_text(encoding="utf-8"))
    first, *others = (from_dict(Comparisons, item) for item in measured)
    write_page(out / "compare.html", render(first, beside=others))


# ---- the command line --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An option or an argument of a command, as the reference describes it."""

    name: str
    """The longest flag, or the name of an argument."""
    panel: str
    """The heading in the help; "" for none."""
    usage: str
    """All flags and the kind of value."""
    text: str

    @property
    def anchor(self) -> str:
        """What links lead to."""
        return re.sub(r"\W+", "-", self.name).strip("-").lower()

    @property
    def row(self) -> str:
        """The row of a table."""
        return f"| `{self.usage}`{{#{self.anchor}}} | {_cell(self.text)} |"

    @property
    def link(self) -> str:
        """A link to the row among the options of several commands."""
        return f"[`{self.name}`](options.md#{self.anchor})"


def commands(group: Any, context: Any, path: str = "layerprobe") -> Iterator[tuple[str, str, list[Option]]]:
    """Yield the name of each command, its help, and its options."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, context, f"{path} {name}")
            continue
        here = command.make_context(name, [], parent=context, resilient_parsing=True)
        records = ((parameter, parameter.get_help_record(here)) for parameter in command.get_params(here))
        options = [_option(parameter, *record) for parameter, record in records if record and parameter.name != "help"]
        yield f"{path} {name}", _code(command.help or ""), options


def _option(parameter: Any, usage: str, text: str) -> Option:
    usage = re.sub(r"<([\w\[\]]+)(?: range)?>", lambda kind: VALUES.get(kind[1], kind[0]), usage)
    flags = re.findall(r"--[\w-]+", usage.partition(" / ")[0])
    name = max(flags, key=len) if flags else usage.split()[0]
    return Option(name, parameter.rich_help_panel or "", usage, _code(" ".join(text.split())))


def shared(options: Sequence[Option]) -> list[Option]:
    """Return the options that several commands have; of those that differ by command, the most frequent one."""
    frequent: dict[str, Option] = {}
    for option, count in collections.Counter(options).most_common():
        if count > 1:
            frequent.setdefault(option.name, option)
    return [option for option in dict.fromkeys(options) if option in frequent.values()]


def by_panel(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Return options by the headings of the help, in its order."""
    return {
        panel or "General": rows
        for panel in PANELS
        if (rows := [option for option in options if option.panel == panel])
    }


def reference() -> dict[str, str]:
    """Return the pages of the reference of the command line by their names."""
    root = typer.main.get_command(app)
    context = root.make_context("layerprobe", [], resilient_parsing=True)
    listed = list(commands(root, context))
    common = shared([option for _, _, options in listed for option in options])
    pages = {"options": _options_page(common)}
    lines = []
    for path, text, options in listed:
        name = path.removeprefix("layerprobe ").replace(" ", "-")
        pages[name] = _command_page(path, text, options, common)
        lines.append(f"| [{path}]({name}.md) | {_cell(text.splitlines()[0])} |")
    pages["index"] = "\n".join([INDEX, *lines, ""])
    return pages


def _table(options: Sequence[Option]) -> str:
    return "\n".join(["| option | |", "|---|---|", *(option.row for option in options), ""])


def _options_page(options: Sequence[Option]) -> str:
    parts = [f"## {panel}\n\n{_table(rows)}" for panel, rows in by_panel(options).items()]
    return "\n".join(["# Options of several commands\n", *parts])


def _command_page(path: str, text: str, options: Sequence[Option], common: Sequence[Option]) -> str:
    own_options = [option for option in options if option not in common]
    rest = by_panel([option for option in options if option in common])
    links = [f"- {panel}: {', '.join(option.link for option in rows)}" for panel, rows in rest.items()]
    parts = [
        f"# {path}\n\n{text}\n",
        *([_table(own_options)] if own_options else []),
        "## Options of several commands\n",
        *links,
        "",
    ]
    return "\n".join(parts)


def _code(text: str) -> str:
    return text.replace("[bold]", "`").replace("[/bold]", "`").replace("\\[", "[")


def _cell(text: str) -> str:
    """Return a text as the cell of a table; code takes bars as they are."""
    return re.sub(r"(`[^`]*`)|\|", lambda match: match[1] or r"\|", text)


def write_reference(out: Path) -> None:
    """Write the pages of the reference of the command line."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in reference().items():
        (out / f"{name}.md").write_text(text, encoding="utf-8")


def main(out: Path = PAGES) -> None:
    """Write all pages anew."""
    shutil.rmtree(out, ignore_errors=True)
    write_documents(out)
    write_gallery(out / "gallery")
    write_reference(out / "reference" / "cli")


if __name__ == "__main__":
    main()
