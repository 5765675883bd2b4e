"""`layerprobe lab pretrain` as a command."""

import json
from pathlib import Path

import pytest

from layerprobe.files.serialisation import unsealed
from tests.cli.conftest import Layerprobe, layerprobe
from tests.lab.pretraining.jobs import TEXTS

__all__ = ["layerprobe"]

SMALL = ("--blocks", "2", "--hidden-size", "16", "--heads", "2", "--generator-size", "0.5")
QUICK = (*SMALL, "--steps", "4", "--batch-size", "8", "--learning-rate", "1e-2", "--device", "cpu")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


def test_the_folders_are_models_of_every_other_command(layerprobe: Layerprobe, texts: Path, tmp_path: Path) -> None:
    for name in ("rtd", "mlm"):
        arguments = (tmp_path / name, "--objective", name, "--corpus", texts, "--vocab-size", "60", *QUICK)
        done = layerprobe("lab", "pretrain", *arguments, "--evaluate-every", "2")
        assert done.code == 0, done.err
        lines = done.out.splitlines()
        assert lines[0].startswith("Loss falls from ")
        assert [line.split()[0] for line in lines if line.startswith("   ")] == ["0", "2", "4"]
        assert f"Folder: {tmp_path / name}" in lines
        assert (f"Generator: {tmp_path / name / 'generator'}" in lines) == (name == "rtd")
        again = layerprobe("lab", "pretrain", *arguments, "--json", "--quiet")
        record = {field: value for field, value in again.json.items() if field != "conclusion"}
        assert record == unsealed(json.loads((tmp_path / name / "pretraining.json").read_text()))[0]
        assert again.err == ""
    found = layerprobe("compare", tmp_path / "rtd", tmp_path / "mlm", "--texts", texts, "--json").json
    values = found["comparisons"][0]["curve"]["values"]
    assert len(values) == 3
    assert values[2] < values[0]


def test_presets_and_overrides(layerprobe: Layerprobe, tmp_path: Path) -> None:
    few = ("--corpus", "language", "--steps", "1", "--batch-size", "8", "--held-out", "8", "--json")
    small = layerprobe("lab", "pretrain", tmp_path / "small", *few, "--size", "small").json["protocol"]["size"]
    assert small == {"n_blocks": 12, "hidden_size": 256, "heads": 4, "intermediate_size": 1024}
    narrow = layerprobe("lab", "pretrain", tmp_path / "out", *few, "--size", "mini", "--hidden-size", "64").json
    assert narrow["protocol"]["size"] == {"n_blocks": 8, "hidden_size": 64, "heads": 4, "intermediate_size": 256}
