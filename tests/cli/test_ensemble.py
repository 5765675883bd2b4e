"""layerprobe lab ensemble: by the directories that finetune names, with `--scan` and without."""

import shutil
from pathlib import Path

from .conftest import QUICK, Layerprobe, Pair


def folder_of(err: str) -> Path:
    """What a command said of where its runs are."""
    (line,) = (line for line in err.splitlines() if line.startswith("note: the runs are in "))
    return Path(line.removeprefix("note: the runs are in "))


def test_layers_of_a_scan(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    scanned = layerprobe("finetune", "--scan", pair[0], "-t", pairs_file, *QUICK)
    assert scanned.code == 0, scanned.err
    runs = sorted(folder_of(scanned.err).glob("falling-seed-*"))
    page = tmp_path / "ensemble.html"
    done = layerprobe("lab", "ensemble", *runs, "--layers", "1,3", "--report", page)
    assert done.code == 0, done.err
    header, _, first, second, average, *_ = done.table
    assert header.split()[:2] == ["what", "model"]
    assert [line.split()[0] for line in (first, second, average)] == ["layer", "layer", "average"]
    assert "What was averaged" in page.read_text()
    result = layerprobe("lab", "ensemble", *runs, "--json", "--profile", "--device", "cpu").json
    assert result["choice"] == "pair"
    assert result["cost"]["seconds"] > 0
    assert result["gain"]["n_seeds"] == 2


def test_runs_by_themselves_and_what_does_not_fit(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    tuned = layerprobe("finetune", pair[0], "-t", pairs_file, "--layers", "1,2", *QUICK)
    folder = folder_of(tuned.err)
    done = layerprobe("lab", "ensemble", folder, "-t", pairs_file)
    assert done.code == 0, done.err
    refused = layerprobe("lab", "ensemble", folder, "-t", pairs_file, "--split-seed", "1")
    assert (refused.code, "give --task with the options that the runs were made with" in refused.error) == (1, True)
    assert "expected the directory of a finished run" in layerprobe("lab", "ensemble", tmp_path / "none").error
    copied = tmp_path / "copied" / folder.name / "layer-001-seed-0"
    shutil.copytree(folder / "layer-001-seed-0", copied)
    assert "origin.json" in layerprobe("lab", "ensemble", copied).error
    (folder / "layer-001-seed-0" / "outputs.safetensors").unlink()
    assert layerprobe("lab", "ensemble", folder).code == 1
