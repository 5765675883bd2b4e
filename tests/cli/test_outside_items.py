"""A kind with items, files, scoring and loss of its own, installed as another package, through the command line.

The package is `tests/outside/toy_choice`; nothing of layerprobe knows it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from .conftest import QUICK

OUTSIDE = Path(__file__).parents[1] / "outside"
LETTERS = "abcdefghijklmnop"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """A hundred questions of four letters; the right one of three answers has three of them."""
    rng, lines = random.Random(0), []
    for _ in range(100):
        letters = rng.sample(LETTERS, 4)
        answers = [" ".join(rng.sample([a for a in LETTERS if a not in letters], 3)) for _ in range(2)]
        answers.insert(rng.randrange(3), f"*{' '.join(rng.sample(letters, 3))}")
        lines.append("|".join([" ".join(letters), *answers]))
    path = tmp_path / "quiz.choices"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a process where the package is installed."""
    installed = tmp_path / "site" / "toy_choice-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_choice\nVersion: 1.0\n")
    entry_point = "[layerprobe.kinds]\nmultiple choice = toy_choice.kind:MULTIPLE_CHOICE\n"
    (installed / "entry_points.txt").write_text(entry_point)
    path = os.pathsep.join([str(OUTSIDE), str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "LAYERPROBE_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}


def test_every_command_takes_it(
    questions: Path, environment: dict[str, str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    def layerprobe(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "layerprobe_cli.main", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    task = ("-t", questions)
    scored = json.loads(layerprobe("score", pair[1], *task, "--json"))
    scores = scored["scores"]["metrics"]["accuracy"]
    assert (scored["kind"], len(scores)) == ("multiple choice", 4)
    assert max(scores) > 70, "letters in common should be seen without training: chance is 33"

    found = json.loads(layerprobe("find", pair[1], *task, *QUICK, "--budget", "60%", "--json"))
    assert {run["run"]["primary"] for run in found["runs"]} == {"accuracy"}
    confirmed = json.loads(layerprobe("confirm", pair[1], *task, *QUICK, "--json"))["confirmation"]
    assert (confirmed["primary"], confirmed["error"]["unit"]) == ("accuracy", "question")

    layerprobe("run", pair[1], *task, *QUICK, "--save-models", "-o", tmp_path / "study")
    page = (tmp_path / "study" / "report.html").read_text()
    assert "(multiple choice, sha256" in page
    finding = json.loads((tmp_path / "study" / "study.json").read_text())["finding"]
    layerprobe("export", finding["weights"]["directory"], tmp_path / "exported")
    assert SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(["a b c"]).shape == (1, 16)


def test_a_defect_of_its_file_is_one_line(
    questions: Path, environment: dict[str, str], pair: tuple[Path, Path]
) -> None:
    questions.write_text("a b c d|a b c|e f g\n")
    command = [sys.executable, "-m", "layerprobe_cli.main", "score", str(pair[1]), "-t", str(questions)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {questions}, line 1: expected one answer marked by *, got ['a b c', 'e f g']"
    ]
