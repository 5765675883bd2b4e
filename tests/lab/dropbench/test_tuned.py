"""Rules tuned on the shipped zoos: the same as on the bench, told what they need, and asked for by name."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.tuned import REFERENCE, rule_curves, rule_names, tuned_rule, tuned_rules
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.prediction.redraws import redraw
from layerprobe.prediction.rule import ModelCurves
from layerprobe.prediction.sentence import call_sentence, record_sentence
from layerprobe.prediction.values import PLATEAU, Record
from layerprobe.readings.registry import READINGS, alone
from layerprobe.readings.values import LayerCurve
from tests.prediction.curves import equicorrelated, matrix, uncertain

RANK = "fall of effective rank"


def seen(**curves: list[float]) -> ModelCurves:
    by_name = {name.replace("_", " "): LayerCurve(values=tuple(values)) for name, values in curves.items()}
    return ModelCurves(n_blocks=len(next(iter(curves.values()))) - 1, curves=by_name)


@pytest.mark.parametrize(("name", "benched"), [(PLATEAU, f"plateau of {REFERENCE}"), (RANK, RANK)])
def test_the_record_is_what_the_bench_says(name: str, benched: str) -> None:
    (budget,) = bench_predictors(read_zoo(), budgets=["converged"], strategies=(), draws=1).budgets
    scores = next(each for each in budget.rules if each.rule == benched)
    record = tuned_rule(name).record
    assert record.families == len({each.family for each in read_zoo().entries})
    assert record.models == len(scores.outcomes)
    assert record.caught == sum(each.called for each in scores.outcomes if each.drop)
    assert record.false_alarms == sum(each.called for each in scores.outcomes if not each.drop)
    assert record.drops == sum(each.drop for each in scores.outcomes)
    assert record.median_regret == pytest.approx(scores.median_regret.value)
    assert record.mean_regret == pytest.approx(statistics.fmean(each.regret for each in scores.outcomes))


def test_a_rule_says_of_any_model_what_it_reads_off() -> None:
    rule = tuned_rule(RANK)
    assert rule(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 10.0])).onset is None
    falling = rule(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 1.0]))
    assert (falling.onset, falling.recommended_layer) == (4, 3)
    with pytest.raises(DataError, match="expected effective rank of the model for the rule 'fall of effective rank'"):
        rule(seen(curvature=[1.0, 2.0]))


def uncertain_curve(values: list[float], scale: float) -> LayerCurve:
    curve = uncertain(values, equicorrelated(len(values), scale))
    return LayerCurve(values=curve.values, uncertainty=curve.uncertainty)


@pytest.mark.parametrize("name", [RANK, "fall of CKA", "best layer by mean cosine", "tuned plateau of CKA"])
def test_a_probability_counts_what_the_rule_says_of_redraws(name: str) -> None:
    """Errors as large as the curve's changes, so that redraws differ."""
    (curve,) = rule_curves(name)
    values = [0.9, 0.8, 0.9, 0.8, 0.7, 0.65, 0.75]
    model = ModelCurves(n_blocks=6, curves={curve: uncertain_curve(values, 0.05)})
    rule = tuned_rule(name)
    shares = rule.probability(model, draws=200, seed=3)
    assert shares is not None
    covariance = matrix(equicorrelated(7, 0.05))
    calls = [
        rule(ModelCurves(n_blocks=6, curves={curve: LayerCurve(values=tuple(drawn))}))
        for drawn in redraw(values, covariance, draws=200, seed=3).tolist()
    ]
    assert shares.any_drop == np.mean([call.onset is not None for call in calls])
    for layer in range(7):
        assert shares.recommended[layer] == np.mean([call.recommended_layer == layer for call in calls])
        assert shares.by_layer[layer] == np.mean([call.onset is not None and call.onset <= layer for call in calls])
    assert 0 < max(shares.recommended) < 1


