"""`layerprobe lab pretrain` and `lab adapt` as commands."""

import gzip
import json
from pathlib import Path
from typing import Any

from layerprobe.files.serialisation import unsealed
from tests.cli.conftest import Layerprobe
from tests.lab.pretraining.jobs import TEXTS

QUICK = ("--batch-size", "4", "--learning-rate", "1e-2", "--device", "cpu")
PRETRAIN = ("--vocab-size", "60", "--blocks", "2", "--hidden-size", "16", "--heads", "2", "--generator-size", "0.5")
ADAPT = ("--max-steps", "4", "--accumulation", "2")


def trained(layerprobe: Layerprobe, out: Path, record: str, *arguments: Any) -> tuple[list[str], str]:
    """Train, compare what is printed with the record, and return the lines on both streams."""
    done = layerprobe("lab", *arguments, *QUICK, "--evaluate-every", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("Loss falls from ")
    assert [line.split()[0] for line in lines if line.startswith("   ")] == ["0", "2", "4"]
    assert f"Folder: {out}" in lines
    again = layerprobe("lab", *arguments, *QUICK, "--json", "--quiet")
    printed = {name: value for name, value in again.json.items() if name != "conclusion"}
    assert printed == unsealed(json.loads((out / record).read_text()))[0]
    return lines, done.err


def test_the_folders_are_models_of_every_other_command(layerprobe: Layerprobe, folder: Path, tmp_path: Path) -> None:
    texts, packed = tmp_path / "texts.txt", tmp_path / "texts.txt.gz"
    texts.write_text("\n".join(TEXTS))
    packed.write_bytes(gzip.compress(texts.read_bytes()))
    for name in ("rtd", "mlm"):
        of_name = ("pretrain", tmp_path / name, "--objective", name, "--corpus", texts, "--steps", "4", *PRETRAIN)
        lines, _ = trained(layerprobe, tmp_path / name, "pretraining.json", *of_name)
        assert (f"Generator: {tmp_path / name / 'generator'}" in lines) == (name == "rtd")
    out = tmp_path / "adapted"
    _, errors = trained(layerprobe, out, "adaptation.json", "adapt", folder, "--texts", packed, "--out", out, *ADAPT)
    assert "warning: the checkpoint lacks 6 weights of the head" in errors
    for first, second, layer in ((tmp_path / "rtd", tmp_path / "mlm", 2), (folder, out, 3)):
        (found,) = layerprobe("compare", first, second, "--texts", texts, "--json").json["comparisons"]
        assert len(found["curve"]["values"]) == layer + 1
        assert found["curve"]["values"][layer] < 0.9999


def test_presets_and_overrides(layerprobe: Layerprobe, tmp_path: Path) -> None:
    few = ("--corpus", "language", "--steps", "1", "--batch-size", "8", "--held-out", "8", "--json")
    small = layerprobe("lab", "pretrain", tmp_path / "small", *few, "--size", "small").json["protocol"]["size"]
    assert small == {"n_blocks": 12, "hidden_size": 256, "heads": 4, "intermediate_size": 1024}
    narrow = layerprobe("lab", "pretrain", tmp_path / "out", *few, "--size", "mini", "--hidden-size", "64").json
    assert narrow["protocol"]["size"] == {"n_blocks": 8, "hidden_size": 64, "heads": 4, "intermediate_size": 256}
