"""The table of predictors on the command line."""

from pathlib import Path

import pytest

from layerprobe.lab.dropbench import strategies
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.zoo import read_kept_out, write_zoo
from tests.lab.dropbench.zoos import DROPPING, RISING, known_zoo, recorded, zoo
from tests.shown import assert_shows_itself

from .conftest import Layerprobe


@pytest.fixture
def zoo_file(tmp_path: Path) -> Path:
    write_zoo(known_zoo(), tmp_path / "zoo.json")
    return tmp_path / "zoo.json"


def test_the_table_has_a_row_a_strategy(layerprobe: Layerprobe, zoo_file: Path, tmp_path: Path) -> None:
    made = [recorded(f"m{k}", "ab"[k], (DROPPING, RISING)[k], seed=k, cka=RISING) for k in range(2)]
    write_zoo(zoo(*made), zoo_file)
    out = layerprobe("lab", "bench", zoo_file, "--report", tmp_path / "bench.html").out
    lines = out.splitlines()
    (found,) = (line for line in lines if line.startswith("find, 15% "))
    assert found.split()[2:4] == ["training", "2"]
    assert found.endswith("layerprobe.search")
    assert any(line.startswith("last layer") and line.endswith("control: looks at no model") for line in lines)
    assert any(line.startswith("sweep, 3 seeds ") and "  yes  " in line for line in lines), (
        "expected a mark at seen seeds"
    )
    assert "fall of CKA, twin" in out
    assert "more rules with --all" in out
    assert "How each rule calls drops" not in out
    assert sum(line.startswith("scan, falling") for line in lines) == 1
    page = (tmp_path / "bench.html").read_text()
    assert "Regret versus cost of each strategy, budget converged" in page
    assert "find, 15\u00a0%" in page


def test_all_rules_are_printed_when_asked_for(layerprobe: Layerprobe, zoo_file: Path) -> None:
    out = layerprobe("lab", "bench", zoo_file, "--all").out
    assert "3 of 6 models drop; families: a, b, c, d; intervals redraw families" in out
    *_, row = (line for line in out.splitlines() if line.startswith("plateau of CKA, twin"))
    assert row.split()[4:6] == ["0", "0"]
    assert "  0.67  " in row


def test_json_is_the_bench(layerprobe: Layerprobe, zoo_file: Path) -> None:
    done = layerprobe("lab", "bench", zoo_file, "--json", "--budget", "gentle", "--level", "0.8")
    assert done.json["level"] == 0.8
    assert [(each["budget"], each["clusters"]) for each in done.json["budgets"]] == [("gentle", "families")]
    assert done.json["budgets"][0]["truths"]["a0"]["onset"] == 5


def test_tuned_rules_on_models_of_ones_own(layerprobe: Layerprobe, zoo_file: Path) -> None:
    """What `predict` says is scored; the models of the test have no effective rank, so the rule calls nothing."""
    out = layerprobe("lab", "bench", zoo_file, "--tuned", "--all").out
    *_, row = (line for line in out.splitlines() if line.startswith("last layer"))
    assert "The rules were tuned on the zoos that come with layerprobe." in out
    assert "tuned on the other families" not in out
    assert row.split()[2:4] == ["0", "0"]
    assert "fall of effective rank" in out


@pytest.mark.slow
def test_encoders_that_rules_were_tuned_on_can_be_left_out(
    layerprobe: Layerprobe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "expected --searched with --unseen" in layerprobe("lab", "bench", "--unseen").err
    monkeypatch.setattr(strategies, "training_strategies", list)  # which take minutes
    all_of_them, unseen = (
        layerprobe("lab", "bench", "--searched", *more, "--budget", "converged").out for more in ((), ("--unseen",))
    )
    said = "20 of these encoders are there, too, fine-tuned on other pairs: --unseen leaves them out."
    assert said in all_of_them
    assert "32 of 40 models drop" in all_of_them
    assert "18 of 20 models drop; families: mlm, rtd; intervals redraw models" in unseen
    assert "--unseen" not in unseen
    for row, regret in (("last layer ", "7.07"), ("fall of InfoNCE ", "1.37")):  # as the README says
        (line,) = (line for line in unseen.splitlines() if line.startswith(row) and " 20 " in line)
        assert f" {regret} " in line


def test_tuned_rules_on_the_models_that_were_kept_out(layerprobe: Layerprobe) -> None:
    budgets = layerprobe("lab", "bench", "--tuned", "--json").json["budgets"]
    assert {name for budget in budgets for name in budget["truths"]} == {e.name for e in read_kept_out().entries}


@pytest.mark.slow
def test_the_table_shows_itself(tmp_path: Path) -> None:
    made = [recorded(f"m{k}", "ab"[k], (DROPPING, RISING)[k], seed=k, cka=RISING) for k in range(2)]
    assert_shows_itself(bench_predictors(zoo(*made)), tmp_path)
