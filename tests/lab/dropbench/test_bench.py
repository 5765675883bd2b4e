"""The table of rules: known by hand, blind to the family that is scored, and with intervals that are redrawn ones."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.lab.dropbench.bench import bench_predictors, known_drops
from layerprobe.lab.dropbench.results import Contestant, Statistic
from layerprobe.lab.dropbench.zoo import Zoo, ZooEntry, cost_share
from layerprobe.prediction.rule import KnownDrop, Predictor, Rule, falls, leave_one_family_out
from layerprobe.prediction.rules import best_rule, fall, plateau
from layerprobe.readings.reading import reading_of

from .zoos import DROPPING, FALLING_CURVE, LEVEL_CURVE, RISING, entry, known_zoo, tuned, zoo

CURVE = "CKA, twin"


def scores_of(data: Zoo, name: str, *, rules: Sequence[Rule] | None = None) -> Contestant:
    (budget,) = bench_predictors(data, rules=rules, strategies=(), draws=200).budgets
    return next(scores for scores in budget.rules if scores.name == name)


def value(score: Statistic | None) -> float:
    assert score is not None
    return score.value


def known(*entries: ZooEntry) -> list[KnownDrop]:
    return known_drops(entries, "gentle")


def fall_of(name: str) -> Rule:
    return fall(name, reading_of(name))


def test_the_plateau_rule_on_the_known_zoo() -> None:
    """Right for a0, a1, c0 and d0; it misses b0 and calls c1, whose layer 4 is 2 points short."""
    scores = scores_of(known_zoo(), f"plateau of {CURVE}")
    assert list(scores.layers.values()) == [(4,), (4,), (6,), (6,), (4,), (6,)]
    assert value(scores.precision) == pytest.approx(2 / 3)
    assert value(scores.recall) == pytest.approx(2 / 3)
    assert value(scores.f1) == pytest.approx(2 / 3)
    assert value(scores.onset_error) == pytest.approx((0 + 0 + 2) / 3)
    assert value(scores.mean_regret) == pytest.approx((0 + 0 + 20 + 0 + 2 + 0) / 6)
    assert value(scores.median_regret) == 0
    # layers 4 and 6 where it calls a drop; layers 5, at three quarters of the depth, and 6 where it does not
    assert value(scores.cost) == pytest.approx((3 * 12 / 28 + 3 * 13 / 28) / 6)
    assert (scores.parameters, scores.labelled) == (0, False)


def test_the_baselines_on_the_known_zoo() -> None:
    last = scores_of(known_zoo(), "last layer")
    assert last.precision is None, "expected no precision of a rule that calls no drop"
    assert (value(last.recall), value(last.f1)) == (0, 0)
    assert value(last.mean_regret) == pytest.approx(10)
    assert value(last.onset_error) == pytest.approx(2)
    fixed = scores_of(known_zoo(), "fixed fraction of depth")
    assert (value(fixed.precision), value(fixed.recall)) == (pytest.approx(0.5), 1)
    assert value(fixed.mean_regret) == pytest.approx((10 + 1) / 2)


def test_a_random_layer_is_scored_in_expectation() -> None:
    result = scores_of(known_zoo(), "random layer")
    assert set(result.layers.values()) == {tuple(range(7))}
    assert value(result.recall) == pytest.approx(6 / 7)
    assert value(result.precision) == pytest.approx(0.5)
    mean_regrets = [np.mean(max(scores) - np.array(scores)) for scores in (DROPPING, RISING)]
    assert value(result.mean_regret) == pytest.approx(np.mean(mean_regrets))
    assert value(result.onset_error) == pytest.approx(np.mean([abs(onset - 5) for onset in range(1, 8)]))


def test_budgets_have_truths_of_their_own() -> None:
    budgets = {"gentle": tuned(DROPPING), "converged": tuned(RISING)}
    data = zoo(*(entry(name, name, budgets=budgets, cka=FALLING_CURVE) for name in "ab"))
    bench = bench_predictors(data, strategies=(), draws=10)
    assert [(each.budget, each.truths["a"].drop) for each in bench.budgets] == [("gentle", True), ("converged", False)]
    (only,) = bench_predictors(data, budgets=["converged"], strategies=(), draws=10).budgets
    assert only.budget == "converged"


def remembering(models: Sequence[KnownDrop]) -> Predictor:
    """The best layer of every model it has seen, the last one of any other."""
    seen = {id(each.model): each.truth.best_layer for each in models}
    return lambda model: (seen.get(id(model), model.n_blocks),)


def memory(models: Sequence[KnownDrop]) -> dict[str, object]:
    return {"models": models}


def test_a_rule_sees_all_models_of_the_other_families_and_no_more() -> None:
    asked: list[set[str]] = []

    def watched(models: Sequence[KnownDrop]) -> Predictor:
        asked.append({each.name for each in models})
        return remembering(models)

    scores = scores_of(known_zoo(), "watched", rules=[Rule(name="watched", curves=(), make=watched, choose=memory)])
    everything = {"a0", "a1", "b0", "c0", "c1", "d0"}
    assert asked == [everything - left_out for left_out in ({"a0", "a1"}, {"b0"}, {"c0", "c1"}, {"d0"})]
    assert list(scores.layers) == ["a0", "a1", "b0", "c0", "c1", "d0"]


def test_what_no_block_has_touched_counts_only_where_that_helps() -> None:
    level, falling = (20.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0), (20.0, 10.0, 10.0, 10.0, 10.0, 5.0, 5.0)
    models = known(entry("a", "a", RISING, cka=level), entry("b", "b", DROPPING, cka=falling))
    predict = fall_of(CURVE).fit(models)
    assert [predict(each.model)[0] for each in models] == [6, 4]
    first = (60.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0)
    (only,) = known(entry("c", "c", first, cka=level))
    assert fall_of(CURVE).fit([only])(only.model)[0] == 0


def test_one_family_scores_what_needs_no_tuning_and_redraws_models() -> None:
    data = zoo(*(entry(str(n), "only", scores, cka=LEVEL_CURVE) for n, scores in enumerate((DROPPING, RISING))))
    bench = bench_predictors(data, draws=100)
    names = {scores.name for scores in bench.budgets[0].rules}
    assert {"last layer", f"plateau of {CURVE}"} <= names
    assert not any(scores.parameters for scores in bench.budgets[0].rules)
    assert bench.budgets[0].left_out["tuned fraction of depth"] == "it has parameters, and there is one family only"
    assert bench.budgets[0].clusters == "models"


def test_a_tuned_rule_finds_what_the_default_misses() -> None:
    """Falls of 0.04 are drops here, which the plateau rule's default of 0.05 does not see."""
    slight = (0.9, 0.9, 0.9, 0.9, 0.9, 0.86, 0.86)
    data = zoo(
        *(entry(f"{family}0", family, DROPPING, cka=slight) for family in "abc"),
        *(entry(f"{family}1", family, RISING, cka=[0.9] * 7) for family in "abc"),
    )
    assert value(scores_of(data, f"plateau of {CURVE}").f1) == 0
    for rule in (plateau(CURVE, reading_of(CURVE), tuned=True), fall_of(CURVE)):
        scores = scores_of(data, rule.name, rules=[rule])
        assert value(scores.f1) == 1, rule.name
        assert value(scores.mean_regret) == 0, rule.name


