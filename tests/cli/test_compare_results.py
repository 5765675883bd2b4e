"""`compare A.json B.json`: two results that commands printed with --json."""

from pathlib import Path

import pytest

from .conftest import QUICK, Layerprobe, Pair


@pytest.mark.parametrize("command", ["score", "probe", "finetune"])
def test_two_results_are_compared_by_layer(
    command: str, layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    files = []
    for name, model in zip(("before", "after"), pair, strict=True):
        settings = ("--layers", "1,3", *QUICK) if command == "finetune" else ()
        done = layerprobe(command, model, "-t", pairs_file, *settings, "--json")
        assert done.code == 0, done.err
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(done.out)
    compared = layerprobe("compare", *files, "--report", tmp_path / "page.html")
    assert compared.code == 0, compared.err
    assert compared.out.startswith("No layer differs significantly  (not decided at 95 %, all layers together)\n")
    assert "  layer  before  after  difference" in compared.out.replace("\n", "  ")
    assert "after minus before" in compared.out
    assert "both results have the same pairs" in compared.err
    compared = layerprobe("compare", *files, "--json").json
    assert all(error["n_items"] == compared["n_items"] for error in compared["errors"])
    n_seeds = {"score": 1, "probe": 1, "finetune": 2}[command]
    assert {error.get("n_seeds", 1) for error in compared["errors"]} == {n_seeds}
    assert "Differences by layer" in (tmp_path / "page.html").read_text()
