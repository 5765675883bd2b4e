"""Score rules on the models of a zoo, each on families that it was not tuned on: fitted rules, rivals, and `predict`'s.

Rivals are criteria of other authors for choosing a layer: recorded readings, and rules on them. Recipes do not
compute them; `benchmarks/rival_readings.py` does, except for the last three. The parameters of `predict`'s rules
are in `prediction/rules.json`, written by `benchmarks/fit_rules.py`. Scores are means over models, with bootstrap
intervals over clusters of similar models. Knows numbers only.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.context import current, report
from layerprobe.errors import DataError
from layerprobe.lab.dropbench.results import Bench, BudgetScores, Contestant, Needs, Statistic, StrategyOutcome
from layerprobe.lab.dropbench.strategies import Answer, Recorded, Strategy, training_strategies
from layerprobe.lab.dropbench.zoo import (
    OTHER_SEED,
    Zoo,
    ZooEntry,
    chances_of_best,
    chances_within,
    cost_share,
    distances,
    item_variance,
    read_zoo,
    regrets,
    seed_variance,
    truth,
)
from layerprobe.names import counted
from layerprobe.prediction.rule import (
    KnownDrop,
    ModelCurves,
    Predictor,
    ReadingPredictor,
    Rule,
    fitted,
    fixed_fraction,
    leave_one_family_out,
    nothing_to_choose,
    obstacle,
)
from layerprobe.prediction.rules import CONTROL, depth_rules, rules_for
from layerprobe.readings.reading import CKA, READINGS, ZERO_SHOT, Reading, cka_with, reading_of
from layerprobe.similarity.checks import Array


def _rival(description: str, direction: Literal[1, -1, None], source: str, **more: Any) -> Reading:
    return Reading(description=description, direction=direction, compute=lambda _: None, source=source, **more)


RIVALS = {
    "dataset entropy": _rival("entropy of the cosines of texts", None, "2502.02013"),
    "LiDAR": _rival("rank of texts against copies", 1, "2312.04000", needs="views"),
    "DiME": _rival("information that two copies share", 1, "2301.08164", needs="views"),
    "LOES without labels": _rival("isotropy of the principal axes", 1, "2605.23033"),
    "alpha-ReQ": _rival("how far the decay of eigenvalues is from 1", -1, "Agrawal et al. 2022"),
    "subspace displacement": _rival("distance from the first layer", 1, "2605.12714"),
    "neighbour retention": _rival("neighbours kept", 1, "2605.12714", maximum=1.0),
    "LogME": _rival("evidence of a linear model", 1, "2102.11005", needs="labels"),
    "LOES": _rival("ridge error + 1 - isotropy", -1, "2605.23033", needs="labels"),
    "KITE": _rival("CKA with targets over CKA with random features", 1, "2405.01603", needs="labels"),
    "LinMSE": _rival("minus the error of a linear model", 1, "2312.00656", needs="labels"),
    "kNN": _rival("score of the three nearest training items", 1, "2503.18528", needs="labels"),
    "contrastive loss": _rival("loss before training", -1, "2410.14578", needs="labels"),
}
"""Rival readings by name; sources are on arXiv unless stated otherwise."""


def published_rules(readings: Mapping[str, Reading]) -> list[Rule]:
    """Return the two rules of L3Prune and that of TransformerRanker; none of them selects the embedding output."""

    def lowest(half: Literal[0, 1]) -> Predictor:
        """Select the lowest loss in a half of the blocks, divided as in L3Prune's code."""

        def layers(losses: Array) -> NDArray[np.intp]:
            middle = max((losses.shape[-1] - 1) // 2, 1)
            first, stop = ((losses.shape[-1] - 1) // 2 + 1, None) if half else (1, middle + 1)
            return first + losses[..., first:stop].argmin(axis=-1)

        return ReadingPredictor(name="contrastive loss", layers=layers)

    ranked = ReadingPredictor(name="LogME", layers=lambda scores: 1 + np.round(scores[..., 1:], 4).argmax(axis=-1))
    rules = (
        ("L3Prune small", "contrastive loss", lowest(0), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("L3Prune large", "contrastive loss", lowest(1), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("TransformerRanker bestlayer", "LogME", ranked, "Garbaciauskas et al. 2024 (Findings of ACL, 757)"),
    )
    return [
        Rule(name=name, curves=(curve,), make=lambda predict=predict: predict, labelled=True, source=source)
        for name, curve, predict, source in rules
        if curve in readings
    ]


DRAWS = 2000
FEWEST_FAMILIES = 4
"""Fewest families to resample: percentiles over two or three clusters are no interval."""


def bench_predictors(
    zoo: Zoo,
    *,
    rules: Sequence[Rule] | None = None,
    strategies: Sequence[Strategy] | None = None,
    budgets: Sequence[str] = (),
    draws: int = DRAWS,
) -> Bench:
    """Score rules on a zoo under each fine-tuning budget, leave-one-family-out.

    For each family, a rule is fitted to the models of the other families and predicts those of this one.
    A rule predicts no drop for a model without its readings: all rules are scored on the same models. Intervals are
    percentiles of a bootstrap over families, whose models are similar; with fewer than four families,
    encoders are resampled, each with its entries on all tasks. Percentiles are expanded for the number of clusters, see
    `expanded`. Rules are not refitted, so the intervals hold for these fitted rules.

    By default all rules that the entries allow are scored, under all budgets of the zoo, with the
    same draws. Strategies that train are replayed on the recorded runs, all by default, see `score_strategies`.

    Raises:
        DataError: If no model has the budget, or there is nothing to draw.
    """
    level = current().level
    if draws < 1:
        raise DataError(f"expected at least one draw, got {draws}")
    present = list(dict.fromkeys(name for entry in zoo.entries for name in entry.budgets))
    if unknown := [name for name in budgets if name not in present]:
        raise DataError(f"expected budgets among {', '.join(present)}, got {', '.join(unknown)}")
    if rules is None:
        readings = zoo_readings(zoo.entries)
        rules = rules_for(readings, published_rules(readings))
    strategies = training_strategies() if strategies is None else strategies
    return Bench(
        provenance=zoo.provenance,
        families=tuple(dict.fromkeys(entry.family for entry in zoo.entries)),
        level=level,
        draws=draws,
        budgets=tuple(
            _scored(zoo.entries, name, rules, strategies, level=level, draws=draws)
            for name in dict.fromkeys(budgets or present)
        ),
    )


def zoo_readings(entries: Iterable[ZooEntry]) -> dict[str, Reading]:
    """Return the readings with numbers in at least one entry, by name.

    The direction of an unregistered reading is unknown.
    """
    readings: dict[str, Reading] = {}
    for entry in entries:
        for name in entry.curves:
            needs: Literal["labels", "embeddings"] = "labels" if name in entry.labelled else "embeddings"
            unknown = Reading(description=name, direction=None, needs=needs, compute=lambda source: None)
            readings[name] = _known(name) or unknown
    return readings


def _known(name: str) -> Reading | None:
    return RIVALS.get(name) or (reading_of(name) if name in READINGS or cka_with("") in name else None)


def known_drops(entries: Iterable[ZooEntry], budget: str) -> list[KnownDrop]:
    """Return the models fine-tuned under a budget, with their drops and regrets, to fit and score rules on."""
    return [
        KnownDrop(
            name=entry.name,
            family=entry.family,
            model=ModelCurves(n_blocks=entry.n_blocks, curves=entry.curves),
            truth=truth(entry.budgets[budget]),
            regrets=regrets(entry.budgets[budget]),
        )
        for entry in entries
        if budget in entry.budgets
    ]


def _scored(
    entries: Sequence[ZooEntry],
    budget: str,
    rules: Sequence[Rule],
    strategies: Sequence[Strategy],
    *,
    level: float,
    draws: int,
) -> BudgetScores:
    models = known_drops(entries, budget)
    present = [entry for entry in entries if budget in entry.budgets]
    clusters, clustered_by = _clusters(present)
    counts = np.vstack([np.ones(len(models)), redrawn(clusters, draws=draws, seed=0)])
    redraws = Redraws(counts=counts, level=expanded(level, len(set(clusters))))
    scored, left_out, played = [], dict[str, str](), list[Strategy]()
    for rule in rules:
        reason = obstacle(rule, models)
        if reason is None:
            layers = leave_one_family_out(rule, models)
            scored.append(_rule_scores(rule, models, layers, redraws))
            played.append(_as_strategy(rule, models, layers))
        else:
            left_out[rule.name] = reason
    recorded = [Recorded(entry=entry, tuned=entry.budgets[budget]) for entry in present]
    scored.sort(key=lambda row: (row.labelled, row.mean_regret.value))
    return BudgetScores(
        budget=budget,
        clusters=clustered_by,
        truths={model.name: model.truth for model in models},
        rules=tuple(scored),
        left_out=left_out,
        strategies=score_strategies(recorded, [*played, *strategies], redraws),
    )


def _clusters(entries: Sequence[ZooEntry]) -> tuple[list[str], str]:
    """Return each entry's resampling cluster and its name: the family, or the encoder if families are few."""
    families = [entry.family for entry in entries]
    if len(set(families)) >= FEWEST_FAMILIES:
        return families, "families"
    encoders = [entry.name.removesuffix(f"-{entry.task}") for entry in entries]
    n = len(set(encoders))
    return encoders, "models" if n == len(entries) else f"{counted(n, 'encoder')} ({len(entries)} entries)"


def _as_strategy(rule: Rule, models: Sequence[KnownDrop], layers: Sequence[tuple[int, ...]]) -> Strategy:
    """Return a rule as a strategy that trains nothing and skips models whose readings it lacks."""
    read = zip(models, layers, strict=True)
    chosen = {case.name: of if rule.reads(case.model) else () for case, of in read}
    sources = dict.fromkeys(known.source for known in map(_known, rule.curves) if known is not None)
    return Strategy(
        name=rule.name,
        source=rule.source or "; ".join(filter(None, sources)),
        needs="labels" if rule.labelled else "nothing" if rule.source == CONTROL else "readings",
        choices=lambda model: (Answer(layer=layer) for layer in chosen[model.entry.name]),
    )


def _testing_cost(layer: int, model: ModelCurves) -> float:
    """Return the cost of testing a call by fine-tuning two layers, as a share of the full sweep.

    The layers are the predicted one and the last one. If the last one is predicted, the other is the best zero-shot
    layer, if that is known and not the last one, or else at three quarters of the depth.
    """
    n_blocks, rivals = model.n_blocks, [layer]
    if ZERO_SHOT in model.curves:
        rivals.append(int(np.argmax(model.curves[ZERO_SHOT].values)))
    rivals += [fixed_fraction(n_blocks), n_blocks - 1]
    earlier = next(rival for rival in rivals if rival < n_blocks)
    return cost_share((earlier, n_blocks), n_blocks)


def _rule_scores(
    rule: Rule, models: Sequence[KnownDrop], layers: Sequence[tuple[int, ...]], redraws: Redraws
) -> Contestant:
    """Return the scores of a rule that selects one of these layers for each model, all equally likely."""

    def expected(of: Callable[[int, KnownDrop], float]) -> Array:
        """Return (models,) means over the layers."""
        return np.array(
            [fmean(of(layer, case) for layer in choice) for case, choice in zip(models, layers, strict=True)]
        )

    drops = np.array([case.truth.drop for case in models])
    called = expected(lambda layer, case: layer < case.model.n_blocks)
    regrets = expected(lambda layer, case: float(case.regrets[layer]))
    errors = expected(lambda layer, case: 0 if case.truth.onset is None else abs(layer + 1 - case.truth.onset))
    hits, n_called, n_drops = redraws.total(called * drops), redraws.total(called), redraws.total(drops)
    values = {
        "labelled": rule.labelled,
        "parameters": rule.parameters,
        "missing": sum(not rule.reads(case.model) for case in models),
        "precision": redraws.score(hits, n_called),
        "recall": redraws.score(hits, n_drops),
        "f1": redraws.score(2 * hits, n_called + n_drops),
        "onset_error": redraws.score(redraws.total(errors), n_drops),
        "mean_regret": redraws.mean(regrets),
        "median_regret": redraws.quantile(regrets),
        "cost": redraws.mean(expected(lambda layer, case: _testing_cost(layer, case.model))),
        "layers": {case.name: chosen for case, chosen in zip(models, layers, strict=True)},
    }
    return Contestant(kind="rule", name=rule.name, values=values)


REFERENCE = cka_with(OTHER_SEED)
"""Name of CKA with an MLM model with other initial weights in the zoos, as every reference is."""
BUDGET = "converged"
"""Budget that rules are tuned for; it is closer to the paper's than the gentle one."""


def tuned_rules() -> list[Rule]:
    """Return the rules as `predict` uses them, and controls that read nothing, with no parameters left to fit.

    `bench_predictors` then scores them on models that had no part in the tuning, in any family.
    """
    models = known_models(BUDGET)

    def fix_rule(rule: Rule) -> Rule:
        predict = fitted(rule, models)
        curves = tuple(REFERENCE if name == CKA else name for name in rule.curves)
        return replace(
            rule,
            curves=curves,
            make=lambda: lambda model: predict(read_like_predict(model)),
            choose=nothing_to_choose,
            parameters=0,
        )

    return [fix_rule(rule) for rule in (*depth_rules(), *fittable_rules())]


def unfitted_rules(entries: Sequence[ZooEntry]) -> list[Rule]:
    """Return parameter-free rules on readings that these models have and the tuning zoos lack."""
    tuned_on = {name for entry in read_zoo().entries for name in entry.curves}
    new = {name: reading for name, reading in zoo_readings(entries).items() if name not in tuned_on}
    return [rule for rule in rules_for(new, published_rules(new)) if rule.curves and not rule.parameters]


@functools.cache
def fittable_rules() -> list[Rule]:
    """Return the rules that read one model and one reference."""
    models = known_models(BUDGET)
    readings = {name.replace(REFERENCE, CKA): reading for name, reading in zoo_readings(read_zoo().entries).items()}
    rules = rules_for({name: reading for name, reading in readings.items() if not name.startswith(cka_with(""))})
    return [rule for rule in rules if rule.curves and obstacle(rule, models) is None]


@functools.cache
def known_models(budget: str) -> list[KnownDrop]:
    """Return the models of layerprobe's zoos, as `predict` reads them, with their drops."""
    models = known_drops(read_zoo().entries, budget)
    return [replace(case, model=read_like_predict(case.model)) for case in models]


def read_like_predict(model: ModelCurves) -> ModelCurves:
    """Return a zoo's model as `predict` sees one: with one reference, whose CKA has no suffix."""
    curves = {name.replace(REFERENCE, CKA): curve for name, curve in model.curves.items()}
    return ModelCurves(
        n_blocks=model.n_blocks,
        curves={name: curve for name, curve in curves.items() if not name.startswith(cka_with(""))},
    )


ROUNDING = 1e-9


def redrawn(clusters: Sequence[str], *, draws: int, seed: int) -> Array:
    """Return (draws, models): how often resampling clusters draws each model; no draws for a single cluster."""
    names = list(dict.fromkeys(clusters))
    n, size = len(names), draws if len(names) > 1 else 0
    drawn = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=size)
    return drawn[:, [names.index(cluster) for cluster in clusters]].astype(np.float64)


def expanded(level: float, clusters: int) -> float:
    """Return the percentile level at which a bootstrap over few clusters covers a mean as often as `level` says.

    A bootstrap of n clusters is narrower than Student's t by its quantile and by sqrt(1 - 1 / n): for six normal ones,
    95 % percentiles cover their mean in 86 %, those for this level in 93 %; for skewed ones in 80 and 87 %.

    Source: Hesterberg 2015 (The American Statistician 69), expanded percentiles.
    """
    if clusters < 2:
        return level
    quantile = stats.t.ppf((1 + level) / 2, clusters - 1) * np.sqrt(clusters / (clusters - 1))
    return float(2 * stats.norm.cdf(quantile) - 1)


def ratio(above: Array, below: Array) -> Array:
    """Return above / below, NaN if undefined."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def weighted_quantiles(values: Array, counts: Array, share: float = 0.5) -> Array:
    """Return a quantile, by default the median, of values weighted by each row of (draws, values) counts.

    Between two values that split the counts equally it is their mean; NaN if all counts are 0.
    """
    order = np.argsort(values, kind="stable")
    ordered, totals = values[order], np.cumsum(counts[:, order], axis=1)
    part = totals[:, -1:] * share
    low, high = (totals >= part - ROUNDING).argmax(axis=1), (totals > part + ROUNDING).argmax(axis=1)
    return np.where(totals[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Redraws:
    """Bootstrap weights of models, and the statistics computed with them."""

    counts: Array
    """How often each model counts, (draws, models); the first row is all ones."""
    level: float
    """Confidence level of the intervals."""

    def of(self, rows: Sequence[int]) -> Redraws:
        """Return the redraws of some models."""
        return Redraws(counts=self.counts[:, rows], level=self.level)

    def total(self, values: Iterable[float] | Array) -> Array:
        """Return the sum of (models,) values, each as often as its model counts, (draws,)."""
        return self.counts @ np.asarray(values if isinstance(values, np.ndarray) else list(values))

    def score(self, above: Array, below: Array) -> Statistic | None:
        """Return the score of (draws,) ratios, see `statistic`."""
        return self.statistic(ratio(above, below))

    def mean(self, values: Iterable[float] | Array) -> Statistic:
        """Return the mean of (models,) values."""
        mean = self.score(self.total(values), self.counts.sum(axis=1))
        assert mean is not None  # there are models, and each counts
        return mean

    def mean_of_some(self, values: Sequence[float | None]) -> Statistic | None:
        """Return the mean over the models with a value; None without any."""
        rows = [row for row, value in enumerate(values) if value is not None]
        numbers = np.array([values[row] for row in rows], dtype=np.float64)
        some = self.of(rows)
        return some.score(some.total(numbers), some.counts.sum(axis=1)) if rows else None

    def quantile(self, values: Array, share: float = 0.5) -> Statistic:
        """Return a quantile of (models,) values, by default the median."""
        quantile = self.statistic(weighted_quantiles(values, self.counts, share))
        assert quantile is not None
        return quantile

    def statistic(self, values: Array) -> Statistic | None:
        """Return the first of (draws,) values with percentiles of the others; None if undefined."""
        value, redrawn = float(values[0]), values[1:][np.isfinite(values[1:])]
        if np.isnan(value):
            return None
        if not len(redrawn):
            return Statistic(value=value, lower=None, upper=None)
        lower, upper = np.quantile(redrawn, ((1 - self.level) / 2, (1 + self.level) / 2))
        return Statistic(value=value, lower=float(lower), upper=float(upper))


def score_strategies(
    models: Sequence[Recorded], strategies: Sequence[Strategy], redraws: Redraws
) -> tuple[Contestant, ...]:
    """Score each strategy on the models with the data it needs; without any such model it is omitted.

    Args:
        models: Models with their recorded runs.
        strategies: Ways to choose a layer.
        redraws: Redraws of the models.

    Returns:
        Rows by ascending cost; ties by mean distance to the best layer.
    """
    scored = []
    for number, strategy in enumerate(strategies):
        played = [(model, strategy.choose(model)) for model in models]
        rows = [row for row, (_, choices) in enumerate(played) if choices]
        if rows:
            outcomes = [_outcome(*played[row]) for row in rows]
            tasks = [models[row].entry.task for row in rows]
            fresh = all(len(choice.seeds) < len(model.tuned.seeds) for model, choices in played for choice in choices)
            looked: list[Needs | None] = [strategy.needs or choice.needs for _, choices in played for choice in choices]
            needs = max((needs for needs in looked if needs is not None), key=get_args(Needs).index)
            scored.append(_scores(strategy, needs, outcomes, tasks, redraws.of(rows), fresh=fresh))
        report("strategies", number + 1, len(strategies))
    return tuple(sorted(scored, key=lambda row: (row.cost.value, row.mean.value)))


def _outcome(model: Recorded, choices: Sequence[Answer]) -> StrategyOutcome:
    tuned = model.tuned
    every = range(len(tuned.seeds))
    # scored on unread seeds, or on all if the choice read all
    seeds = [[seed for seed in every if seed not in choice.seeds] or list(every) for choice in choices]
    of_items = [item_variance(tuned, choice.layer, _best(model, on)) for choice, on in zip(choices, seeds, strict=True)]
    of_one = seed_variance(tuned)
    of_seeds = [
        None if of_one is None else 2 * of_one / len(on) * (choice.layer != _best(model, on))
        for choice, on in zip(choices, seeds, strict=True)
    ]
    stated = [choice.stated for choice in choices if choice.stated is not None]
    named = [choice.sufficient for choice in choices if choice.sufficient is not None]
    return StrategyOutcome(
        model=model.entry.name,
        family=model.entry.family,
        layers=tuple(choice.layer for choice in choices),
        distances=tuple(float(distances(tuned, on)[choice.layer]) for choice, on in zip(choices, seeds, strict=True)),
        regrets=tuple(float(regrets(tuned, on)[choice.layer]) for choice, on in zip(choices, seeds, strict=True)),
        costs=tuple(choice.cost for choice in choices),
        items_error=_mean_error(of_items),
        seeds_error=_mean_error(of_seeds),
        coverage=_mean(chances_of_best(tuned)[list(layers)].sum() for layers in stated) if stated else None,
        set_size=_mean(len(layers) for layers in stated) if stated else None,
        sufficient=_mean(chances_within(tuned)[layer] for layer in named) if named else None,
    )


def _best(model: Recorded, seeds: Sequence[int]) -> int:
    return int(distances(model.tuned, seeds).argmin())


def _mean_error(variances: Sequence[float | None]) -> float | None:
    errors = [math.sqrt(variance) for variance in variances if variance is not None]
    return _mean(errors) if len(errors) == len(variances) else None


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _scores(
    strategy: Strategy,
    needs: Needs,
    outcomes: Sequence[StrategyOutcome],
    tasks: Sequence[str],
    redraws: Redraws,
    *,
    fresh: bool,
) -> Contestant:
    # one row per choice; those of a model share its weight
    weights = np.concatenate([np.full(len(outcome.layers), 1 / len(outcome.layers)) for outcome in outcomes])
    rows = np.repeat(np.arange(len(outcomes)), [len(outcome.layers) for outcome in outcomes])
    choices = Redraws(counts=redraws.counts[:, rows] * weights, level=redraws.level)
    lost = np.concatenate([outcome.distances for outcome in outcomes])
    sizes = [outcome.set_size for outcome in outcomes if outcome.set_size is not None]
    values = {
        "source": strategy.source,
        "needs": needs,
        "fresh": fresh,
        "mean": redraws.mean(_mean(outcome.distances) for outcome in outcomes),
        "median": choices.quantile(lost),
        "ninth": choices.quantile(lost, 0.9),
        "worst": float(lost.max()),
        "regret": redraws.mean(_mean(outcome.regrets) for outcome in outcomes),
        "items_error": _error_of_mean([outcome.items_error for outcome in outcomes], tasks),
        "seeds_error": _error_of_mean([outcome.seeds_error for outcome in outcomes], range(len(outcomes))),
        "cost": redraws.mean(_mean(outcome.costs) for outcome in outcomes),
        "coverage": redraws.mean_of_some([outcome.coverage for outcome in outcomes]),
        "set_size": _mean(sizes) if sizes else None,
        "sufficient": redraws.mean_of_some([outcome.sufficient for outcome in outcomes]),
        "outcomes": tuple(outcomes),
    }
    return Contestant(kind="strategy", name=strategy.name, values=values)


def _error_of_mean(errors: Sequence[float | None], groups: Iterable[object]) -> float | None:
    """Return the standard error of a mean whose errors are correlated within groups and independent between them."""
    sums: defaultdict[object, float] = defaultdict(float)
    for error, group in zip(errors, groups, strict=True):
        if error is None:
            return None
        sums[group] += error
    return math.sqrt(sum(total**2 for total in sums.values())) / len(errors)
