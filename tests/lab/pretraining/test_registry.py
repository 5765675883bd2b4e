"""Objectives are rows: those that come with layerprobe, and one of another package through the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.lab.pretraining.values import OBJECTIVES
from tests.plugins import install
from tests.sources import ROOT, naming

ROWS = "layerprobe/lab/pretraining/values.py"
# the twin of every other objective and a study of both, the shipped pair and the demo of it
MAY_NAME = {
    "layerprobe/lab/pretraining/masking.py": {"mlm"},
    "layerprobe/lab/dropbench/zoo.py": {"mlm"},
    "layerprobe/finetuning/values.py": {"random"},  # a weighting of layers
    "layerprobe/lab/dropbench/bench.py": {"random"},  # weights that nothing was trained for
    "layerprobe/lab/dropbench/strategies.py": {"random"},
    "cli/layerprobe_cli/commands/produce.py": {"random"},
    "layerprobe/embedded.py": {"mlm", "rtd"},
    "cli/layerprobe_cli/commands/lab.py": {"mlm"},
    "cli/layerprobe_cli/commands/choose.py": {"mlm", "rtd"},
}
SHUFFLED = """
import dataclasses

from layerprobe.lab.pretraining.models import with_token_head
from layerprobe.lab.pretraining.values import PretrainingObjective
from layerprobe.lab.pretraining.masking import MaskedLanguageModelling

class Shuffled(MaskedLanguageModelling):
    def forward(self, batch, rng):
        return super().forward(dataclasses.replace(batch, input_ids=batch.input_ids.roll(1, dims=1)), rng)

def build(encoder, protocol, masking):
    return Shuffled(with_token_head(encoder), masking)

SHUFFLED = PretrainingObjective(about="trained to fill in masked tokens of moved texts", builder="toy_plugin:build")
"""


@pytest.fixture
def shuffled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An objective of another package."""
    folder = tmp_path / "packages"
    folder.mkdir()
    install(monkeypatch, folder, OBJECTIVES, SHUFFLED, {"shuffled": "SHUFFLED"})
    yield
    monkeypatch.undo()
    OBJECTIVES.reload()


def layerprobe(folder: Path, *arguments: str) -> str:
    """Run the command in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "layerprobe_cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "LAYERPROBE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_else_names_an_objective() -> None:
    for path, names in naming(OBJECTIVES).items():
        if path == ROWS:
            text = (ROOT / path).read_text("utf-8")
            once = [name for name in OBJECTIVES if text.count(f'"{name}"') == 1]
            assert set(OBJECTIVES) - set(once) == {"mlm"}, "expected a row each, and one default"
        elif path != "layerprobe/lab/pretraining/models.py":
            assert names <= MAY_NAME.get(path, set()), path


@pytest.mark.slow
def test_an_objective_of_another_package(shuffled: None, tmp_path: Path) -> None:
    assert "all-tokens-mlm, random, shuffled" in layerprobe(tmp_path, "lab", "pretrain", "--help")
    shape = ("--blocks", "2", "--hidden-size", "8", "--heads", "2", "--steps", "2", "--batch-size", "8")
    arguments = ("--corpus", "language", *shape, "--device", "cpu", "--json")
    losses = {}
    for name in ("mlm", "shuffled"):
        result = json.loads(layerprobe(tmp_path, "lab", "pretrain", name, "--objective", name, *arguments))
        assert result["protocol"]["objective"] == name
        losses[name] = result["metrics"][0]["held_out"]["mlm_loss"]
    assert losses["mlm"] != losses["shuffled"]
    card = (tmp_path / "shuffled" / "README.md").read_text()
    assert "It was trained to fill in masked tokens of moved texts." in card
    assert not (tmp_path / "shuffled" / "generator").exists()
