"""Rules fitted to the zoos that come with layerprobe: they are what `prediction/rules.json` holds."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import fit_rules
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.lab.dropbench.bench import REFERENCE, bench_predictors, tuned_rules, unfitted_rules
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.prediction.rule import FittedParameters, ModelCurves, fitted_parameters
from layerprobe.prediction.rules import rule_curves, rule_names, tuned_rule
from layerprobe.prediction.values import PLATEAU
from layerprobe.readings.reading import CKA, READINGS, alone

from .zoos import entry, zoo

RANK = "fall of effective rank"


def test_the_file_holds_what_the_zoos_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rules, their records, and what a nat of InfoNCE is worth; to 1e-9, since machines round differently."""
    monkeypatch.setattr(sys, "argv", ["rules", str(tmp_path / "rules.json")])
    fit_rules.main()
    anew = from_json(FittedParameters, (tmp_path / "rules.json").read_text())
    assert _compared(to_dict(anew)) == to_dict(fitted_parameters())
    assert len({rule.name for rule in anew.rules}) == len(anew.rules) == 20


def _compared(value: object) -> object:
    """Return a value whose floating-point numbers compare as equal up to 1e-9 of them."""
    if isinstance(value, dict):
        return {key: _compared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_compared(item) for item in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


@pytest.mark.slow
@pytest.mark.parametrize(("name", "benched"), [(PLATEAU, f"plateau of {REFERENCE}"), (RANK, RANK)])
def test_the_record_is_what_the_bench_says(name: str, benched: str) -> None:
    (budget,) = bench_predictors(read_zoo(), budgets=["converged"], strategies=(), draws=1).budgets
    scores = next(each for each in budget.rules if each.name == benched)
    record = tuned_rule(name).record
    assert record.families == len({each.family for each in read_zoo().entries})
    called = {one.name: scores.layers[one.name] != (one.n_blocks,) for one in read_zoo().entries}
    drops = [name for name, truth in budget.truths.items() if truth.drop]
    assert (record.models, record.drops) == (len(called), len(drops))
    assert record.caught == sum(called[name] for name in drops)
    assert record.false_alarms == sum(called.values()) - record.caught
    assert record.median_regret == pytest.approx(scores.median_regret.value)
    assert record.mean_regret == pytest.approx(scores.mean_regret.value)


def test_rules_read_one_model_and_one_reference() -> None:
    in_zoos = {name for entry in read_zoo().entries for name in entry.curves}
    known = {CKA, *(READINGS.keys() & in_zoos)}
    assert {CKA, *alone()} < known
    assert {curve for name in rule_names() for curve in rule_curves(name)} == known
    assert all(rule_curves(name) for name in rule_names())
    without = [rule.name for rule in fitted_parameters().rules if not rule.labelled]
    assert {RANK, PLATEAU, "fall of CKA"} <= set(without)
    assert {curve for name in without for curve in rule_curves(name)} == {CKA, *alone()}


def test_tuned_rules_are_scored_as_they_come() -> None:
    """On models of one family, too, from which nothing could be tuned; what they say is what `tuned_rule` says."""
    one_family = [entry for entry in read_zoo().entries if entry.family == "rtd"]
    models = replace(read_zoo(), entries=tuple(one_family))
    (result,) = bench_predictors(models, rules=tuned_rules(), budgets=["gentle"], strategies=(), draws=1).budgets
    assert result.left_out == {}
    by_name = {scores.name: scores for scores in result.rules}
    controls = {"last layer", "fixed fraction of depth", "tuned fraction of depth", "random layer"}
    assert set(by_name) > controls | set(rule_names()), "expected rules of rivals, too"
    for name in rule_names():
        for case, layers in zip(one_family, by_name[name].layers.values(), strict=True):
            curves = {what.replace(REFERENCE, CKA): curve for what, curve in case.curves.items()}
            model = ModelCurves(n_blocks=case.n_blocks, curves=curves)
            assert layers == (tuned_rule(name)(model),)
    assert {scores.parameters for scores in result.rules} == {0}


def test_rules_on_readings_that_nothing_was_fitted_to() -> None:
    """A rival's own rule is the best layer by its score; what the zoos of the tuning have is not tried again."""
    curves = {"LOES without labels": (1.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0), "InfoNCE": (1.0,) * 7}
    model = entry("m", "f", metrics=curves, labelled={"LOES": (0.4, 0.3, 0.1, 0.2, 0.3, 0.3, 0.3)})
    own = {rule.name: rule for rule in unfitted_rules([model])}
    assert {"best layer by LOES without labels", "best layer by LOES"} <= set(own)
    assert all(set(rule.curves) <= {"LOES", "LOES without labels"} and not rule.parameters for rule in own.values())
    (layers,) = (
        scores.layers
        for budget in bench_predictors(zoo(model), rules=list(own.values()), strategies=(), draws=1).budgets
        for scores in budget.rules
        if scores.name == "best layer by LOES"
    )
    assert layers == {"m": (2,)}
