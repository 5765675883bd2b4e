import functools
import json
import random
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

from tests.models import save_tiny


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def table(self) -> list[str]:
        """The head and the rows of the table of a result: what comes after the answer."""
        return self.out.split("\n\n")[1].splitlines()

    @property
    def commands(self) -> list[list[str]]:
        """The words of the commands that come next."""
        lines = self.out.replace(" \\\n", " ").splitlines()
        return [
            shlex.split(line)[1:] for line in re.findall(r"^\S.*?    (layerprobe .*)", "\n".join(lines), re.MULTILINE)
        ]

    @property
    def error(self) -> str:
        """The one error line; anything beside it on stderr is a failure of the test."""
        lines = [line for line in self.err.splitlines() if not line.startswith(("note: ", "info: ", "warning: "))]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        return lines[0]


Layerprobe = Callable[..., Outcome]
Pair = tuple[Path, Path]


def call(cache: str | Path, *arguments: str | Path) -> Outcome:
    """Run a command in this process."""
    environment, words = {"LAYERPROBE_CACHE": str(cache), "COLUMNS": "200"}, [str(argument) for argument in arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["layerprobe", *words])
        result = CliRunner().invoke(app, words, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def layerprobe(tmp_path: Path) -> Layerprobe:
    """The command line in this process, with a cache of its own."""
    return functools.partial(call, tmp_path / "cache")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two tiny encoders of one depth: a model and its reference."""
    folder = tmp_path_factory.mktemp("pair")
    paths = []
    for name in ("electra", "bert"):
        path = folder / name
        save_tiny(name, path, seed=len(name))
        paths.append(path)
    return paths[0], paths[1]


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty scored sentence pairs without a header: the more letters they share, the higher the score."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    lines = []
    for _ in range(60):
        first = rng.choices("abcdefgh", k=6)
        second = [letter if rng.random() < 0.5 else rng.choice("abcdefgh") for letter in first]
        shared = sum(x == y for x, y in zip(first, second, strict=True))
        lines.append(f"{' '.join(first)},{' '.join(second)},{5 * shared / 6:.1f}")
    path.write_text("\n".join(lines) + "\n")
    return path


QUICK = ("--epochs", "1", "--seeds", "2", "--learning-rate", "1e-3")


@pytest.fixture(scope="session")
def found(pair: Pair, pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """What `find` says of the pair, and the folder with its page and JSON: read it, do not change it."""
    folder = tmp_path_factory.mktemp("found")
    settings = (*QUICK, "--against-last", "2", "--final")
    command = ("find", pair[0], "-r", pair[1], "-t", pairs_file, *settings, "--report", folder / "report.html")
    done = call(folder / "cache", *command)
    assert done.code == 0, done.err
    (folder / "finding.json").write_text(call(folder / "cache", *command, "--json").out)
    return done, folder
