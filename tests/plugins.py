"""A package from outside that brings something to a registry, made on the spot."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from layerprobe.lab.pretraining.values import OBJECTIVES
from layerprobe.registry import Registry


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    registry: Registry[object],
    source: str,
    names: dict[str, str],
    *,
    package: str = "toy_plugin",
) -> None:
    """Make a module `package` with `source` and the entry points `names` (name -> attribute) that the registry sees.

    Processes that the test starts see it, too, by PYTHONPATH.
    """
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {package}:{attribute}\n" for name, attribute in names.items())
    (info / "entry_points.txt").write_text(f"[{registry.group}]\n{lines}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.delitem(sys.modules, package, raising=False)
    registry.reload()


def register_electric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the objective of `benchmarks/electric` registered, as where that package is installed."""
    entry = EntryPoint(name="electric", value="layerprobe_electric:ELECTRIC", group=OBJECTIVES.group)
    monkeypatch.setitem(OBJECTIVES._entries, "electric", entry)
