"""layerprobe finetune of several models: one table, JSON and a page; what fails is named, marked, and tried again."""

from pathlib import Path

from layerprobe.files.atomic import write_kept
from layerprobe.versions import versions

from .conftest import Layerprobe, Pair

QUICK = ("--layers", "0,3", "--seeds", "2", "--epochs", "1", "--learning-rate", "1e-3")


def test_several_models(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    command = ("finetune", *pair, "-t", pairs_file, *QUICK)
    report = tmp_path / "out" / "tuned.html"
    done = layerprobe(*command, "--report", report)
    assert done.code == 0, done.err
    rows = [words[:2] for line in done.out.splitlines() if (words := line.split())[1:2] and words[1] in ("0", "3")]
    assert rows == [["electra", "0"], ["electra", "3"], ["bert", "0"], ["bert", "3"]]
    assert f"Why: {report}" in done.out
    told = layerprobe(*command, "--json").json
    assert len(told["runs"]) == 8
    alone = layerprobe("finetune", pair[0], "-t", pairs_file, *QUICK, "--json").json
    assert alone["runs"] == told["runs"][:4]
    assert alone["outcomes"] == told["outcomes"][:2]

    lost = Path(told["runs"][3]["directory"])
    (lost / "result.json").unlink()
    write_kept(lost / "failed.json", {**versions(), "message": "the loss became nan"}, root=lost.parents[1])
    failed = layerprobe(*command)
    assert failed.code == 1
    assert "1 run of 8 failed: try again with --retry-failed" in failed.out
    assert "layer 3, seed 1: the loss became nan (this run failed before" in failed.err
    assert failed.err.count("error: ") == 0
    assert layerprobe(*command, "--retry-failed").code == 0