def test_self_cka_begins_at_layer_1() -> None:
    """A steady decline is no drop; the copy at layer 0 would be a change of 0, and the first step a drop."""
    steady = [0.9 - 0.1 * layer for layer in range(8)]
    falling = [0.9, 0.91, 0.9, 0.89, 0.9, 0.9, 0.5, 0.4]
    data = zoo(
        *(
            entry(name, name, (*DROPPING, 55.0, 50.0), metrics={"self CKA": (values[0], *values)})
            for name, values in (("steady", steady), ("falling", falling))
        )
    )
    assert list(scores_of(data, "plateau of self CKA").layers.values()) == [(8,), (6,)]


def test_falls_are_finite_near_zero_and_do_not_depend_on_the_unit() -> None:
    curve = np.array([0.0, -6.0, 30.0, 40.0, 10.0, -20.0])
    np.testing.assert_allclose(falls(curve), [0, 0.15, 0, 0, 0.75, 1.5])
    np.testing.assert_allclose(falls(100 * curve), falls(curve))
    np.testing.assert_array_equal(falls(np.zeros(3)), np.zeros(3))
    np.testing.assert_allclose(falls(curve, unit=1.0), [0, 6, 0, 0, 30, 60])


def test_labels_are_told_apart() -> None:
    data = zoo(
        *(
            entry(name, name, DROPPING, cka=FALLING_CURVE, labelled={"zero-shot": DROPPING, "probe": RISING})
            for name in "ab"
        )
    )
    (budget,) = bench_predictors(data, strategies=(), draws=10).budgets
    labelled = {scores.name for scores in budget.rules if scores.labelled}
    single = {f"{what} {name}" for what in ("best layer by", "fall of") for name in ("zero-shot", "probe")}
    assert labelled == {*single, "best rule of the other families, with labels"}
    regrets = [scores.mean_regret.value for scores in budget.rules if scores.labelled]
    assert regrets == sorted(regrets)
    assert [scores.labelled for scores in budget.rules] == sorted(scores.labelled for scores in budget.rules)


