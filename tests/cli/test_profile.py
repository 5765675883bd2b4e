"""`layerprobe profile`: table, JSON, report, and what it refuses."""

import re
from pathlib import Path

import pytest

from layerprobe.results.shown import load

from .conftest import Layerprobe, Outcome, Pair

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
