"""Rules with their parameters and records, and rules of a user's own."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.lab.dropbench import bench as rules
from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules
from layerprobe.prediction.rule import ModelCurves, redraw
from layerprobe.prediction.rules import RULES, rule_curves, rule_names, rules_for, tuned_rule
from layerprobe.prediction.values import RecordPart, TrackRecord
from layerprobe.readings.reading import READINGS, LayerCurve, reading_of
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Verdict
from tests.lab.dropbench.zoos import DROPPING, RISING, entry, zoo
from tests.plugins import install
from tests.prediction.curves import equicorrelated, matrix, uncertain

RANK = "fall of effective rank"


def seen(**curves: list[float]) -> ModelCurves:
    by_name = {name.replace("_", " "): LayerCurve(values=tuple(values)) for name, values in curves.items()}
    return ModelCurves(n_blocks=len(next(iter(curves.values()))) - 1, curves=by_name)


@pytest.mark.slow
def test_predict_imports_nothing_of_the_lab() -> None:
    code = (
        "import sys, layerprobe.study.predict as p, layerprobe.prediction.rules as t; t.tuned_rule(p.DEFAULT_RULE);"
        "print(*(name for name in sys.modules if name.startswith('layerprobe.lab')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_rule_says_of_any_model_what_it_reads_off() -> None:
    rule = tuned_rule(RANK)
    assert rule(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 10.0])) == 4
    assert rule(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 1.0])) == 3
    with pytest.raises(
        DataError, match="the rule 'fall of effective rank' needs effective rank, which the model lacks"
    ):
        rule(seen(curvature=[1.0, 2.0]))


def uncertain_curve(values: list[float], scale: float) -> LayerCurve:
    curve = uncertain(values, equicorrelated(len(values), scale))
    return LayerCurve(values=curve.values, uncertainty=curve.uncertainty)


@pytest.mark.parametrize("name", [rule for rule in rule_names() if len(rule_curves(rule)) == 1])
def test_a_probability_counts_what_the_rule_says_of_redraws(name: str) -> None:
    """Errors as large as the curve's changes, so that redraws differ."""
    (curve,) = rule_curves(name)
    values = [0.9, 0.8, 0.9, 0.8, 0.7, 0.65, 0.75]
    model = ModelCurves(n_blocks=6, curves={curve: uncertain_curve(values, 0.05)})
    rule = tuned_rule(name)
    flagged_in, recommended_in = rule.shares(model, draws=200, seed=3)
    covariance = matrix(equicorrelated(7, 0.05))
    layers = [
        rule(ModelCurves(n_blocks=6, curves={curve: LayerCurve(values=tuple(drawn))}))
        for drawn in redraw(values, covariance, draws=200, seed=3).tolist()
    ]
    for layer in range(7):
        assert recommended_in[layer] == np.mean([kept == layer for kept in layers])
        assert flagged_in[layer] == np.mean([kept < layer for kept in layers])
    assert 0 < max(recommended_in) < 1


def test_no_probability_without_errors() -> None:
    assert tuned_rule(RANK).shares(seen(effective_rank=[5.0, 10.0, 10.0, 10.0, 1.0])) == ((), ())


RECORD = {"budget": "long", "families": 2, "models": 9, "drops": 5, "caught": 4, "false_alarms": 1}


def test_a_record_says_what_it_is_of() -> None:
    def part(encoders: str, models: int, drops: int, caught: int, false_alarms: int) -> RecordPart:
        counts = {"models": models, "drops": drops, "caught": caught, "false_alarms": false_alarms}
        return RecordPart(encoders=encoders, **counts, mean_regret=0.74, last_regret=3.0)

    parts = part("pretrained ones", 7, 5, 5, 2), part("random ones", 2, 0, 0, 0)
    record = TrackRecord(**RECORD, mean_regret=1.26, median_regret=0.5, parts=parts)
    some, none = record.checks
    assert {name: fact.value for name, fact in some.facts.items()} == {
        **{"models": 7, "drops": 5, "caught": 5, "others": 2, "false": 2},
        **{"regret": 0.74, "last": 3.0},
    }
    assert (none.facts["false"].value, none.facts["others"].value) == (0, 2)
    conclusion = Conclusion(kind="predict", case="look", verdict=Verdict.UNDECIDED)
    line, besides = words.line(some, conclusion)
    assert line == "A flag alone proves little: 5 of 5 encoders that drop were flagged, and so were 2 of 2 that do not"
    assert besides.startswith("On 7 benchmark encoders, its layer was 0.7 points below the best")
    tells = replace(record, parts=(part("pretrained ones", 7, 5, 5, 1), part("random ones", 2, 0, 0, 1)))
    some, none = tells.checks
    assert words.line(some, conclusion)[0] == "It flags 5 of 5 benchmark encoders that drop and 1 of 2 that do not"
    assert words.line(none, conclusion)[0] == "It flags 1 of 2 other encoders that do not drop"
    assert from_json(TrackRecord, to_json(record)) == record


