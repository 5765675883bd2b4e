"""The table of predictors on the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.lab.dropbench import strategies
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.results import Bench, Contestant, Statistic
from layerprobe.lab.dropbench.zoo import read_kept_out, write_zoo
from tests.lab.dropbench.zoos import DROPPING, RISING, known_zoo, recorded, zoo
from tests.results.contract import assert_keeps_contract

from .conftest import Layerprobe


@pytest.fixture
def zoo_file(tmp_path: Path) -> Path:
    write_zoo(known_zoo(), tmp_path / "zoo.json")
    return tmp_path / "zoo.json"


def test_the_answer_is_the_best_rule_and_the_table_has_a_row_a_strategy(
    layerprobe: Layerprobe, zoo_file: Path, tmp_path: Path
) -> None:
    made = [recorded(f"m{k}", "ab"[k], (DROPPING, RISING)[k], seed=k, cka=RISING) for k in range(2)]
    write_zoo(zoo(*made), zoo_file)
    done = layerprobe("lab", "bench", zoo_file)
    lines = done.out.splitlines()
    assert lines[0] == "No rule beats fixed fraction of depth"
    (line_of_find,) = (line for line in lines if line.startswith("find, 15 % "))
    assert line_of_find.split()[3] == "training"
    assert line_of_find.endswith(" %       2")
    assert any(line.startswith("last layer ") and " nothing " in line for line in lines)
    assert "fall of CKA, twin" in done.out
    assert "14 of 17 rows\n" in done.out
    assert sum(line.startswith("scan, falling") for line in lines) == 1
    assert "note: rules with parameters were tuned on the other families" in done.err


@pytest.mark.slow
def test_encoders_that_rules_were_tuned_on_can_be_left_out(
    layerprobe: Layerprobe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "expected --searched with --unseen" in layerprobe("lab", "bench", "--unseen").err
    monkeypatch.setattr(strategies, "training_strategies", list)  # which take minutes
    all_of_them, unseen = (
        layerprobe("lab", "bench", "--searched", *more, "--budget", "converged") for more in ((), ("--unseen",))
    )
    note = "20 of these encoders are there, too, fine-tuned on other pairs: --unseen leaves them out"
    assert note in all_of_them.err
    assert "of 40 models drop" in all_of_them.out
    assert "of 20 models drop" in unseen.out
    assert "Intervals resample models" in unseen.out
    assert "--unseen" not in unseen.err
    for row, regret in (("last layer ", "7.07"), ("fall of InfoNCE ", "1.37")):  # as the README says
        (line,) = (line for line in unseen.out.splitlines() if line.startswith(row))
        assert f" {regret} " in line


def test_tuned_rules_on_the_models_that_were_kept_out(layerprobe: Layerprobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "training_strategies", list)
    budgets = layerprobe("lab", "bench", "--tuned", "--json").json["budgets"]
    assert {name for budget in budgets for name in budget["truths"]} == {e.name for e in read_kept_out().entries}


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = [recorded(f"m{k}", "ab"[k], (DROPPING, RISING)[k], seed=k, cka=RISING) for k in range(2)]
    return bench_predictors(zoo(*made), strategies=[strategies.find(0.05)], draws=20)


def test_a_bench_keeps_the_contract(bench: Bench) -> None:
    assert_keeps_contract(bench, is_read=False)


def test_a_rule_that_is_no_better_than_looking_at_no_model_has_failed(bench: Bench) -> None:
    (scores,) = bench.budgets
    control = next(row for row in scores.strategies if row.name == "last layer")

    def with_regret(value: float, upper: float) -> Bench:
        mean = Statistic(value=value, lower=0.0, upper=upper)
        rule = Contestant(
            kind="strategy", name="fall of CKA", values={**control.values, "needs": "readings", "mean": mean}
        )
        control_mean = replace(control, values={**control.values, "mean": Statistic(value=5.0, lower=3.0, upper=7.0)})
        return replace(bench, budgets=(replace(scores, rules=(), strategies=(rule, control_mean)),))

    for value, upper, verdict in ((1.0, 2.0, "decided"), (1.0, 4.0, "undecided"), (5.0, 6.0, "failed")):
        assert with_regret(value, upper).verdict == verdict
