"""A kind of task with a metric of its own from another package, through the commands that take tasks."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.kinds import KINDS as OWN
from tests.toy_kind import toy_kind

from .conftest import QUICK, Layerprobe, Pair


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with toy_kind(monkeypatch, tmp_path):
        yield


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    """Texts of letters with a number each: the share of the letter a."""
    rng, lines = random.Random(0), ["text,grade"]
    for number in range(80):
        letters = rng.choices("abc", k=6)
        lines.append(f"{' '.join(letters)} {'de'[number % 2]},{letters.count('a') / 6:.1f}")
    path = tmp_path / "graded.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def in_a_process(folder: Path, *arguments: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "layerprobe_cli.main", *map(str, arguments)],
        env={**os.environ, "LAYERPROBE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.slow
def test_a_process_knows_it(toy: None, pair: Pair, graded: Path, tmp_path: Path) -> None:
    refused = in_a_process(tmp_path, "score", pair[1], "-t", graded, "--kind", "nonsense", code=2)
    assert all(name in refused for name in (*OWN, "grading"))
    table = in_a_process(tmp_path, "score", pair[1], "-t", graded, "--kind", "grading")
    assert "Pearson" in table
    assert "toy fit" in table


def test_every_command_takes_it(toy: None, layerprobe: Layerprobe, pair: Pair, graded: Path, tmp_path: Path) -> None:
    scored = layerprobe("score", pair[1], "-t", graded, "--json")
    assert scored.code == 0, scored.err
    scores = scored.json["scores"]
    assert (scored.json["kind"], scores["method"], scores["primary"]) == ("grading", "probe", "pearson")
    assert max(scores["metrics"]["pearson"]) > 80
    tuned = layerprobe("finetune", pair[1], "-t", graded, *QUICK, "--layers", "1", "--json").json
    assert tuple(tuned["runs"][0]["test"]) == ("pearson", "fit")
    confirmed = layerprobe("confirm", pair[1], "-t", graded, *QUICK, "--json").json["confirmation"]
    assert confirmed["primary"] == "pearson"
    assert "Pearson x 100" in confirmed["sentence"]
    done = layerprobe("find", pair[1], "-t", graded, *QUICK, "--budget", "40%", "--report", tmp_path / "found.html")
    assert done.code == 0, done.err
    assert "(grading, sha256" in (tmp_path / "found.html").read_text()
