"""What strategies lose and cost over models, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from layerprobe.lab.dropbench.bench import (
    Redraws,
    bench_predictors,
    expanded,
    redrawn,
    score_strategies,
    weighted_quantiles,
)
from layerprobe.lab.dropbench.results import Contestant, shown_strategies, worth_printing
from layerprobe.lab.dropbench.strategies import Answer, Recorded, Strategy, find, scan, sweep
from layerprobe.lab.dropbench.zoo import chances_of_best, chances_within, item_variance, seed_variance

from .zoos import DROPPING, FALLING_CURVE, RISING, recorded, zoo


def taking(*choices: Answer, name: str = "fixed") -> Strategy:
    return Strategy(name=name, source="hand", choices=lambda model: choices)


@pytest.fixture(scope="module")
def models() -> list[Recorded]:
    made = [recorded(f"m{number}", "ab"[number % 2], DROPPING, seed=number) for number in range(4)]
    return [Recorded(entry=each, tuned=each.budgets["converged"]) for each in made]


def played(models: list[Recorded], strategy: Strategy, counts: np.ndarray | None = None) -> Contestant:
    redraws = Redraws(counts=np.ones((1, len(models))) if counts is None else counts, level=0.95)
    (scores,) = score_strategies(models, [strategy], redraws)
    return scores


def test_regret_is_of_the_seeds_that_were_not_looked_at(models: list[Recorded]) -> None:
    scores = played(models, taking(Answer(layer=3, cost=0.1, seeds=(0,))))
    lost = []
    for model in models:
        means = np.array(model.tuned.test)[:, 1:].mean(axis=1)
        lost.append(means.max() - means[3])
    assert [each.distances for each in scores.outcomes] == [(pytest.approx(value),) for value in lost]
    assert scores.mean.value == pytest.approx(np.mean(lost))
    assert scores.median.value == pytest.approx(np.median(lost))
    assert scores.worst == pytest.approx(max(lost))
    assert scores.fresh
    assert not played(models, taking(Answer(layer=3, cost=0.1, seeds=(0, 1, 2)))).fresh


def test_cross_fitted_regret_is_against_what_others_choose(models: list[Recorded]) -> None:
    """By hand: each seed on each half, against the layer that the other seeds choose on the other half."""
    scores = played(models, taking(Answer(layer=3, cost=0.0)))
    for model, outcome in zip(models, scores.outcomes, strict=True):
        halves, lost = [np.array(half) for half in model.tuned.halves], []
        for choosing, scoring in (halves, halves[::-1]):
            for seed in range(3):
                chosen = int(np.delete(choosing, seed, axis=1).mean(axis=1).argmax())
                lost.append(scoring[chosen, seed] - scoring[3, seed])
        assert outcome.regrets == (pytest.approx(np.mean(lost)),)


def test_choices_are_equally_likely(models: list[Recorded]) -> None:
    every = played(models, taking(*(Answer(layer=layer, cost=layer / 6) for layer in range(7))))
    each = [played(models, taking(Answer(layer=layer, cost=0.0))).mean.value for layer in range(7)]
    assert every.mean.value == pytest.approx(np.mean(each))
    assert every.cost.value == pytest.approx(0.5)
    lost = np.concatenate([outcome.distances for outcome in every.outcomes])
    assert every.median.value == pytest.approx(np.median(lost))


def test_errors_of_the_mean(models: list[Recorded]) -> None:
    """Seeds are the models' own; of models with one task other items move all alike, at most."""
    scores = played(models, taking(Answer(layer=3, cost=0.0)))
    of_items, of_seeds = [], []
    for model in models:
        best = int(np.array(model.tuned.test).mean(axis=1).argmax())
        of_items.append(math.sqrt(item_variance(model.tuned, 3, best) or 0))
        of_seeds.append(2 * (seed_variance(model.tuned) or 0) / 3 * (best != 3))
    assert scores.items_error == pytest.approx(np.mean(of_items))
    assert scores.seeds_error == pytest.approx(math.sqrt(sum(of_seeds)) / 4)
    others = [replace(model, entry=replace(model.entry, task=str(k))) for k, model in enumerate(models)]
    apart = played(others, taking(Answer(layer=3, cost=0.0)))
    assert apart.items_error == pytest.approx(math.sqrt(sum(error**2 for error in of_items)) / 4)


def test_a_stated_set_holds_the_best_layer_as_often_as_the_errors_allow(models: list[Recorded]) -> None:
    scores = played(models, taking(Answer(layer=4, cost=0.0, stated=(3, 4))))
    chances = [chances_of_best(model.tuned)[[3, 4]].sum() for model in models]
    assert scores.coverage is not None
    assert scores.coverage.value == pytest.approx(np.mean(chances))
    assert scores.set_size == 2
    everything = played(models, taking(Answer(layer=4, cost=0.0, stated=tuple(range(7)))))
    assert everything.coverage is not None
    assert everything.coverage.value == 1
    assert played(models, taking(Answer(layer=4, cost=0.0))).coverage is None
    enough = played(models, taking(Answer(layer=4, cost=0.0, sufficient=4), Answer(layer=4, cost=0.0, sufficient=0)))
    assert enough.sufficient is not None
    expected = np.mean([chances_within(model.tuned)[[0, 4]].mean() for model in models])
    assert enough.sufficient.value == pytest.approx(expected)


