"""A rule of a user's own is tuned and scored as those that come with layerprobe are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fit_rules import record_of
from layerprobe.errors import DataError
from layerprobe.lab.dropbench import bench as rules
from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules
from layerprobe.prediction.rule import ModelCurves, Rule
from layerprobe.prediction.rules import RULES, rule_names, rules_for
from layerprobe.readings.reading import LayerCurve, reading_of
from tests.lab.dropbench.zoos import DROPPING, RISING, entry, zoo
from tests.plugins import install

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


def test_a_rule_that_cannot_be_fitted_says_why() -> None:
    rule = Rule(name="odd", curves=("unheard of",), make=lambda: lambda model: (0,))
    with pytest.raises(DataError, match=r"the rule 'odd' cannot be fitted .*: no model has unheard of"):
        record_of(rule)


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


def test_what_is_no_function_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = [rule.name for rule in rules_for({})]
    install(monkeypatch, tmp_path, RULES, TOY, {"three": "NUMBER"})
    assert [rule.name for rule in rules_for({})] == own
    words = "expected toy_plugin:NUMBER to be a function, the family of rules 'three', got a int"
    assert f"{words}: skipped" in caplog.text
    with pytest.raises(DataError, match=words):
        RULES["three"]
    monkeypatch.undo()
    RULES.reload()
