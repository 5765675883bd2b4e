"""`compare` by several measures, and of two results that commands printed with --json."""

import json
from pathlib import Path

import pandas as pd
import pytest

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import from_json, to_dict
from tests.report.test_page import Page

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


def test_an_option_goes_to_those_of_several_measures_that_have_it(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    page, rows = tmp_path / "compared.html", tmp_path / "map.parquet"
    several = ("--measure", "cka", "--measure", "mutual-knn", "--kernel", "rbf", "--neighbours", "3")
    done = layerprobe("compare", *pair, "-t", pairs_file, *several, "--json", "--report", page, "--parquet", rows)
    cka, knn = (from_json(Comparisons, json.dumps(each)).comparisons[0].map for each in done.json)
    assert to_dict(cka.measure)["kernel"] == "rbf"
    assert to_dict(knn.measure)["neighbours"] == 3
    assert set(pd.read_parquet(rows).measure) == {"cka", "mutual-knn"}
    read = Page(page.read_text())
    figures = json.loads(read.data("figures")).values()
    assert [figure["layout"]["yaxis"]["title"]["text"] for figure in figures] == [
        "Debiased RBF CKA with the reference",
        *("Layer of electra",) * 2,
        "Mutual kNN (k = 3) with the reference",
        "Layer of electra",
    ]
    output = layerprobe("compare", *pair, "-t", pairs_file, *several).out
    assert output.index("CKA") < output.index("mutual kNN")