def test_families_are_redrawn(models: list[Recorded]) -> None:
    counts = np.array([[1, 1, 1, 1], [2, 0, 2, 0], [0, 2, 0, 2]], dtype=float)
    scores = played(models, taking(Answer(layer=3, cost=0.0)), counts)
    lost = [outcome.distances[0] for outcome in scores.outcomes]
    ends = sorted([np.mean(lost[::2]), np.mean(lost[1::2])])
    assert scores.mean.lower == pytest.approx(np.quantile(ends, 0.025))
    assert scores.mean.upper == pytest.approx(np.quantile(ends, 0.975))


def test_who_has_no_model_is_left_out_and_the_cheapest_comes_first(models: list[Recorded]) -> None:
    dear, none = taking(Answer(layer=4, cost=0.5), name="dear"), taking(name="none")
    cheap = taking(Answer(layer=0, cost=0.1), name="cheap")
    scored = score_strategies(models, [dear, none, cheap], Redraws(counts=np.ones((1, 4)), level=0.95))
    assert [each.name for each in scored] == ["cheap", "dear"]


def test_quantiles_weigh_values() -> None:
    values = np.array([3.0, 1.0, 2.0])
    assert weighted_quantiles(values, np.array([[1.0, 1.0, 1.0]])).tolist() == [2.0]
    assert np.isnan(weighted_quantiles(values, np.array([[0.0, 0.0, 0.0]]))).all()
    assert weighted_quantiles(values, np.array([[0.5, 0.5, 0.0]])).tolist() == [2.0]
    assert weighted_quantiles(values, np.array([[0.1] * 3]), 0.9).tolist() == [3.0]
    tenths = weighted_quantiles(np.arange(10.0), np.full((1, 10), 1 / 3), 0.9)
    assert tenths.tolist() == [8.5]


def test_the_bench_has_rules_and_strategies_side_by_side() -> None:
    cka = {"cka": FALLING_CURVE}
    made = [recorded(f"m{k}", "abc"[k % 3], (DROPPING, RISING)[k % 2], seed=k, **cka) for k in range(6)]
    chosen = [find(0.05), scan("falling"), sweep(3)]
    (budget,) = bench_predictors(zoo(*made), strategies=chosen, draws=20).budgets
    names = {each.name: each for each in budget.strategies}
    assert {"last layer", "plateau of CKA, twin", "find, 5 %", "scan, falling", "sweep, 3 seeds"} <= names.keys()
    assert names["last layer"].needs == "nothing"
    assert names["best rule of the other families"].needs == "readings"
    assert names["plateau of CKA, twin"].source == "Rep, Dukic and Snajder 2024 (2402.13130)"
    assert names["fall of CKA, twin"].source.startswith("Kornblith et al. 2019")
    last = next(rule for rule in budget.rules if rule.name == "last layer")
    assert names["last layer"].regret.value == pytest.approx(last.mean_regret.value)
    shown = {each.name for each in shown_strategies(budget)}
    assert {"last layer", "plateau of CKA, twin", "find, 5 %"} <= shown
    assert "tuned plateau of CKA, twin" not in shown


def test_at_most_fifteen_rules_are_worth_printing() -> None:
    references = ["mlm twin, same seed", "mlm twin, other seed"]
    names = [f"{rule} of CKA, {reference}" for reference in references for rule in ("plateau", "fall", "tuned plateau")]
    names += ["last layer", "fall of InfoNCE", "fall of LiDAR", "best layer by kNN"]
    assert worth_printing(names) == [
        "last layer",
        "plateau of CKA, mlm twin, other seed",
        "fall of CKA, mlm twin, other seed",
        "fall of InfoNCE",
        "best layer by kNN",
    ]
    assert worth_printing(["plateau of CKA", "fall of CKA"]) == ["plateau of CKA", "fall of CKA"]


def test_many_clusters_need_nothing_and_one_has_nothing() -> None:
    assert expanded(0.95, 10**6) == pytest.approx(0.95, abs=1e-5)
    assert expanded(0.95, 1) == 0.95
    levels = [expanded(0.95, n) for n in (4, 6, 20)]
    assert levels == sorted(levels, reverse=True)
    assert levels == pytest.approx([0.99976, 0.99514, 0.96824], abs=1e-5)


def test_of_normal_values_the_ends_are_those_of_student() -> None:
    """Percentiles of a bootstrap are those of a normal distribution of variance s^2 (n - 1) / n / n, nearly."""
    n, level = 12, 0.9
    ends = stats.norm.interval(expanded(level, n), scale=np.sqrt((n - 1) / n / n))
    assert ends == pytest.approx(stats.t.interval(level, n - 1, scale=1 / np.sqrt(n)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "skewed", "least"), [(4, False, 0.85), (6, False, 0.92), (20, False, 0.94), (6, True, 0.85), (20, True, 0.91)]
)
def test_a_mean_is_held(n: int, skewed: bool, least: float) -> None:
    """As the rules of entry say; plain percentiles hold it less often in each case."""
    rng, names = np.random.default_rng(0), [str(name) for name in range(n)]
    counts = redrawn(names, draws=2000, seed=0)
    held = np.zeros(2)
    for _ in range(2000):
        values = rng.exponential(size=n) - 1 if skewed else rng.standard_normal(n)
        means = counts @ values / n
        for number, level in enumerate((0.95, expanded(0.95, n))):
            lower, upper = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
            held[number] += lower <= 0 <= upper
    plain, wider = held / 2000
    assert plain < wider
    assert wider >= least
