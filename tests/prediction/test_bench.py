"""The table of rules: known by hand, blind to the family that is scored, and with intervals that are redrawn ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.prediction import bench_predictors
from layerprobe.prediction.bench import leave_one_family_out
from layerprobe.prediction.predictors import Known, Predictor, Rule, fall, logistic, plateau, truncated
from layerprobe.results import RuleScores, Score, Zoo, ZooEntry

from .zoos import DROPPING, FALLING_CURVE, LEVEL_CURVE, RISING, entry, known_zoo, tuned, zoo

CURVE = "CKA, twin"


def scores_of(data: Zoo, name: str, *, rules: Sequence[Rule] | None = None) -> RuleScores:
    (budget,) = bench_predictors(data, rules=rules, draws=200).budgets
    return next(scores for scores in budget.rules if scores.rule == name)


def value(score: Score | None) -> float:
    assert score is not None
    return score.value


def known(*entries: ZooEntry) -> list[Known]:
    return [Known.of(each, each.budgets["gentle"]) for each in entries]


# ---- tables known by hand -----------------------------------------------------------------------------------


def test_the_plateau_rule_on_the_known_zoo() -> None:
    """Right for a0, a1, c0 and d0; it misses b0 and calls c1, whose layer 4 is 2 points short."""
    found = scores_of(known_zoo(), f"plateau of {CURVE}")
    assert [outcome.recommended for outcome in found.outcomes] == [(4,), (4,), (6,), (6,), (4,), (6,)]
    assert value(found.precision) == pytest.approx(2 / 3)
    assert value(found.recall) == pytest.approx(2 / 3)
    assert value(found.f1) == pytest.approx(2 / 3)
    assert value(found.onset_error) == pytest.approx((0 + 0 + 2) / 3)
    assert value(found.mean_regret) == pytest.approx((0 + 0 + 20 + 0 + 2 + 0) / 6)
    assert value(found.median_regret) == 0
    # layers 4 and 6 where it calls a drop; layers 5, at three quarters of the depth, and 6 where it does not
    assert value(found.cost) == pytest.approx((3 * 12 / 28 + 3 * 13 / 28) / 6)
    assert (found.parameters, found.labelled) == (0, False)


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
    found = scores_of(known_zoo(), "random layer")
    assert [outcome.called for outcome in found.outcomes] == [pytest.approx(6 / 7)] * 6
    assert value(found.recall) == pytest.approx(6 / 7)
    assert value(found.precision) == pytest.approx(0.5)
    mean_regrets = [np.mean(max(scores) - np.array(scores)) for scores in (DROPPING, RISING)]
    assert value(found.mean_regret) == pytest.approx(np.mean(mean_regrets))
    assert value(found.onset_error) == pytest.approx(np.mean([abs(onset - 5) for onset in range(1, 8)]))


def test_budgets_have_truths_of_their_own() -> None:
    budgets = {"gentle": tuned(DROPPING), "converged": tuned(RISING)}
    data = zoo(*(entry(name, name, budgets=budgets, cka=FALLING_CURVE) for name in "ab"))
    found = bench_predictors(data, draws=10)
    assert [(each.budget, each.truths["a"].drop) for each in found.budgets] == [("gentle", True), ("converged", False)]
    assert [each.budget for each in bench_predictors(data, budgets=["converged"], draws=10).budgets] == ["converged"]


def test_a_model_without_a_budget_is_not_scored_under_it() -> None:
    data = zoo(entry("a", "a", budgets={"gentle": tuned(RISING), "converged": tuned(RISING)}), entry("b", "b"))
    gentle, converged = bench_predictors(data, draws=10).budgets
    assert (list(gentle.truths), list(converged.truths)) == (["a", "b"], ["a"])


# ---- leave one family out -----------------------------------------------------------------------------------


def remembering(models: Sequence[Known]) -> Predictor:
    """The best layer of every model it has seen, the last one of any other."""
    seen = {each.entry.name: each.truth.best_layer for each in models}
    return lambda entry: (truncated(seen.get(entry.name, entry.n_blocks), entry),)


def test_a_rule_that_remembers_knows_nothing_of_another_family() -> None:
    rule = Rule(name="remembering", curves=(), fit=remembering, parameters=99)
    found = scores_of(known_zoo(), "remembering", rules=[rule])
    assert {outcome.recommended for outcome in found.outcomes} == {(6,)}
    assert value(found.f1) == 0
    # and it would have known all of them
    models = known(*known_zoo().entries)
    seen = [remembering(models)(each.entry)[0].recommended_layer for each in models]
    assert seen == [each.truth.best_layer for each in models]


def test_a_rule_sees_all_models_of_the_other_families_and_no_more() -> None:
    asked: list[set[str]] = []

    def watched(models: Sequence[Known]) -> Predictor:
        asked.append({each.entry.name for each in models})
        return remembering(models)

    outcomes = leave_one_family_out(Rule(name="watched", curves=(), fit=watched), known(*known_zoo().entries))
    everything = {"a0", "a1", "b0", "c0", "c1", "d0"}
    assert asked == [everything - left_out for left_out in ({"a0", "a1"}, {"b0"}, {"c0", "c1"}, {"d0"})]
    assert [outcome.model for outcome in outcomes] == ["a0", "a1", "b0", "c0", "c1", "d0"]


def test_a_threshold_that_fits_one_family_alone_does_not_help_it() -> None:
    """In family a a fall by a tenth is a drop, in all others it is none."""
    tenth = (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.9)
    half = (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5)
    data = zoo(
        entry("a", "a", DROPPING, cka=tenth),
        *(entry(f"{family}{n}", family, RISING, cka=tenth) for family in "bc" for n in range(2)),
        *(entry(f"{family}{n}", family, DROPPING, cka=half) for family in "bc" for n in range(2, 4)),
    )
    found = scores_of(data, f"fall of {CURVE}", rules=[fall(CURVE)])
    assert found.outcomes[0].recommended == (6,)
    # known with the others, its own drop would have been worth more than their false alarms
    everything = known(*data.entries)
    assert fall(CURVE).fit(everything)(everything[0].entry)[0].recommended_layer == 4
    assert found.parameters == 1


def test_one_family_scores_what_needs_no_tuning_and_redraws_models() -> None:
    data = zoo(*(entry(str(n), "only", scores, cka=LEVEL_CURVE) for n, scores in enumerate((DROPPING, RISING))))
    found = bench_predictors(data, draws=100)
    names = {scores.rule for scores in found.budgets[0].rules}
    assert {"last layer", f"plateau of {CURVE}"} <= names
    assert not any(scores.parameters for scores in found.budgets[0].rules)
    assert found.budgets[0].left_out["tuned fraction of depth"] == "it has parameters, and there is one family only"
    assert found.clusters == "models"


# ---- rules with parameters ------------------------------------------------------------------------------------


def test_a_tuned_rule_finds_what_the_default_misses() -> None:
    """Falls of 0.04 are drops here, which the plateau rule's default of 0.05 does not see."""
    slight = (0.9, 0.9, 0.9, 0.9, 0.9, 0.86, 0.86)
    data = zoo(
        *(entry(f"{family}0", family, DROPPING, cka=slight) for family in "abc"),
        *(entry(f"{family}1", family, RISING, cka=[0.9] * 7) for family in "abc"),
    )
    assert value(scores_of(data, f"plateau of {CURVE}").f1) == 0
    for rule in (plateau(CURVE, tuned=True), fall(CURVE)):
        found = scores_of(data, rule.name, rules=[rule])
        assert value(found.f1) == 1, rule.name
        assert value(found.mean_regret) == 0, rule.name


