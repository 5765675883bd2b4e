"""What an earlier version left on disk is read by the same names, and no work is repeated."""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

from layerprobe.study.values import read_study

ARCHIVES = Path(__file__).parent / "archives"
QUICK = ("--epochs", "1", "--seeds", "2", "--learning-rate", "1e-3")
TASK = ("electra", "-t", "pairs.csv")
COMMANDS = {
    "predict": ("predict", *TASK, "-r", "bert"),
    "score": ("score", *TASK, "--split", "test"),
    "finetune": ("finetune", *TASK, "--layers", "1", "--save-models", *QUICK),
    "scan": ("finetune", "--scan", *TASK, *QUICK, "--seeds", "1"),
    "find": ("find", *TASK, "--budget", "30%", "--against-last", "1", *QUICK),
    "sweep": ("lab", "sweep", "sweep.toml"),
    "lab": ("lab", "study", "lab.toml", "--out", "lab"),
}
MADE = ("cache/runs/*/*/result.json", "cache/embeddings/*/*", "lab/models/*/*.safetensors")
VOLATILE = re.compile(r"seconds|created|per_second|versions|memory")


@pytest.fixture(scope="module", params=["0.2.0"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(ARCHIVES / f"{request.param}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / str(request.param)


@pytest.mark.parametrize("name", COMMANDS)
def test_its_commands_say_the_same_and_make_nothing_anew(
    left: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(left)
    monkeypatch.chdir(left)
    done = CliRunner().invoke(app, [*COMMANDS[name], "--json"], env={"LAYERPROBE_CACHE": "cache"})
    assert done.exit_code == 0, done.stderr
    expected = json.loads((left / "expected" / f"{name}.json").read_text())
    assert_contains(json.loads(done.stdout), expected, name)
    assert made(left) == before


def test_its_study_is_read(left: Path) -> None:
    study = read_study(left / "study" / "study.json")
    assert study.finding is not None
    assert len(study.table) == study.comparison.model.n_layers


def made(folder: Path) -> dict[str, int]:
    """Return every file that was worked for, with the time when it was written."""
    files = [file for pattern in MADE for file in folder.glob(pattern)]
    assert len(files) > 20
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


WORDS = {"sentence", "command"}
"""Keys of what is said, whose wording may change."""
CHANGED = re.compile(
    r"InfoNCE"  # 512 texts compete, whatever their number
    r"|^(finetune|scan|sweep|find).*(interval|error)"  # inside the metric's bounds; equal outputs have an error
    r"|^finetune.*directory"  # absolute, also where the store is named from here
    r"|provenance\.layerprobe$"  # which wrote it
    r"|^find\.(answer|runs|outcomes|against_last|proof_cost|weights)"  # runs decide what a search says
)
"""Places of what is computed otherwise since then."""


def assert_contains(value: Any, expected: Any, place: str) -> None:
    """All that was printed is printed; further keys may have come."""
    if CHANGED.search(place):
        return
    if isinstance(expected, dict):
        for key, part in expected.items():
            if not VOLATILE.search(key) and key not in WORDS:
                assert key in value, f"{place}.{key} is missing"
                assert_contains(value[key], part, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), place
        for number, (one, other) in enumerate(zip(value, expected, strict=True)):
            assert_contains(one, other, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9), place
    else:
        assert value == expected, place