def test_the_default_flags_every_pretrained_encoder_of_its_record() -> None:
    chosen, random, others, real = tuned_rule("fall of InfoNCE").record.parts
    assert (chosen.caught, chosen.drops, chosen.false_alarms, chosen.models) == (25, 25, 5, 30)
    assert (random.false_alarms, random.drops, random.models) == (0, 0, 4)
    assert (others.caught, others.drops, others.false_alarms, others.models) == (18, 18, 2, 20)
    assert (real.false_alarms, real.drops, real.models, real.mean_regret) == (0, 0, 2, 0.0)
    assert chosen.mean_regret < chosen.last_regret
    assert others.mean_regret < others.last_regret


@pytest.mark.parametrize("name", ["fall of InfoNCE", RANK, "plateau of CKA", "best layer by probe"])
def test_the_parts_of_a_record_are_what_the_rule_was_chosen_by(name: str) -> None:
    record = tuned_rule(name).record
    chosen = [part for part in record.parts if part.encoders.endswith("used to choose it")]
    for count in "models", "drops", "caught", "false_alarms":
        assert sum(getattr(part, count) for part in chosen) == getattr(record, count)
    regrets = [part.mean_regret * part.models for part in chosen]
    assert sum(regrets) / record.models == pytest.approx(record.mean_regret)


def test_a_fall_below_the_floor_is_none() -> None:
    """Three percent of a number near 0.4 is nothing: models with random weights fall by as much."""
    rule, floor = tuned_rule("fall of InfoNCE"), READINGS["InfoNCE"].floor
    low = [0.44, 0.43, 0.44, 0.42, 0.41]
    assert rule(seen(InfoNCE=[*low[:4], 0.44 - floor])) == 4
    assert rule(seen(InfoNCE=[*low[:4], 0.44 - floor - 0.001])) == 2
    assert rule(seen(InfoNCE=[2.0, 2.0, 2.0, 2.0, 2.0 - floor - 0.001])) == 4  # within 3 %
    assert rule(seen(InfoNCE=[2.0, 2.0, 2.0, 2.0, 1.9])) == 3


TOY = """
from layerprobe.prediction.rule import Rule, best_on_grid, layer_values

def lowest(readings, others):
    if "effective rank" in readings:
        def at(share):
            return lambda model: (share * model.n_blocks,)

        yield Rule(
            name="either end",
            curves=("effective rank",),
            make=at,
            choose=best_on_grid(at, [{"share": 0}, {"share": 1}], "either end"),
            parameters=1,
        )
    for name, reading in readings.items():
        if not reading.labelled:
            yield Rule(
                name=f"lowest {name}",
                curves=(name,),
                make=lambda name=name: lambda model: (int(layer_values(model, name).argmin()),),
            )

NUMBER = 3
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forget() -> None:
        RULES.reload()
        rules.fittable_rules.cache_clear()

    (tmp_path / "plugin").mkdir()
    install(monkeypatch, tmp_path / "plugin", RULES, TOY, {"lowest": "lowest"})
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.mark.usefixtures("toy")
def test_it_is_fitted_and_predict_does_not_have_it() -> None:
    name = "lowest effective rank"
    by_name = {rule.name: rule for rule in tuned_rules()}
    assert {name, "either end"} <= by_name.keys(), "expected them in lab bench --tuned"
    assert name not in rule_names()
    model = ModelCurves(n_blocks=4, curves={"effective rank": LayerCurve(values=(5.0, 4.0, 3.0, 2.0, 6.0))})
    assert by_name[name].make()(model) == (3,)
    assert by_name["either end"].make()(model) == (4,), "expected a layer chosen on the zoos"


@pytest.mark.usefixtures("toy")
def test_dropbench_scores_it_and_chooses_among_it() -> None:
    """The lowest layer by this reading is the best one, which no other rule sees."""
    best = {"up": (1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0), "down": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)}
    entries = (
        *(entry(f"{family}0", family, DROPPING, metrics={"curvature": best["up"]}) for family in "abc"),
        *(entry(f"{family}1", family, RISING, metrics={"curvature": best["down"]}) for family in "abc"),
    )
    (budget,) = bench_predictors(zoo(*entries), draws=10).budgets
    by_name = {scores.name: scores for scores in budget.rules}
    assert by_name["lowest curvature"].mean_regret.value == 0
    assert by_name["best rule of the other families"].mean_regret.value == 0


def test_rules_read_what_there_is() -> None:
    names = [rule.name for rule in rules_for({})]
    assert names == [
        *("last layer", "fixed fraction of depth", "tuned fraction of depth", "random layer"),
        "best rule of the other families",
    ]
    known = {name: reading_of(name) for name in ("CKA, twin", "probe")}
    assert [rule.name for rule in rules_for(known)][4:] == [
        *("plateau of CKA, twin", "tuned plateau of CKA, twin", "fall of CKA, twin"),
        *("best layer by probe", "fall of probe"),
        *("best rule of the other families", "best rule of the other families, with labels"),
    ]
