"""TOML files with a mistake and what each is answered: `python -m tests.mistakes` writes the answers anew.

A case is a JSON list: what the file is, and its whole text, or texts in pairs of which the first is replaced by the
second in a file that is right.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from layerprobe.errors import DataError
from layerprobe.lab.recipe import load_recipe
from tests.lab.recipes import STUDY

SNAPSHOT = Path(__file__).with_suffix(".txt")
CHAIN = """[[models]]
id = "a/electra"
family = "rtd"
reference = "b/bert"
[[step]]
tune = "stsb"
[[tasks]]
source = "pairs.csv"
examples = [24, 18, 18]
[scans]
falling = 1
[budget.gentle]
epochs = 1
"""
KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "chain": (load_recipe, CHAIN),
    "study": (load_recipe, STUDY),
}
"""What reads each, and a file that is right."""


def answered(case: str) -> str:
    """Return the line that a file is refused with; it is written in the current folder."""
    kind, *texts = json.loads(case)
    load, right = KINDS[kind]
    text = texts[0] if len(texts) == 1 else right
    for old, new in zip(texts[::2], texts[1::2], strict=False):
        assert old in right, case
        text = text.replace(old, new, 1)
    file = Path(f"{kind}.toml")
    file.write_text(right)
    load(str(file))
    file.write_text(text)
    with pytest.raises(DataError) as raised:
        load(str(file))
    assert "\n" not in str(raised.value)
    return str(raised.value).replace(str(Path.cwd()), ".")


def snapshot() -> str:
    """Return every case of the snapshot with its answer."""
    cases = [line for line in SNAPSHOT.read_text().splitlines() if line.startswith("[")]
    return "".join(f"{case}\n  {answered(case)}\n" for case in cases)


if __name__ == "__main__":
    with TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        SNAPSHOT.write_text(snapshot())
