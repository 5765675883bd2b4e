from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layerprobe.reproduction import experiment, read_paper
from tests.cli.conftest import Layerprobe, layerprobe, pairs_file  # noqa: F401
from tests.models import save_tiny

ELECTRA = "google/electra-base-discriminator"


def figures() -> dict[str, Any]:
    file = Path(__file__).parents[3] / "shared" / "reference" / "paper_2402_13130.json"
    if not file.is_file():
        pytest.skip(f"the paper's figures are not at {file}")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_table_2_is_the_paper_s() -> None:
    rows = figures()["table_2_stsb"]["rows"]
    ours = [
        [
            score.model,
            score.layer,
            read_paper().model(score.model).millions(score.layer),
            *score.validation.values(),
            *score.test.values(),
        ]
        for score in experiment("table2").scores
    ]
    assert ours == [row[1:] for row in rows]


def test_mrpc_sick_and_the_best_layer_are_the_paper_s() -> None:
    others = figures()["other_figures"]
    names = ("mrpc", "sick", "figure2a")
    test = {(name, s.model, s.layer): dict(s.test) for name in names for s in experiment(name).scores}
    electra, generator = "google/electra-base-discriminator", "google/electra-base-generator"
    mrpc, sick = others["mrpc F1"], others["sick macro F1"]["ELECTRA generator base"]
    expected = {
        ("mrpc", electra, 9): {"f1": mrpc["ELECTRA discriminator base"]["layer 9"]},
        ("mrpc", electra, 12): {"f1": mrpc["ELECTRA discriminator base"]["last"]},
        ("mrpc", "microsoft/deberta-v3-base", 10): {"f1": mrpc["DeBERTaV3 base"]["layer 10"]},
        ("mrpc", "microsoft/deberta-v3-base", 12): {"f1": mrpc["DeBERTaV3 base"]["last"]},
        ("sick", generator, 11): {"macro f1": sick["layer 11"]},
        ("sick", generator, 12): {"macro f1": sick["last"]},
        ("figure2a", electra, 9): {"spearman": others["stsb ELECTRA discriminator best test layer"]["base"][1]},
    }
    assert {key: test[key] for key in expected} == expected


def test_dry_run_counts(layerprobe: Layerprobe) -> None:  # noqa: F811
    found = layerprobe("reproduce", "figure2a", "--dry-run", "--seeds", "3", "--json").json
    assert (found["runs"], found["steps_a_run"], found["steps"]) == (39, 1800, 39 * 1800)


def test_differences_are_ours_less_the_paper_s(layerprobe: Layerprobe, pairs_file: Path, tmp_path: Path) -> None:  # noqa: F811
    model = save_tiny("electra", tmp_path / "model", num_hidden_layers=12)
    arguments = ("reproduce", "table2", "-t", pairs_file, "--seeds", "2", "--models", f"{ELECTRA}={model}")
    done = layerprobe(*arguments, "--json").json
    assert [layer["layer"] for layer in done["layers"]] == [3, 12]
    for score in (score for layer in done["layers"] for score in layer["scores"]):
        assert score["difference"] == pytest.approx(score["mean"] - score["paper"])
    assert "82.15" in layerprobe(*arguments).out


def test_one_line_for_what_is_wrong(layerprobe: Layerprobe, pairs_file: Path, tmp_path: Path) -> None:  # noqa: F811
    model = save_tiny("electra", tmp_path / "model")
    assert "table2, figure2a, mrpc, sick, got 'x'" in layerprobe("reproduce", "x").error
    assert "got nobody/x" in layerprobe("reproduce", "table2", "--dry-run", "--models", "nobody/x").error
    outside = layerprobe("reproduce", "table2", "-t", pairs_file, "--models", f"{ELECTRA}={model}")
    assert "from 0 to 3" in outside.error