def test_small_errors_leave_a_rule_sure() -> None:
    model = ModelCurves(n_blocks=4, curves={"effective rank": uncertain_curve([5.0, 10.0, 10.0, 10.0, 1.0], 0.01)})
    shares = tuned_rule(RANK).probability(model)
    assert shares is not None
    assert (shares.any_drop, shares.recommended[3], shares.by_layer[4]) == (1.0, 1.0, 1.0)


def test_no_probability_without_errors_or_of_several_curves() -> None:
    assert tuned_rule(RANK).probability(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 1.0])) is None
    several = "logistic on self CKA, effective rank, mean cosine"
    curves = {name: uncertain_curve([0.9] * 7, 0.1) for name in rule_curves(several)}
    assert tuned_rule(several).probability(ModelCurves(n_blocks=6, curves=curves)) is None


def test_rules_read_one_model_and_one_reference() -> None:
    in_zoos = {name for entry in read_zoo().entries for name in entry.curves}
    known = {REFERENCE, *READINGS} & in_zoos
    assert {REFERENCE, *alone()} < known
    assert {curve for name in rule_names() for curve in rule_curves(name)} == known
    assert all(rule_curves(name) for name in rule_names())
    without = rule_names(labelled=False)
    assert {RANK, PLATEAU, "fall of CKA"} <= set(without)
    assert {curve for name in without for curve in rule_curves(name)} == {REFERENCE, *alone()}


def test_tuned_rules_are_scored_as_they_come() -> None:
    """On models of one family, too, from which nothing could be tuned; what they say is what `tuned_rule` says."""
    one_family = [entry for entry in read_zoo().entries if entry.family == "rtd"]
    models = replace(read_zoo(), entries=tuple(one_family))
    (result,) = bench_predictors(models, rules=tuned_rules(), budgets=["gentle"], strategies=(), draws=1).budgets
    assert result.left_out == {}
    by_name = {scores.rule: scores for scores in result.rules}
    assert set(by_name) == {"last layer", "fixed fraction of depth", "tuned fraction of depth", "random layer"} | set(
        rule_names()
    )
    for name in rule_names():
        for entry, outcome in zip(one_family, by_name[name].outcomes, strict=True):
            assert outcome.recommended == (tuned_rule(name)(entry).recommended_layer,)
    assert {scores.parameters for scores in result.rules} == {0}


def test_what_is_no_rule_or_budget_is_reported() -> None:
    with pytest.raises(DataError, match=r"expected a rule among plateau of CKA; .*got 'last layer'"):
        tuned_rule("last layer")
    with pytest.raises(DataError, match="expected a budget among gentle, converged, got 'long'"):
        tuned_rule(RANK, budget="long")


def test_the_budget_is_part_of_what_a_rule_is_tuned_to() -> None:
    gentle, converged = tuned_rule(PLATEAU, budget="gentle").record, tuned_rule(PLATEAU).record
    assert (gentle.budget, converged.budget) == ("gentle", "converged")
    assert gentle.mean_regret != converged.mean_regret
    assert np.isfinite([gentle.mean_regret, converged.median_regret]).all()


RECORD = {"budget": "long", "families": 2, "models": 9, "drops": 5, "caught": 4, "false_alarms": 1}


def test_sentences() -> None:
    said = record_sentence(Record(**RECORD, mean_regret=1.26, median_regret=0.5))
    assert "9 small encoders of 2 pretraining objectives under long fine-tuning, the rule calls 4 of 5 drops" in said
    assert "; 1 false alarm among 4 models without one; median regret 0.5 points, mean 1.3." in said
    assert "expected at layers 3 to 4 of m by" in call_sentence("r", "m", {}, onset=3, n_blocks=4)


@pytest.mark.parametrize("wrong", [{"caught": 6}, {"drops": 10}, {"false_alarms": 5}, {"caught": -1}])
def test_a_record_counts_what_there_is(wrong: dict[str, int]) -> None:
    with pytest.raises(DataError, match="expected counts of 9 models"):
        Record(**{**RECORD, **wrong}, mean_regret=0.0, median_regret=0.0)
