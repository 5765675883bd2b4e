"""What the objective of a pretraining changes: each model of a zoo compared with its MLM twin, paired by seed."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from layerprobe.checks import LEVEL
from layerprobe.interval import Interval
from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.zoo import TWIN, ZooEntry
from layerprobe.names import in_percent
from layerprobe.results.charts import Quantity
from layerprobe.results.table import Table, columns_of
from layerprobe.stats.crossed import crossed


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """How the drop of an objective differs from that of masked language modelling with the same seed, paired."""

    family: str
    task: str
    """What was fine-tuned on."""
    size: str | None
    """None for all sizes together."""
    budget: str
    """Of the fine-tuning."""
    models: tuple[str, ...]
    """By name, each with its twin."""
    values: tuple[float, ...]
    """Drops of these models: test score of the best layer less that of the last one, x 100, see `truth`."""
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


def objective_effects(entries: Sequence[ZooEntry], *, level: float = LEVEL) -> tuple[ObjectiveEffect, ...]:
    """Compare the drop of each model with that of its MLM twin, which began with the same weights and batches.

    The mean over seeds of the differences has Student's t interval; not corrected for how many effects there are.
    Entries without a twin are left out. The effects are by task, family, budget and size in the order of the entries.
    """
    tasks = dict.fromkeys(entry.task for entry in entries)
    return tuple(
        effect for task in tasks for effect in _effects([entry for entry in entries if entry.task == task], level)
    )


def _effects(entries: Sequence[ZooEntry], level: float) -> Iterator[ObjectiveEffect]:
    """Yield the effects on one task."""
    twins = {_place(entry): entry for entry in entries if entry.family == TWIN}
    pairs = [(entry, twins[_place(entry)]) for entry in entries if entry.family != TWIN and _place(entry) in twins]
    for family in dict.fromkeys(entry.family for entry, _ in pairs):
        of_family = [pair for pair in pairs if pair[0].family == family]
        for budget in dict.fromkeys(name for entry, _ in of_family for name in entry.budgets):
            tuned = [pair for pair in of_family if all(budget in entry.budgets for entry in pair)]
            for size in (None, *dict.fromkeys(entry.size for entry, _ in tuned)):
                chosen = [pair for pair in tuned if size in (None, pair[0].size)]
                if not chosen:
                    continue
                values, of_twins = (
                    tuple(truth(pair[side].budgets[budget]).effect for pair in chosen) for side in range(2)
                )
                yield ObjectiveEffect(
                    family=family,
                    task=entries[0].task,
                    size=size,
                    budget=budget,
                    models=tuple(entry.name for entry, _ in chosen),
                    values=values,
                    twins=of_twins,
                    difference=crossed(list(map(operator.sub, values, of_twins)), None, level=level),
                )


def _place(entry: ZooEntry) -> tuple[object, ...]:
    return entry.size, entry.corpus, entry.task, entry.seed, entry.n_blocks


def effects_table(effects: Sequence[ObjectiveEffect], level: float) -> Table:
    """Return a row an effect."""
    column, quantity = columns_of(effects), Quantity("points, best layer less last layer")
    return Table(
        columns=(
            column("objective", lambda effect: effect.family),
            column("task"),
            column("budget"),
            column("size", lambda effect: effect.size or "all"),
            column("value", lambda effect: fmean(effect.values), form="+.2f", quantity=quantity),
            column("seeds", lambda effect: effect.values, form="+.2f", shown=False),
            column("twin", lambda effect: fmean(effect.twins), title="of the twin", form="+.2f", quantity=quantity),
            column("difference", lambda effect: effect.mean, form="+.2f"),
            column("interval", title=f"{in_percent(level)} interval", form="+.2f", interval=True),
            column("pairs", lambda effect: len(effect.values)),
        ),
        title="Differences from the MLM twin: points, best layer less last layer",
        marks=tuple("chosen" if effect.difference and effect.difference.sign else None for effect in effects),
    )
