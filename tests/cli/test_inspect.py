"""layerprobe probe, of arrays and of a model, and layerprobe profile: tables, JSON, reports."""

import re
from pathlib import Path

import numpy as np
import pytest

from layerprobe.results.shown import load
from layerprobe.scoring.score import score
from layerprobe.tasks.loading import load_task
from tests.cli.conftest import Layerprobe, Outcome, Pair
from tests.probing.data import layered, scores_of


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
    found = layerprobe("probe", embeddings, table, *how, *few, "--json").json
    assert [each["layer"] for each in found["layers"]] == list(range(6))
    assert found["summed"] is None
    assert found["settings"]["folds"] == 4
    assert set(found["candidates"]) & {2, 3, 4}


def test_a_model_scores_what_score_does(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("probe", pair[0], "-t", pairs_file, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    scored = score(str(pair[0]), load_task(pairs_file))
    ours = [each["metrics"]["spearman"] for each in done.json["layers"]]
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
