"""The demo as a new user runs it. Takes minutes: a few scans, and fine-tuning where it decides."""

from pathlib import Path

import pytest

from layerprobe.files.serialisation import from_json
from layerprobe.results import words
from layerprobe.study.values import Finding
from layerprobe.tasks.loading import load_task

from .conftest import Layerprobe


def test_the_files_of_the_demo_serve_other_commands(layerprobe: Layerprobe, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    assert layerprobe("demo", "--files", folder, "--json").json["rtd"] == str(folder / "rtd")
    done = layerprobe("predict", folder / "rtd", "--texts", folder / "texts.txt", "--json").json["drops"][0]
    assert done["drop_layers"] == [2, 3, 4, 5, 6, 7, 8]
    task = load_task(str(folder / "pairs.csv"))
    assert (task.kind, task.score_range) == ("sts", (0.0, 5.0))
    assert sum(len(split.targets) for split in (task.train, task.validation, task.test)) == 3000


@pytest.mark.slow
def test_the_demo_finds_the_layer_to_keep(layerprobe: Layerprobe, tmp_path: Path) -> None:
    done = layerprobe("demo", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    finding = from_json(Finding, (tmp_path / "demo" / "finding.json").read_text())
    assert finding.prediction
    assert finding.prediction.drop_layers == (2, 3, 4, 5, 6, 7, 8)
    # rounding differs between processors, and training carries it on: a neighbour, and a point, not a digit
    assert finding.best_layer in (3, 4, 5)
    assert finding.answer.layers[finding.best_layer].mean == pytest.approx(71.5, abs=1.5)
    assert 8 not in finding.answer.candidates
    assert finding.answer.spent - finding.proof_cost <= 0.15 * finding.answer.full_sweep
    last = next(outcome for outcome in finding.outcomes if outcome.layer == 8)
    assert last.mean == pytest.approx(62.9, abs=2.0)
    lines = done.out.splitlines()
    assert len(lines) <= 26
    assert lines[0].startswith(words.headline(finding.conclusion))
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000_000
