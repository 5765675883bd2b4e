"""Effects of a pretraining objective compared with masked language modelling. Knows numbers only."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from layerprobe.checks import LEVEL
from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.lab.studies.values import ObjectiveEffect
from layerprobe.stats.seeds import mean_interval

Pair = tuple[ZooEntry, ZooEntry]
"""A model and the MLM model of the same size, corpus, task and seed."""
Measured = Literal["drop", "score", "CKA"]


def objective_effects(entries: Sequence[ZooEntry], *, level: float = LEVEL) -> tuple[ObjectiveEffect, ...]:
    """Compare each model with its MLM twin, which began with the same weights and saw the same batches.

    difference = value of the model - value of its twin; the mean over seeds has Student's t interval of the paired
    differences. Values are the drop (see `truth`), the mean test score at each layer, and CKA of each layer with the
    MLM model of another seed, which for the twin says what another seed alone does. Drops are also put together over
    all sizes; layers of other sizes are other layers. Intervals are not corrected for how many there are.

    Entries without a twin are left out. The effects are by task and family in the order of the entries, then by
    measure, budget, size and layer.
    """
    tasks = dict.fromkeys(entry.task for entry in entries)
    return tuple(
        effect
        for task in tasks
        for effect in _effects_of_task([entry for entry in entries if entry.task == task], level)
    )


def _effects_of_task(entries: Sequence[ZooEntry], level: float) -> Iterator[ObjectiveEffect]:
    twins = {_place(entry): entry for entry in entries if entry.family == TWIN}
    pairs = [(entry, twins[_place(entry)]) for entry in entries if entry.family != TWIN and _place(entry) in twins]
    for family in dict.fromkeys(entry.family for entry, _ in pairs):
        of_family = [pair for pair in pairs if pair[0].family == family]
        sizes = list(dict.fromkeys(entry.size for entry, _ in of_family))
        for budget in dict.fromkeys(name for entry, _ in of_family for name in entry.budgets):
            for size in (None, *sizes):
                yield from _effects(of_family, "drop", level, size=size, budget=budget)
            for size in sizes:
                yield from _effects(of_family, "score", level, size=size, budget=budget)
        for size in sizes:
            yield from _effects(of_family, "CKA", level, size=size)


def _place(entry: ZooEntry) -> tuple[object, ...]:
    return entry.size, entry.corpus, entry.task, entry.seed, entry.n_blocks


def _effects(
    of_family: Sequence[Pair], measure: Measured, level: float, *, size: str | None, budget: str | None = None
) -> Iterator[ObjectiveEffect]:
    """Yield the effects of a family by layer, one for the drop; none where no pair has such values."""
    pairs = [pair for pair in of_family if size in (None, pair[0].size)]
    measured = [(entry.name, _values(entry, measure, budget), _values(twin, measure, budget)) for entry, twin in pairs]
    paired = [(name, values, twin) for name, values, twin in measured if values and twin]
    for layer in range(len(paired[0][1]) if paired else 0):
        values = tuple(values[layer] for _, values, _ in paired)
        twins = tuple(twin[layer] for _, _, twin in paired)
        differences = [value - twin for value, twin in zip(values, twins, strict=True)]
        yield ObjectiveEffect(
            family=of_family[0][0].family,
            measure=measure,
            task=of_family[0][0].task,
            size=size,
            budget=budget,
            layer=None if measure == "drop" else layer,
            models=tuple(name for name, _, _ in paired),
            values=values,
            twins=twins,
            mean=statistics.fmean(differences),
            interval=mean_interval(differences, level),
        )


def _values(entry: ZooEntry, measure: Measured, budget: str | None) -> Sequence[float]:
    """Return what an entry shows by layer, a single value for the drop; nothing where it was not measured."""
    if measure == "CKA":
        return entry.cka[OTHER_SEED].values if OTHER_SEED in entry.cka else ()
    if budget not in entry.budgets:
        return ()
    tuned = entry.budgets[budget]
    return (truth(tuned).effect,) if measure == "drop" else [statistics.fmean(row) for row in tuned.test]
