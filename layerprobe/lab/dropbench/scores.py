"""Scores over models, with bootstrap intervals over clusters of similar models. Knows numbers only.

Strategies replayed on recorded runs get a regret and a cost, see `score_strategies`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.context import report
from layerprobe.lab.dropbench.results import Needs, Row, Statistic, StrategyOutcome
from layerprobe.lab.dropbench.strategies import Answer, Recorded, Strategy
from layerprobe.lab.dropbench.truth import (
    chances_of_best,
    chances_within,
    distances,
    item_variance,
    regrets,
    seed_variance,
)

Array = NDArray[np.float64]
ROUNDING = 1e-9


# ---- resampled models ----------------------------------------------------------------------------------------------


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
    ratios: Array = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return ratios


def weighted_quantiles(values: Array, counts: Array, share: float = 0.5) -> Array:
    """Return a quantile, by default the median, of values weighted by each row of (draws, values) counts.

    Between two values that split the counts equally it is their mean; NaN if all counts are 0.
    """
    order = np.argsort(values, kind="stable")
    ordered, totals = values[order], np.cumsum(counts[:, order], axis=1)
    part = totals[:, -1:] * share
    low, high = (totals >= part - ROUNDING).argmax(axis=1), (totals > part + ROUNDING).argmax(axis=1)
    quantiles: Array = np.where(totals[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)
    return quantiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Redraws:
    """Bootstrap weights of models, and the statistics computed with them."""

    counts: Array
    """How often each model counts, (draws, models); the first row is all ones."""
    level: float
    """Confidence level of the intervals."""

    def of(self, rows: Sequence[int]) -> "Redraws":
        """Return the redraws of some models."""
        return Redraws(counts=self.counts[:, rows], level=self.level)

    def total(self, values: Iterable[float] | Array) -> Array:
        """Return the sum of (models,) values, each as often as its model counts, (draws,)."""
        totals: Array = self.counts @ np.asarray(values if isinstance(values, np.ndarray) else list(values))
        return totals

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


# ---- strategies ----------------------------------------------------------------------------------------------------


def score_strategies(models: Sequence[Recorded], strategies: Sequence[Strategy], redraws: Redraws) -> tuple[Row, ...]:
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
        played = [(model, list(strategy.choose(model))) for model in models]
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
) -> Row:
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
    return Row(kind="strategy", name=strategy.name, values=values)


def _error_of_mean(errors: Sequence[float | None], groups: Iterable[object]) -> float | None:
    """Return the standard error of a mean whose errors are correlated within groups and independent between them."""
    sums: defaultdict[object, float] = defaultdict(float)
    for error, group in zip(errors, groups, strict=True):
        if error is None:
            return None
        sums[group] += error
    return math.sqrt(sum(total**2 for total in sums.values())) / len(errors)
