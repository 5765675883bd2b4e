"""Where the code of layerprobe and of its command line names something that stands in a registry."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import layerprobe_cli

import layerprobe

ROOT = Path(layerprobe.__file__).parents[1]
FILES = [file for package in (layerprobe, layerprobe_cli) for file in Path(package.__file__).parent.rglob("*.py")]


def naming(names: Iterable[str]) -> dict[str, set[str]]:
    """Return which of the names stand in a file as values, by its path; files with none are left out."""
    wanted, places = set(names), {}
    quoted = re.compile("|".join(rf"""["']{re.escape(name)}["']""" for name in wanted))
    for file in FILES:
        text = file.read_text("utf-8")
        if quoted.search(text):  # to parse all files takes seconds
            values = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
            if values & wanted:
                places[file.relative_to(ROOT).as_posix()] = values & wanted
    return places
