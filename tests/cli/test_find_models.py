"""`layerprobe find` of several models: one answer, the same files, and what is wrong in one line."""

from pathlib import Path

import pytest

from layerprobe.files.serialisation import from_json
from layerprobe.results.terminal import spelled
from layerprobe.study.values import Finding

from .conftest import QUICK, Layerprobe, Pair


def test_it_names_model_and_layer_and_what_comes_next(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "found.html"
    command = ("find", *pair, "-t", pairs_file, "--name", "ours", *QUICK)
    done = layerprobe(*command, "--report", page)
    assert done.code == 0, done.err
    assert done.err.count("They share this budget") == 1
    result = from_json(Finding, layerprobe(*command, "--json").out)
    assert [each.model.name for each in result.models] == ["ours", str(pair[1])]
    lines = done.out.splitlines()
    assert lines[0].startswith(result.kept.split(":")[0])
    assert lines[0].endswith(spelled(f" {result.certainty}", None))
    assert lines[2].split()[:3] == ["model", "layer", "parameters"]
    n_rows = sum(each.model.n_layers for each in result.models)
    assert len([line for line in lines[4 : 4 + n_rows] if line.split()[0] in result.labels]) == n_rows
    assert spelled(result.spent, None) in lines
    (final,) = [line for line in lines if line.startswith("  layerprobe find ")]
    assert final.split()[2:4] == [str(folder) for folder in pair]
    assert final.endswith(" --final")
    assert "--name" in final
    text = page.read_text(encoding="utf-8")
    assert result.kept.split(":")[0].split(",")[0] in text
    assert "Expected score versus size" in text


@pytest.mark.slow
def test_the_runs_are_those_of_each_model_by_itself(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    both = from_json(Finding, layerprobe("find", *pair, "-t", pairs_file, *QUICK, "--json").out)
    alone = layerprobe("find", pair[0], "-t", pairs_file, *QUICK, "--json").json
    by_name = {(made["run"]["layer"], made["run"]["seed"]): made["run"] for made in alone["runs"]}
    shared = [made.run for made in both.models[0].runs if (made.run.layer, made.run.seed) in by_name]
    assert shared
    assert all(run.seconds == by_name[run.layer, run.seed]["seconds"] for run in shared), "expected no run made twice"
    entries = {path.parent.parent.name for path in (tmp_path / "cache" / "runs").glob("*/*/result.json")}
    assert len(entries) >= 2


def test_a_dry_run_says_the_cost_of_all(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("find", *pair, "-t", pairs_file, *QUICK, "--dry-run")
    assert done.code == 0, done.err
    assert done.out.count("takes at most about") == 2
    plans = layerprobe("find", *pair, "-t", pairs_file, *QUICK, "--dry-run", "--json").json["plans"]
    assert [plan["model"] for plan in plans] == [str(path) for path in pair]