def three_curves(*, drops: bool) -> dict[str, Sequence[float]]:
    low = (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.4)
    flat = (1.0, 1.01, 1.0, 0.99, 1.0, 1.0, 1.01)
    return {
        "self CKA": low if drops else flat,
        "effective rank": flat,
        "mean cosine": [2.0 - each for each in (low if drops else flat)],
    }


def test_a_combination_learns_what_goes_with_a_drop() -> None:
    names = tuple(three_curves(drops=True))
    data = zoo(
        *(entry(f"{family}0", family, DROPPING, metrics=three_curves(drops=True)) for family in "abc"),
        *(entry(f"{family}1", family, RISING, metrics=three_curves(drops=False)) for family in "abc"),
    )
    found = scores_of(data, logistic(names).name, rules=[logistic(names)])
    assert value(found.f1) == 1
    assert value(found.onset_error) == 0
    assert value(found.mean_regret) == 0


def test_a_combination_learns_from_models_that_do_not_differ() -> None:
    names = tuple(three_curves(drops=True))
    data = zoo(*(entry(name, name, RISING, metrics=three_curves(drops=False)) for name in "abc"))
    assert {outcome.called for outcome in scores_of(data, logistic(names).name, rules=[logistic(names)]).outcomes} == {
        0
    }


def test_the_direction_of_a_metric_nobody_knows_is_tuned() -> None:
    up, down = (1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.6), (1.0,) * 7
    data = zoo(
        *(entry(f"{family}0", family, DROPPING, metrics={"curvature": up}) for family in "ab"),
        *(entry(f"{family}1", family, RISING, metrics={"curvature": down}) for family in "ab"),
    )
    assert value(scores_of(data, "fall of curvature").f1) == 1


def test_labels_are_told_apart() -> None:
    data = zoo(
        *(
            entry(name, name, DROPPING, cka=FALLING_CURVE, labelled={"zero-shot": DROPPING, "probe": RISING})
            for name in "ab"
        )
    )
    (budget,) = bench_predictors(data, draws=10).budgets
    labelled = [scores.rule for scores in budget.rules if scores.labelled]
    assert set(labelled) == {
        f"{what} {name}" for what in ("best layer by", "fall of") for name in ("zero-shot", "probe")
    }
    regrets = [scores.mean_regret.value for scores in budget.rules if scores.labelled]
    assert regrets == sorted(regrets)
    assert [scores.labelled for scores in budget.rules] == sorted(scores.labelled for scores in budget.rules)


