"""Fine-tuning runs -> means and differences with their errors. Trains nothing."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from layerprobe.checks import LEVEL
from layerprobe.finetuning.outputs import NO_ITEMS, SCORED, Array, RunItems, ScoredSplit, outputs_in
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, best_by_validation
from layerprobe.interval import Interval
from layerprobe.stats.best import best_over_seeds
from layerprobe.stats.crossed import crossed
from layerprobe.stats.sentences import not_trained_sign
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task

FailureSign = Literal["one output", "loss", "untrained"]
"""one output: the same for all items; loss: not below its start; untrained: far below the model before training."""
SPREAD, SPREAD_AT_FLOOR = 1e-4, 1e-2
"""Standard deviation of outputs over items below which they are one value; the second with a score at the floor."""
RISE = 1.03
"""Train loss of the last epoch over that of the first from which on it rose."""
KNOWN = 20.0
"""Points above the floor from which on the score of an untrained model says something."""
COMPARED = 30
"""Validation items from which on scores before and after training are compared: on fewer, both are chance."""


def failure_sign(
    run: FineTuningRun,
    outputs: Array | None = None,
    *,
    floor: float | None = None,
    untrained: float | None = None,
) -> FailureSign | None:
    """Return what shows that a run did not train; None where nothing does.

    Its outputs are one value; its train loss rose, or did not fall while its score is at the floor; or it scores less
    than half of what the untrained model does. The floor alone is no sign: a layer that can learn nothing, or slowly,
    ends there.

    Args:
        run: A finished run.
        outputs: (n,) or (n, classes) for the validation items; None where they are not known, or no values.
        floor: What a trivial answer scores on the validation items.
        untrained: What the model scores at that layer before training, x 100.
    """
    score, least = run.validation[run.primary], floor or 0.0
    losses = [epoch.train_loss for epoch in run.epochs]
    at_floor = floor is not None and score <= floor
    spread = math.inf if outputs is None else float(np.std(outputs, axis=0).max())
    if spread < (SPREAD_AT_FLOOR if at_floor else SPREAD):
        return "one output"
    # another epoch than the first tells, and a loss of 0 cannot fall
    if len(losses) > 1 and losses[-1] >= (1.0 if at_floor else RISE) * losses[0] > 0:
        return "loss"
    if untrained is not None and untrained >= least + KNOWN and score - least < (untrained - least) / 2:
        return "untrained"
    return None


def not_trained(run: FineTuningRun, task: Task, untrained: float | None = None) -> str:
    """Return what shows that a finished run on a task did not train, see `failure_sign`; empty where nothing does."""
    kind = KINDS[task.kind]
    floor = kind.floors(task.validation).get(run.primary)
    # those of a kind of its own may be numbers of words: one for all can be an honest answer
    outputs = None if kind.zero_shot == "own" else outputs_in(run.directory).of(run.layer, "validation")
    untrained = untrained if len(task.validation) >= COMPARED else None
    sign = failure_sign(run, outputs, floor=None if floor is None else floor.value, untrained=untrained)
    if sign is None:
        return ""
    loss = run.epochs[-1].train_loss if run.epochs else math.nan
    return not_trained_sign(sign, loss=loss, score=run.validation[run.primary], untrained=untrained)


def outcome(runs: Iterable[FineTuningRun], items: RunItems = NO_ITEMS, *, level: float = LEVEL) -> LayerOutcome:
    """Summarise the runs of one layer, with errors over items and seeds, or without items over seeds alone."""
    runs = sorted(runs, key=lambda run: run.seed)
    primary = runs[0].primary
    validation, test = (_mean(runs, items, split, level=level) for split in SCORED)
    return LayerOutcome(
        layer=runs[0].layer,
        parameters=runs[0].parameters,
        seeds=tuple(run.seed for run in runs),
        primary=primary,
        test={name: tuple(run.test[name] for run in runs) for name in runs[0].test},
        validation={name: tuple(run.validation[name] for run in runs) for name in runs[0].validation},
        error=test,
        validation_error=validation,
        model=runs[0].model,
        task=runs[0].task,
        blocks=runs[0].blocks,
    )


def outcomes(
    runs: Sequence[FineTuningRun], items: RunItems = NO_ITEMS, *, level: float = LEVEL
) -> tuple[LayerOutcome, ...]:
    """Summarise runs of one model on one task by layer, ascending; of as many blocks, the first ones come first."""
    choices = sorted({run.choice for run in runs})
    return tuple(outcome((run for run in runs if run.choice == choice), items, level=level) for choice in choices)


def _mean(runs: Sequence[FineTuningRun], items: RunItems, split: ScoredSplit, *, level: float) -> Interval | None:
    """Return the mean of the primary metric over the seeds of one layer, with its errors over items and seeds."""
    values = [getattr(run, split)[run.primary] for run in runs]
    links, primary = items.links.get(split), runs[0].primary
    influences = items.of(runs, split)
    return crossed(values, influences, links=links, level=level, unit=items.unit, metric=primary, difference=False)


def compared(
    runs: Sequence[FineTuningRun],
    results: Sequence[LayerOutcome],
    items: RunItems = NO_ITEMS,
    *,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
    floor: Floor | None = None,
) -> AgainstBest | None:
    """Compare test scores of layers with the best of them, all at once, see `best_over_seeds`.

    The layer that is best by validation is the chosen one.

    Args:
        runs: All runs of these layers.
        results: What they come to, by layer.
        items: What test items add to the scores.
        level: Of all that is said together.
        tolerance: Points that a layer may be behind the best.
        floor: What a trivial answer scores.

    Returns:
        None for a single layer, where layers have other seeds than each other, or nothing is known of the errors.
    """
    intervals = [result.interval for result in results if result.interval is not None]
    if len(results) < 2 or len(intervals) < len(results) or len({result.seeds for result in results}) > 1:
        return None
    places = {(result.choice, seed) for result in results for seed in result.seeds}
    ordered = sorted({run.place: run for run in runs}.items())
    of_layers = items.of([run for place, run in ordered if place in places])
    k, n_seeds = len(results), len(results[0].seeds)
    return best_over_seeds(
        [result.scores for result in results],
        None if of_layers is None else of_layers.reshape(k, n_seeds, -1),
        intervals,
        chosen=list(results).index(best_by_validation(results)),
        links=items.links.get("test"),
        level=level,
        tolerance=tolerance,
        floor=floor,
    )


def difference(
    first: Sequence[FineTuningRun], second: Sequence[FineTuningRun], items: tuple[RunItems, RunItems], *, level: float
) -> Interval | None:
    """Return by how much `first` scores more on test than `second`, over items and seeds.

    The runs go with each other in their order and are scored on the same items.
    """
    values = [a.test[a.primary] - b.test[b.primary] for a, b in zip(first, second, strict=True)]
    of_first, of_second = (influences.of(runs) for influences, runs in zip(items, (first, second), strict=True))
    influences = None if of_first is None or of_second is None else of_first - of_second
    links, unit, primary = items[1].links.get("test"), items[1].unit, first[0].primary
    return crossed(values, influences, links=links, level=level, unit=unit, metric=primary)
