"""`layerprobe lab adapt` as a command."""

import gzip
import json
from pathlib import Path

import pytest

from layerprobe.files.serialisation import unsealed
from tests.cli.conftest import Layerprobe
from tests.lab.pretraining.jobs import TEXTS

QUICK = ("--max-steps", "4", "--batch-size", "4", "--accumulation", "2", "--learning-rate", "3e-3", "--device", "cpu")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    return path


def test_the_folder_is_a_model_of_every_other_command(
    layerprobe: Layerprobe, folder: Path, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "adapted"
    done = layerprobe("lab", "adapt", folder, "--texts", texts, "--out", out, *QUICK, "--evaluate-every", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("Loss falls from ")
    assert [line.split()[0] for line in lines if line.startswith("   ")] == ["0", "2", "4"]
    assert f"Folder: {out}" in lines
    assert "warning: the checkpoint lacks 6 weights of the head" in done.err
    again = layerprobe("lab", "adapt", folder, "--texts", texts, "--out", out, *QUICK, "--json")
    record = {name: value for name, value in again.json.items() if name != "conclusion"}
    assert record == unsealed(json.loads((out / "adaptation.json").read_text()))[0]
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(TEXTS))
    found = layerprobe("compare", folder, out, "--texts", plain, "--json").json["comparisons"][0]
    assert found["curve"]["values"][3] < 0.9999
