"""What is named in a string is imported all the same: such references keep the order of packages, and exist."""

import ast
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import layerprobe_cli
import pytest

import layerprobe

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"(?:layerprobe|layerprobe_cli)(?:\.\w+)+(?::\w+)?")
QUOTED = re.compile(f'"{REFERENCE.pattern}"')
REGISTRIES = {
    "layerprobe.results.shown": "the classes that JSON can be of",
    "layerprobe.tasks.kind": "where the rows of kinds are",
}
"""Modules whose references may run up, as their registries can be added to from outside."""


def layers() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (order,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [set(re.findall(r"[\w.]+", layer)) for layer in order]


def references() -> Iterator[tuple[str, str]]:
    """Every module with what it names in strings that are no docstrings."""
    for package in (layerprobe, layerprobe_cli):
        folder = Path(package.__file__ or "").parent
        for file in folder.rglob("*.py"):
            module = ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
            text = file.read_text("utf-8")
            if not QUOTED.search(text):
                continue  # most files: to parse all takes seconds
            tree = ast.parse(text)
            texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            strings = [
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts
            ]
            for value in strings:
                if isinstance(value, str) and REFERENCE.fullmatch(value) and (":" in value or is_module(value)):
                    yield module, value


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file()


FOUND = sorted(set(references()))


def level(module: str) -> int:
    names = [".".join(module.split(".")[:depth]) for depth in (2, 1)]
    return next((number for name in names for number, layer in enumerate(layers()) if name in layer), -1)


@pytest.mark.parametrize(("module", "reference"), FOUND)
def test_a_reference_exists_and_runs_down(module: str, reference: str) -> None:
    assert pkgutil.resolve_name(reference) is not None
    target = reference.partition(":")[0]
    if module not in REGISTRIES and module.split(".")[:2] != target.split(".")[:2]:
        assert level(module) < level(target), f"{module} names {reference}, which stands above it"


def test_few_modules_name_others_in_strings() -> None:
    naming = {module for module, reference in FOUND if ":" in reference}
    registries = {module for module in naming if module.endswith((".registry", ".names"))}
    others = {  # a registry beside what it registers
        "layerprobe.encoders.backends",
        "layerprobe.kinds",
        "layerprobe.readings.reading",
        "layerprobe.similarity.values",
    }
    assert naming - registries == {*REGISTRIES, *others}
