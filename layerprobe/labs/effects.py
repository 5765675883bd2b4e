"""A zoo -> what a pretraining objective changes against masked language modelling. Knows numbers only."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from layerprobe.checks import LEVEL
from layerprobe.dropbench.truth import truth
from layerprobe.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.labs.values import ObjectiveEffect
from layerprobe.metrics.seeds import mean_interval

Pair = tuple[ZooEntry, ZooEntry]
"""A model and the MLM model of the same size, corpus, task and seed."""


def objective_effects(entries: Sequence[ZooEntry], *, level: float = LEVEL) -> tuple[ObjectiveEffect, ...]:
    """Hold each model against its MLM twin, which began with the same weights and saw the same batches.

    difference = value of the model - value of its twin; the mean over seeds has Student's t interval of the paired
    differences. Values are the drop (see `truth`), the mean test score at each layer, and CKA of each layer with the
    MLM model of another seed, which for the twin says what another seed alone does. Drops are also put together over
    all sizes; layers of other sizes are other layers. Intervals are not corrected for how many there are.

    Args:
        entries: Those without a twin are left out.
        level: Confidence level of the intervals.

    Returns:
        By family in the order of the entries, then by measure, budget, size and layer.
    """
    twins = {_place(entry): entry for entry in entries if entry.family == TWIN}
    pairs = [(entry, twins[_place(entry)]) for entry in entries if entry.family != TWIN and _place(entry) in twins]
    effects: list[ObjectiveEffect] = []
    for family in dict.fromkeys(entry.family for entry, _ in pairs):
        of_family = [pair for pair in pairs if pair[0].family == family]
        by_size = {
            size: [pair for pair in of_family if pair[0].size == size]
            for size in dict.fromkeys(entry.size for entry, _ in of_family)
        }
        for budget in dict.fromkeys(name for entry, _ in of_family for name in entry.budgets):
            effects += _drops(family, budget, None, of_family, level)
            for size, chosen in by_size.items():
                effects += _drops(family, budget, size, chosen, level)
            for size, chosen in by_size.items():
                effects += _scores(family, budget, size, chosen, level)
        for size, chosen in by_size.items():
            effects += _similarities(family, size, chosen, level)
    return tuple(effects)


def _place(entry: ZooEntry) -> tuple[object, ...]:
    return entry.size, entry.corpus, entry.task, entry.seed, entry.n_blocks


def _drops(
    family: str, budget: str, size: str | None, pairs: Sequence[Pair], level: float
) -> Iterator[ObjectiveEffect]:
    there = [pair for pair in pairs if all(budget in entry.budgets for entry in pair)]
    values = [(truth(entry.budgets[budget]).effect, truth(twin.budgets[budget]).effect) for entry, twin in there]
    yield from _effect(there, values, level, family=family, measure="drop", size=size, budget=budget)


def _scores(family: str, budget: str, size: str, pairs: Sequence[Pair], level: float) -> Iterator[ObjectiveEffect]:
    there = [pair for pair in pairs if all(budget in entry.budgets for entry in pair)]
    for layer in range(there[0][0].n_blocks + 1 if there else 0):
        means = [tuple(statistics.fmean(entry.budgets[budget].test[layer]) for entry in pair) for pair in there]
        values = [(own, twin) for own, twin in means]
        yield from _effect(there, values, level, family=family, measure="score", size=size, budget=budget, layer=layer)


def _similarities(family: str, size: str, pairs: Sequence[Pair], level: float) -> Iterator[ObjectiveEffect]:
    there = [pair for pair in pairs if all(OTHER_SEED in entry.cka for entry in pair)]
    for layer in range(there[0][0].n_blocks + 1 if there else 0):
        values = [(entry.cka[OTHER_SEED].values[layer], twin.cka[OTHER_SEED].values[layer]) for entry, twin in there]
        yield from _effect(there, values, level, family=family, measure="CKA", size=size, layer=layer)


def _effect(
    pairs: Sequence[Pair],
    values: Sequence[tuple[float, float]],
    level: float,
    *,
    family: str,
    measure: Literal["drop", "score", "CKA"],
    size: str | None,
    budget: str | None = None,
    layer: int | None = None,
) -> Iterator[ObjectiveEffect]:
    """Yield the effect, or nothing where there is no pair."""
    if not values:
        return
    differences = [own - twin for own, twin in values]
    yield ObjectiveEffect(
        family=family,
        measure=measure,
        size=size,
        budget=budget,
        layer=layer,
        models=tuple(entry.name for entry, _ in pairs),
        values=tuple(own for own, _ in values),
        twins=tuple(twin for _, twin in values),
        mean=statistics.fmean(differences),
        interval=mean_interval(differences, level),
    )
