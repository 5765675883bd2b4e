"""The size of the library and the command line, which only falls: `[tool.layerprobe.size]` in pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path.read_text("utf-8") for part in ("layerprobe", "cli") for path in (ROOT / part).rglob("*.py")]
LIMITS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["layerprobe"]["size"]


@pytest.mark.parametrize(("what", "pattern"), [("lines", r"\n"), ("classes", r"(?m)^ *class \w+[(:\[]")])
def test_size_only_falls(what: str, pattern: str) -> None:
    count = sum(len(re.findall(pattern, source)) for source in SOURCES)
    assert count <= LIMITS[what], f"{count} {what}, at most {LIMITS[what]}: take out as much as you add"