def test_ties_take_the_earlier_layer_and_the_first_candidate() -> None:
    level = (70.0,) * 7
    data = zoo(*(entry(name, name, level, cka=LEVEL_CURVE, labelled={"zero-shot": level}) for name in "ab"))
    found = scores_of(data, "best layer by zero-shot")
    assert {outcome.recommended for outcome in found.outcomes} == {(0,)}
    assert value(found.mean_regret) == 0
    # all fractions of the depth have no regret; the first one, the whole model, makes no wrong call either
    assert {each.recommended for each in scores_of(data, "tuned fraction of depth").outcomes} == {(6,)}


def test_a_rule_is_scored_on_the_models_that_have_what_it_reads() -> None:
    data = zoo(entry("a", "a", DROPPING, cka=FALLING_CURVE), entry("b", "b", DROPPING), entry("c", "c", RISING))
    found = bench_predictors(data, draws=10).budgets[0]
    rule = next(scores for scores in found.rules if scores.rule == f"plateau of {CURVE}")
    assert [outcome.model for outcome in rule.outcomes] == ["a"]
    assert f"tuned plateau of {CURVE}" in found.left_out


def test_depths_may_differ() -> None:
    deep = (*RISING, 81.0, 82.0)
    data = zoo(entry("a", "a", DROPPING, cka=FALLING_CURVE), entry("b", "b", deep, cka=(*LEVEL_CURVE, 0.9, 0.91)))
    assert [each.recommended for each in scores_of(data, f"plateau of {CURVE}").outcomes] == [(4,), (8,)]


# ---- intervals --------------------------------------------------------------------------------------------------


def test_families_are_redrawn_whole() -> None:
    """Fifty copies of one model in a family say no more than one does."""
    few = zoo(entry("a0", "a", DROPPING), entry("b0", "b", RISING), entry("c0", "c", RISING))
    copies = [entry(f"{family}{n}", family, scores) for n in range(50) for family, scores in _three_families()]
    one, many = (scores_of(data, "last layer").mean_regret for data in (few, zoo(*copies)))
    assert one == many
    assert (one.lower, one.upper) == (0, 20)
    assert one.value == pytest.approx(20 / 3)


def _three_families() -> list[tuple[str, tuple[float, ...]]]:
    return [("a", DROPPING), ("b", RISING), ("c", RISING)]


def test_intervals_are_those_of_redrawn_models() -> None:
    rng = np.random.default_rng(0)
    drops = rng.random(40) < 0.5
    data = zoo(*(entry(str(n), "only", DROPPING if drop else RISING) for n, drop in enumerate(drops)))
    found = scores_of(data, "last layer").mean_regret
    again = np.random.default_rng(1).choice(20.0 * drops, size=(4000, 40)).mean(axis=1)
    assert found.lower is not None
    assert found.upper is not None
    np.testing.assert_allclose([found.lower, found.upper], np.quantile(again, [0.025, 0.975]), atol=1)


def test_the_same_seed_gives_the_same_table() -> None:
    assert bench_predictors(known_zoo(), draws=50) == bench_predictors(known_zoo(), draws=50)


def test_every_rule_is_scored_on_every_model_of_a_large_zoo() -> None:
    rng = np.random.default_rng(0)
    names = ("self CKA", "effective rank", "mean cosine", "prompt entropy", "curvature", "InfoNCE", "LiDAR", "DiME")
    entries = []
    for number in range(48):
        drop = bool(number % 2)
        metrics = {name: rng.random(9) + 0.1 for name in names}
        scores = (60, 65, 70, 75, 80, 81, 82, 75, 70) if drop else (60, 65, 70, 75, 80, 81, 82, 83, 84)
        entries.append(
            entry(
                str(number),
                f"family {number % 6}",
                scores,
                metrics=metrics,
                labelled={"zero-shot": rng.random(9) + 0.1},
            )
        )
    (budget,) = bench_predictors(zoo(*entries), draws=50).budgets
    assert len(budget.rules) > 20
    assert {len(scores.outcomes) for scores in budget.rules} == {48}


# ---- bad input --------------------------------------------------------------------------------------------------


def test_what_cannot_be_benched_is_refused() -> None:
    with pytest.raises(DataError, match="expected budgets among gentle, got long"):
        bench_predictors(known_zoo(), budgets=["long"])
    with pytest.raises(DataError, match="expected at least one draw, got 0"):
        bench_predictors(known_zoo(), draws=0)
    with pytest.raises(DataError, match="expected a confidence level"):
        bench_predictors(known_zoo(), level=1.5)


def test_a_tuned_rule_asks_for_other_families() -> None:
    models = known(entry("a", "a", cka=LEVEL_CURVE))
    for rule in (fall(CURVE), logistic((CURVE,))):
        with pytest.raises(DataError, match=f"expected models of other families to tune '{rule.name}' on, got none"):
            leave_one_family_out(rule, models)
