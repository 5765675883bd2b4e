"""What the objective of a pretraining changes: each model of a zoo compared with its MLM twin, paired by seed."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from layerprobe.checks import LEVEL
from layerprobe.interval import Interval
from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.zoo import OTHER_SEED, TWIN, ZooEntry
from layerprobe.names import in_percent
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.table import Table, columns_of
from layerprobe.stats.crossed import crossed

Pair = tuple[ZooEntry, ZooEntry]
"""A model and the MLM model of the same size, corpus, task and seed."""
Measured = Literal["drop", "score", "CKA"]
MEASURED: dict[Measured, str] = {
    "drop": "points, best layer less last layer",
    "score": "test score × 100",
    "CKA": "CKA with an MLM model of another seed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """How an objective differs from masked language modelling with the same seed, paired."""

    family: str
    measure: Measured
    """drop: test score of the best layer less that of the last one, x 100; score: that of one layer, x 100; CKA: of one
    layer, with the MLM model of another seed, which for the twin is the noise floor."""
    task: str
    """What was fine-tuned on; CKA is of its test texts."""
    size: str | None
    """None for all sizes together."""
    budget: str | None
    """Of the fine-tuning; None for CKA."""
    layer: int | None
    """None for the drop."""
    models: tuple[str, ...]
    """By name, each with its twin."""
    values: tuple[float, ...]
    """Of these models."""
    twins: tuple[float, ...]
    """Of the MLM models of the same size and seed."""
    difference: Interval | None
    """Of the means value - twin, over pairs as over seeds; None for one pair."""

    @property
    def mean(self) -> float:
        """Of the differences value - twin."""
        return fmean(map(operator.sub, self.values, self.twins))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of that mean, Student's t."""
        return None if self.difference is None else self.difference.interval

    @property
    def certain(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.difference is not None and bool(self.difference.sign)


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
            difference=crossed(differences, None, level=level),
        )


def _values(entry: ZooEntry, measure: Measured, budget: str | None) -> Sequence[float]:
    """Return what an entry shows by layer, a single value for the drop; nothing where it was not measured."""
    if measure == "CKA":
        return entry.cka[OTHER_SEED].values if OTHER_SEED in entry.cka else ()
    if budget not in entry.budgets:
        return ()
    tuned = entry.budgets[budget]
    return (truth(tuned).effect,) if measure == "drop" else [fmean(row) for row in tuned.test]


def effects_table(effects: Sequence[ObjectiveEffect], measure: Measured, level: float) -> Table:
    """Return the effects on a measure, a row each; of those by layer with a chart for each task, size and budget."""
    effects = [effect for effect in effects if effect.measure == measure]
    column, form = columns_of(effects), "+.3f" if measure == "CKA" else "+.2f"
    places = dict.fromkeys((effect.task, effect.size, effect.budget) for effect in effects)
    quantity = Quantity(MEASURED[measure])
    return Table(
        columns=(
            column("objective", lambda effect: effect.family),
            column("task"),
            column("budget"),
            column("size", lambda effect: effect.size or "all"),
            column("layer"),
            column("value", lambda effect: fmean(effect.values), form=form, quantity=quantity),
            column("seeds", lambda effect: effect.values, form=form, shown=False),
            column("twin", lambda effect: fmean(effect.twins), title="of the twin", form=form, quantity=quantity),
            column("difference", lambda effect: effect.mean, form=form),
            column("interval", title=f"{in_percent(level)} interval", form=form, interval=True),
            column("pairs", lambda effect: len(effect.values)),
        ),
        title=f"Differences from the MLM twin: {MEASURED[measure]}",
        marks=tuple("chosen" if effect.certain else None for effect in effects),
        charts=()
        if measure == "drop"
        else tuple(
            Chart(
                lines=(Line("value", seeds="seeds"), Line("twin")),
                name=f"effects-{measure.lower()}-{number}",
                by="objective",
                where=(("task", task), ("size", size), ("budget", budget)),
                finding=f"{quantity.title}, {task}, size {size}{f', budget {budget}' if budget else ''}.",
            )
            for number, (task, size, budget) in enumerate(places)
        ),
    )
