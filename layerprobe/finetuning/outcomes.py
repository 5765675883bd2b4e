"""Fine-tuning runs -> means and differences with their errors. Trains nothing."""

from collections.abc import Iterable, Sequence

from layerprobe.checks import LEVEL
from layerprobe.finetuning.outputs import NO_ITEMS, SCORED, Array, RunItems, ScoredSplit
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, best_by_validation
from layerprobe.interval import Interval
from layerprobe.stats.best import best_over_seeds
from layerprobe.stats.crossed import crossed
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor


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


def differences(
    first: Sequence[FineTuningRun], second: Sequence[FineTuningRun], items: tuple[RunItems, RunItems]
) -> tuple[list[float], Array | None]:
    """Return the test scores of `first` less those of `second`, run by run, and the items' influences on them.

    The runs go with each other in their order and are scored on the same items.
    """
    values = [a.test[a.primary] - b.test[b.primary] for a, b in zip(first, second, strict=True)]
    of_first, of_second = (influences.of(runs) for influences, runs in zip(items, (first, second), strict=True))
    return values, None if of_first is None or of_second is None else of_first - of_second


def difference(
    first: Sequence[FineTuningRun], second: Sequence[FineTuningRun], items: tuple[RunItems, RunItems], *, level: float
) -> Interval | None:
    """Return by how much `first` scores more on test than `second`, over items and seeds; see `differences`."""
    values, influences = differences(first, second, items)
    links, unit, primary = items[1].links.get("test"), items[1].unit, first[0].primary
    return crossed(values, influences, links=links, level=level, unit=unit, metric=primary)
