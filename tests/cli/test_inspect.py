"""layerprobe compare, probe and profile: tables, JSON, reports."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.results.shown import load
from layerprobe.scoring.score import score
from layerprobe.tasks.loading import load_task
from tests.cli.conftest import QUICK, Layerprobe, Outcome, Pair
from tests.probing.data import layered, scores_of
from tests.report.test_page import Page


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
    cka, knn = (from_json(Comparisons, json.dumps(comparison)).comparisons[0].map for comparison in done.json)
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


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    embeddings, signal = layered(120)
    np.save(tmp_path / "e.npy", embeddings)
    rows = (f"{value:.4f},f{i // 4}" for i, value in enumerate(scores_of(signal)))
    (tmp_path / "t.csv").write_text("\n".join(["stability,family", *rows]) + "\n")
    return tmp_path / "e.npy", tmp_path / "t.csv"


def test_arrays_in_layer_out(layerprobe: Layerprobe, files: tuple[Path, Path], tmp_path: Path) -> None:
    embeddings, table = files
    page = tmp_path / "page.html"
    how = ("--target", "stability", "--groups", f"{table}:family")
    done = layerprobe("probe", embeddings, table, *how, "--report", page)
    assert done.code == 0, done.err
    assert "Spearman x 100" in done.out
    assert "120 items" in done.out
    few = ("--foldings", "1", "--folds", "4", "--no-weighted-sum", "--tolerance", "90")
    probing = layerprobe("probe", embeddings, table, *how, *few, "--json").json
    assert [row["layer"] for row in probing["layers"]] == list(range(6))
    assert probing["summed"] is None
    assert probing["settings"]["folds"] == 4
    assert set(probing["candidates"]) & {2, 3, 4}


def test_a_model_scores_what_score_does(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("probe", pair[0], "-t", pairs_file, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    scored = score(str(pair[0]), load_task(pairs_file))
    ours = [row["metrics"]["spearman"] for row in done.json["layers"]]
    assert ours == pytest.approx(scored.scores)
    assert done.json["model"]["n_blocks"] == len(ours) - 1
    assert "to test" not in done.out


FEW = ("--rounds", "1", "--repeats", "2", "--warmup", "0", "--lengths", "4,8", "--batch-sizes", "1,2")


@pytest.fixture
def finding(found: tuple[Outcome, Path]) -> Path:
    return found[1] / "finding.json"


def test_a_row_a_shape_and_layer(layerprobe: Layerprobe, pair: Pair) -> None:
    done = layerprobe("profile", pair[0], *FEW, "--layers", "1,3")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.table[1:3]] == ["1", "3"]
    assert "2 of 8 rows" in done.out
    wide = layerprobe("profile", pair[0], *FEW, "--layers", "1,3", "--wide").table
    head, _, *rows = (re.split(r" {2,}", line.strip()) for line in wide)
    assert head[:4] == ["layer", "parameters", "tokens", "batch"]
    shapes = [("4", "1"), ("4", "2"), ("8", "1"), ("8", "2")]
    assert [(row[0], *row[2:4]) for row in rows[:8]] == [(layer, *shape) for shape in shapes for layer in ("1", "3")]


def test_json_reads_back(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    printed = tmp_path / "profiles.json"
    printed.write_text(layerprobe("profile", *pair, *FEW, "--json").out, encoding="utf-8")
    profiles = load(printed).profiles
    assert [profile.model.architecture for profile in profiles] == ["electra", "bert"]
    assert [[layer.layer for layer in profile.layers] for profile in profiles] == [[0, 1, 2, 3]] * 2


@pytest.mark.slow
def test_scores_of_a_finding_stand_beside_the_cost(
    layerprobe: Layerprobe, pair: Pair, finding: Path, tmp_path: Path
) -> None:
    report = tmp_path / "new" / "cost.html"
    done = layerprobe("profile", pair[0], *FEW, "--finding", finding, "--report", report)
    assert done.code == 0, done.err
    assert f"Why: {report}" in done.out
    assert "TMFT" in report.read_text()


def test_a_finding_of_another_model_is_refused_before_anything_is_measured(
    layerprobe: Layerprobe, pair: Pair, finding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", None)
    outcome = layerprobe("profile", pair[0], "--random-init", "3", *FEW, "--finding", finding)
    assert outcome.code == 1
    assert "expected a finding for the profiled model" in outcome.error
    outcome = layerprobe("profile", pair[1], *FEW, "--finding", finding)
    assert "expected a finding for the profiled model" in outcome.error