def test_ties_take_the_earlier_layer_and_the_first_candidate() -> None:
    level = (70.0,) * 7
    data = zoo(*(entry(name, name, level, cka=LEVEL_CURVE, labelled={"zero-shot": level}) for name in "ab"))
    scores = scores_of(data, "best layer by zero-shot")
    assert set(scores.layers.values()) == {(0,)}
    assert value(scores.mean_regret) == 0
    # all fractions of the depth have no regret; the first one, the whole model, makes no wrong call either
    assert set(scores_of(data, "tuned fraction of depth").layers.values()) == {(6,)}


def test_of_a_model_that_lacks_the_curve_a_rule_calls_no_drop() -> None:
    data = zoo(entry("a", "a", DROPPING, cka=FALLING_CURVE), entry("b", "b", DROPPING), entry("c", "c", RISING))
    (budget,) = bench_predictors(data, strategies=(), draws=10).budgets
    rule = next(scores for scores in budget.rules if scores.name == f"plateau of {CURVE}")
    assert rule.layers == {"a": (4,), "b": (6,), "c": (6,)}
    assert rule.missing == 2
    assert (value(rule.precision), value(rule.recall)) == (1, 0.5)
    assert value(rule.mean_regret) == pytest.approx(20 / 3)
    assert budget.left_out[f"tuned plateau of {CURVE}"] == (
        f"it has parameters, and there is one family only with {CURVE}"
    )
    assert {tuple(scores.layers) for scores in budget.rules} == {("a", "b", "c")}


@pytest.mark.parametrize(
    ("curve", "zero_shot", "layers"),
    [
        (FALLING_CURVE, None, (4, 6)),
        (FALLING_CURVE, DROPPING, (4, 6)),
        (LEVEL_CURVE, None, (5, 6)),  # three quarters of the depth
        (LEVEL_CURVE, DROPPING, (4, 6)),
        (LEVEL_CURVE, (9.0,) * 7, (0, 6)),
        (LEVEL_CURVE, RISING, (5, 6)),  # the last layer is no rival of its own
    ],
)
def test_the_cost_is_that_of_the_layer_that_is_called_and_the_last(
    curve: Sequence[float], zero_shot: Sequence[float] | None, layers: tuple[int, int]
) -> None:
    labelled = {} if zero_shot is None else {"zero-shot": zero_shot}
    data = zoo(*(entry(name, name, DROPPING, cka=curve, labelled=labelled) for name in "ab"))
    assert value(scores_of(data, f"plateau of {CURVE}").cost) == pytest.approx(cost_share(layers, 6))


