"""Strategies played on recorded runs -> the regret and cost of each. Knows numbers only."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.context import report
from layerprobe.lab.dropbench.redraws import ROUNDING, ratio, score_of, weighted_quantiles
from layerprobe.lab.dropbench.strategies import Choice, Recorded, Strategy
from layerprobe.lab.dropbench.truth import (
    chances_of_best,
    chances_within,
    distances,
    item_variance,
    regrets,
    seed_variance,
)
from layerprobe.lab.dropbench.values import Needs, Score, StrategyOutcome, StrategyScores
from layerprobe.stats.letters import compact_letters

Array = NDArray[np.float64]


def contest(
    models: Sequence[Recorded], strategies: Sequence[Strategy], counts: Array, *, level: float
) -> tuple[StrategyScores, ...]:
    """Score each strategy on the models that have what it needs; one that no model has is left out.

    Args:
        models: With their records.
        strategies: Ways to choose a layer.
        counts: (draws, models) how often each model counts; once in the first row, then as redrawn.
        level: Confidence level of the intervals.

    Returns:
        The cheapest first, of equals that with the smallest mean distance to the best layer.
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
            scored.append(_scores(strategy, needs, outcomes, tasks, counts[:, rows], fresh=fresh, level=level))
        report("strategies", number + 1, len(strategies))
    return tuple(sorted(scored, key=lambda row: (row.cost.value, row.mean.value)))


def lettered(rows: Sequence[StrategyScores], clusters: Sequence[str], *, level: float) -> dict[str, str]:
    """Return letters by strategy: two rows share one if their mean regrets do not differ, one statement of all pairs.

    Rows differ where |m_r - m_s| > c e_rs, with e_rs the error of the paired difference of their means over clusters
    and c of Student's t with a degree of freedom less than there are clusters, by Bonferroni for all pairs. Six
    families say little so; with quantiles of a bootstrap of six, most contests of equal rows have a pair that differs.

    Args:
        rows: To compare. Those that did not play all models get no letters.
        clusters: What has much in common with each model, such as its family.
        level: Of the statement.
    """
    rows, names = [row for row in rows if len(row.outcomes) == len(clusters)], list(dict.fromkeys(clusters))
    if len(rows) < 2 or len(names) < 2:
        return {}
    lost = np.array([[_mean(outcome.distances) for outcome in row.outcomes] for row in rows])
    means, members = lost.mean(axis=1), np.array([[cluster == name for name in names] for cluster in clusters])
    influences = (lost - means[:, None]) @ members * len(names) / len(clusters)
    covariance = influences @ influences.T / (len(names) * (len(names) - 1))
    variances = np.diagonal(covariance)
    errors = np.sqrt(np.maximum(variances[:, None] + variances - 2 * covariance, 0))
    pairs = len(rows) * (len(rows) - 1) / 2
    width = stats.t.isf((1 - level) / 2 / pairs, len(names) - 1)
    different = np.abs(means[:, None] - means) > np.maximum(width * errors, ROUNDING)
    return dict(zip((row.strategy for row in rows), compact_letters(different, (-means).tolist()), strict=True))


def _outcome(model: Recorded, choices: Sequence[Choice]) -> StrategyOutcome:
    tuned = model.tuned
    seeds = [_scored_on(choice, model) for choice in choices]
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
        distances=tuple(
            _lost(model, choice, distances(tuned, on), on) for choice, on in zip(choices, seeds, strict=True)
        ),
        regrets=tuple(_lost(model, choice, regrets(tuned, on), on) for choice, on in zip(choices, seeds, strict=True)),
        costs=tuple(choice.cost for choice in choices),
        items_error=_mean_error(of_items),
        seeds_error=_mean_error(of_seeds),
        coverage=_mean(chances_of_best(tuned)[list(layers)].sum() for layers in stated) if stated else None,
        set_size=_mean(len(layers) for layers in stated) if stated else None,
        sufficient=_mean(chances_within(tuned)[layer] for layer in named) if named else None,
    )


def _scored_on(choice: Choice, model: Recorded) -> list[int]:
    """Return the positions of the seeds that a choice did not look at; of all where it looked at all."""
    everything = range(len(model.tuned.seeds))
    return [seed for seed in everything if seed not in choice.seeds] or list(everything)


def _best(model: Recorded, seeds: Sequence[int]) -> int:
    return int(distances(model.tuned, seeds).argmin())


def _lost(model: Recorded, choice: Choice, below: Array, seeds: Sequence[int]) -> float:
    """Return the points lost by choosing each layer, adjusted where the model handed over is not TMFT's."""
    lost = float(below[choice.layer])
    if choice.score is not None:
        lost += float(np.array(model.tuned.test)[choice.layer, list(seeds)].mean()) - choice.score
    return lost


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
    counts: Array,
    *,
    fresh: bool,
    level: float,
) -> StrategyScores:
    # a row a choice; those of a model share its weight
    weights = np.concatenate([np.full(len(outcome.layers), 1 / len(outcome.layers)) for outcome in outcomes])
    rows = counts[:, np.repeat(np.arange(len(outcomes)), [len(outcome.layers) for outcome in outcomes])] * weights
    lost = np.concatenate([outcome.distances for outcome in outcomes])

    def mean_of(values: Iterable[float]) -> Score:
        return _certain(score_of(ratio(counts @ np.array(list(values)), counts.sum(axis=1)), level))

    def mean_known(values: Sequence[float | None]) -> Score | None:
        rows = [row for row, value in enumerate(values) if value is not None]
        of_known = counts[:, rows]
        numbers = np.array([values[row] for row in rows], dtype=np.float64)
        return score_of(ratio(of_known @ numbers, of_known.sum(axis=1)), level) if rows else None

    sizes = [outcome.set_size for outcome in outcomes if outcome.set_size is not None]
    return StrategyScores(
        strategy=strategy.name,
        source=strategy.source,
        needs=needs,
        fresh=fresh,
        mean=mean_of(_mean(outcome.distances) for outcome in outcomes),
        median=_certain(score_of(weighted_quantiles(lost, rows), level)),
        ninth=_certain(score_of(weighted_quantiles(lost, rows, 0.9), level)),
        worst=float(lost.max()),
        regret=mean_of(_mean(outcome.regrets) for outcome in outcomes),
        items_error=_error_of_mean([outcome.items_error for outcome in outcomes], tasks),
        seeds_error=_error_of_mean([outcome.seeds_error for outcome in outcomes], range(len(outcomes))),
        cost=mean_of(_mean(outcome.costs) for outcome in outcomes),
        coverage=mean_known([outcome.coverage for outcome in outcomes]),
        set_size=_mean(sizes) if sizes else None,
        sufficient=mean_known([outcome.sufficient for outcome in outcomes]),
        outcomes=tuple(outcomes),
    )


def _certain(score: Score | None) -> Score:
    assert score is not None  # there are models, and each counts
    return score


def _error_of_mean(errors: Sequence[float | None], groups: Iterable[object]) -> float | None:
    """Return the standard error of a mean whose errors go together within groups and are independent between them."""
    sums: defaultdict[object, float] = defaultdict(float)
    for error, group in zip(errors, groups, strict=True):
        if error is None:
            return None
        sums[group] += error
    return math.sqrt(sum(total**2 for total in sums.values())) / len(errors)
