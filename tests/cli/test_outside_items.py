"""A kind with items, files, scoring and loss of its own, installed as another package, through the command line.

The package is `tests/outside/toy_choice`; nothing of layerprobe knows it.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from .conftest import QUICK, Pair

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


COMMANDS = """
import json, sys
from layerprobe_cli.main import app
from typer.testing import CliRunner
for call in json.load(sys.stdin):
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.stderr
    print(json.dumps(done.stdout))
"""
"""Commands in one process where the package is installed: imports take longer than models so small."""


@pytest.mark.slow
def test_every_command_takes_it(questions: Path, environment: dict[str, str], pair: Pair, tmp_path: Path) -> None:
    def layerprobe(*calls: Sequence[str | Path]) -> list[str]:
        given = json.dumps([[str(argument) for argument in call] for call in calls])
        command = [sys.executable, "-c", COMMANDS]
        done = subprocess.run(
            command, input=given, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    of = (pair[1], "-t", questions)
    scored, tuned, finding = layerprobe(
        ("score", *of, "--json"),
        ("finetune", *of, *QUICK, "--layers", "1,-1", "--json"),
        ("find", *of, *QUICK, "--jobs", "1", "--save-models", "--report", tmp_path / "found.html", "--json"),
    )
    scores = json.loads(scored)["scores"]["metrics"]["accuracy"]
    assert (json.loads(scored)["kind"], len(scores)) == ("multiple choice", 4)
    assert max(scores) > 70, "letters in common should be seen without training: chance is 33"
    assert {run["run"]["primary"] for run in json.loads(finding)["runs"]} == {"accuracy"}
    outcome = json.loads(tuned)["outcomes"][0]
    assert (outcome["primary"], outcome["error"]["unit"]) == ("accuracy", "question")

    assert "(multiple choice, sha256" in (tmp_path / "found.html").read_text()
    layerprobe(("export", json.loads(finding)["weights"]["directory"], tmp_path / "exported"))
    assert SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(["a b c"]).shape == (1, 16)