def test_families_are_redrawn_whole() -> None:
    """Twenty copies of one model in a family say no more than one does."""
    families = {"a": DROPPING, "b": RISING, "c": RISING, "d": RISING}
    few = zoo(*(entry(f"{family}0", family, scores) for family, scores in families.items()))
    copies = [entry(f"{family}{n}", family, scores) for n in range(20) for family, scores in families.items()]
    one, many = (scores_of(data, "last layer").mean_regret for data in (few, zoo(*copies)))
    assert one == many
    # expanded percentiles of four are nearly the ends
    assert (one.lower, one.upper) == pytest.approx((0, 20), abs=0.2)
    assert one.value == pytest.approx(5)


def test_an_encoder_is_redrawn_with_all_of_its_tasks() -> None:
    """Ten tasks on which one encoder scores alike say no more than one does; one encoder alone has no interval."""
    tasks = [str(n) for n in range(10)]
    encoders = [entry(name, "only", scores) for name, scores in (("x", DROPPING), ("y", RISING), ("z", RISING))]
    entries = [replace(each, name=f"{each.name}-{task}", task=task) for each in encoders for task in tasks]
    one, many = (scores_of(data, "last layer").mean_regret for data in (zoo(*encoders), zoo(*entries)))
    assert many == one
    assert bench_predictors(zoo(*entries), strategies=(), draws=5).budgets[0].clusters == "3 encoders (30 entries)"
    alone = scores_of(zoo(*entries[:10]), "last layer").mean_regret
    assert (alone.lower, alone.upper) == (None, None)


def test_intervals_are_those_of_redrawn_models() -> None:
    rng = np.random.default_rng(0)
    drops = rng.random(40) < 0.5
    data = zoo(*(entry(str(n), "only", DROPPING if drop else RISING) for n, drop in enumerate(drops)))
    result = scores_of(data, "last layer").mean_regret
    again = np.random.default_rng(1).choice(20.0 * drops, size=(4000, 40)).mean(axis=1)
    assert result.lower is not None
    assert result.upper is not None
    np.testing.assert_allclose([result.lower, result.upper], np.quantile(again, [0.025, 0.975]), atol=1)


def taking(layer: int) -> Rule:
    return Rule(name=f"layer {layer}", curves=(), make=lambda: lambda model: (layer,))


def test_the_best_rule_is_chosen_without_the_family_that_it_is_scored_on() -> None:
    """Layer 4 is best in family a, the last one in b and c."""
    data = zoo(entry("a", "a", DROPPING), entry("b", "b", RISING), entry("c", "c", RISING))
    rules = [taking(6), taking(4)]
    scores = scores_of(data, "best rule of the other families", rules=[*rules, best_rule(rules)])
    # without a: both others rise; without b or c: 20 points in a against 2 in the other, and a wrong call each
    assert list(scores.layers.values()) == [(6,), (4,), (4,)]
    assert value(scores.mean_regret) == pytest.approx((20 + 2 + 2) / 3)
    alone = [value(scores_of(data, rule.name, rules=rules).mean_regret) for rule in rules]
    assert min(alone) == pytest.approx(4 / 3), "the winner's own score is better than choosing gave"


def test_a_rule_that_remembers_is_not_the_best_of_the_other_families() -> None:
    """It is right on all that it was fitted to, and would be chosen for that."""
    everything = known(
        *(entry(family, family, DROPPING, cka=FALLING_CURVE) for family in "ab"),
        *(entry(family, family, RISING, cka=LEVEL_CURVE) for family in "cd"),
    )
    remembers = Rule(name="remembering", curves=(), make=remembering, choose=memory, parameters=99)
    looks = plateau(CURVE, reading_of(CURVE), tuned=False)
    said = leave_one_family_out(best_rule([remembers, looks]), everything)
    assert said == leave_one_family_out(looks, everything) != leave_one_family_out(remembers, everything)


def test_the_best_rule_among_all_may_read_labels() -> None:
    curves = {"a": DROPPING, "b": RISING, "c": DROPPING, "d": RISING}
    data = zoo(*(entry(name, name, scores, labelled={"zero-shot": scores}) for name, scores in curves.items()))
    without = scores_of(data, "best rule of the other families")
    labels = scores_of(data, "best rule of the other families, with labels")
    assert (without.labelled, labels.labelled, labels.parameters) == (False, True, 1)
    assert value(labels.mean_regret) == 0
    assert value(without.mean_regret) > 0
