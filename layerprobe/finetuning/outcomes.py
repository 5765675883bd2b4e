"""Outputs by item of fine-tuning runs, and means and differences with errors. Trains nothing."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import inside, store_errors, write_whole
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, RunKey, best_by_validation
from layerprobe.interval import Interval
from layerprobe.metrics.names import Split
from layerprobe.names import counted, listed
from layerprobe.stats.best import best_over_seeds
from layerprobe.stats.crossed import Links, crossed, errors_known
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor
from layerprobe.tasks.evaluation import item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task

logger = logging.getLogger(__name__)

OUTPUTS = "outputs.safetensors"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunOutputs:
    """Outputs of the best epoch: cosines, or one value per class."""

    layers: tuple[int, ...]
    """Layers of the run: one, or all of a scan."""
    validation: Array
    """(layers, examples) or (layers, examples, classes) on the validation split; NaN at a layer that failed."""
    test: Array
    """The same on the test split."""

    def of(self, layer: int, split: Split = "test") -> Array:
        """Return (examples,) or (examples, classes) outputs of one layer; DataError for an unknown layer or split."""
        if layer not in self.layers or split == "train":
            raise DataError(f"expected outputs of layers {self.layers} on validation or test, got {layer} on {split}")
        return getattr(self, split)[self.layers.index(layer)]


def write_outputs(directory: Path, outputs: RunOutputs) -> None:
    """Write the outputs of a run into its directory atomically; StoreError if that fails."""
    arrays = {
        "layers": np.array(outputs.layers, dtype=np.int64),
        "validation": np.ascontiguousarray(outputs.validation),
        "test": np.ascontiguousarray(outputs.test),
    }
    write_whole(directory / OUTPUTS, save(arrays))


def read_outputs(directory: Path) -> RunOutputs | None:
    """Return the outputs in a run's directory; None if there are none, or, with a warning, if they are damaged.

    The result beside them has their checksum, and is read first.

    Raises:
        StoreError: If the disk refuses to read them.
    """
    file = inside(directory, directory / OUTPUTS)
    with store_errors("read", file):
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="numpy") as opened:
                layers, validation, test = (opened.get_tensor(name) for name in ("layers", "validation", "test"))
            return RunOutputs(layers=tuple(layers.tolist()), validation=validation, test=test)
        except (SafetensorError, ValueError) as error:
            logger.warning("%s cannot be read (%s): the run will be repeated", file, error)
            return None


def outputs_in(directory: Path) -> RunOutputs:
    """Return the outputs in the directory of a finished run; StoreError if they are missing or damaged."""
    outputs = read_outputs(directory)
    if outputs is None:
        raise StoreError(
            f"{directory / OUTPUTS} was removed or damaged after its run was read, so intervals would be missing: "
            "repeat the command, which repeats that run"
        )
    return outputs


ScoredSplit = Literal["validation", "test"]
SCORED: tuple[ScoredSplit, ...] = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunItems:
    """Influences of the items of a task on the primary metric of runs of one model."""

    unit: str = "item"
    """Name of an item: pair or text."""
    influences: Mapping[ScoredSplit, Mapping[RunKey, Array]] = field(default_factory=dict)
    """(n,) influences x 100 with mean 0, by blocks and seed of a run; runs without outputs are absent."""
    links: Mapping[ScoredSplit, Links | None] = field(default_factory=dict)
    """Items that share texts, by split."""

    def of(self, runs: Sequence[FineTuningRun], split: ScoredSplit = "test") -> Array | None:
        """Return the (runs, n) influences of some runs.

        None if there are no runs, one has no outputs, or there is only one item, or one text in all items.
        """
        influences = self.influences.get(split, {})
        links = self.links.get(split)
        of_runs = [influences[run.key] for run in runs if run.key in influences]
        if not of_runs or len(of_runs) < len(runs) or not errors_known(len(of_runs[0]), links):
            return None
        return np.stack(of_runs)


NO_ITEMS = RunItems()
"""Items of runs without outputs; intervals are then over seeds alone."""


def run_items(task: Task, runs: Iterable[FineTuningRun]) -> RunItems:
    """Return the influences of the validation and test items of a task on its runs, from the runs' directories.

    Items that share a text are linked.

    Raises:
        StoreError: If the outputs of a run are missing or damaged, since its errors would be unknown.
    """
    influences: dict[ScoredSplit, dict[RunKey, Array]] = {split: {} for split in SCORED}
    for run in runs:
        outputs = outputs_in(run.directory)
        for split in SCORED:
            gold = task.split(split).gold
            influences[split][run.key] = item_influences(
                task.kind, outputs.of(run.layer, split), gold, metric=run.primary, threshold=run.threshold
            )
    links = {split: links_of(task.split(split)) for split in SCORED}
    return RunItems(unit=KINDS[task.kind].unit, influences=influences, links=links)


FailureSign = Literal["one output", "loss", "untrained"]
"""one output: equal for all items; loss: not below its start; untrained: far below the model before training."""
SPREAD, SPREAD_AT_FLOOR = 1e-4, 1e-2
"""Standard deviation over items below which outputs count as equal; the second applies to scores at the floor."""
RISE = 1.03
"""Ratio of the training losses of the last and the first epoch from which the loss counts as risen."""
KNOWN = 20.0
"""Points above the floor from which the score of an untrained model is meaningful."""
COMPARED = 30
"""Validation items from which scores before and after training are compared; with fewer, both are chance."""


def failure_sign(
    run: FineTuningRun,
    outputs: Array | None = None,
    *,
    floor: float | None = None,
    untrained: float | None = None,
) -> FailureSign | None:
    """Return the sign that a run did not train; None if there is none.

    The signs: its outputs are equal; its training loss rose, or did not fall while its score is at the floor; or it
    scores less than half of the untrained model. The floor alone is no sign: a layer that learns nothing, or slowly,
    ends there.

    Args:
        run: A finished run.
        outputs: (n,) or (n, classes) for the validation items; None if they are unknown, or not values.
        floor: Score of a trivial baseline on the validation items.
        untrained: Score of the model at that layer before training, x 100.
    """
    score, least = run.validation[run.primary], floor or 0.0
    losses = [epoch.train_loss for epoch in run.epochs]
    at_floor = floor is not None and score <= floor
    spread = math.inf if outputs is None else float(np.std(outputs, axis=0).max())
    if spread < (SPREAD_AT_FLOOR if at_floor else SPREAD):
        return "one output"
    # this needs an epoch after the first, and a loss of 0 cannot fall
    if len(losses) > 1 and losses[-1] >= (1.0 if at_floor else RISE) * losses[0] > 0:
        return "loss"
    if untrained is not None and untrained >= least + KNOWN and score - least < (untrained - least) / 2:
        return "untrained"
    return None


def not_trained(run: FineTuningRun, task: Task, untrained: float | None = None) -> str:
    """Return in words the sign that a finished run did not train, see `failure_sign`; empty if there is none."""
    kind = KINDS[task.kind]
    floor = kind.floors(task.validation).get(run.primary)
    # outputs of a special kind may be numbers of words: equal ones can be a valid answer
    outputs = None if kind.zero_shot == "own" else outputs_in(run.directory).of(run.layer, "validation")
    untrained = untrained if len(task.validation) >= COMPARED else None
    sign = failure_sign(run, outputs, floor=None if floor is None else floor.value, untrained=untrained)
    if sign is None:
        return ""
    loss = run.epochs[-1].train_loss if run.epochs else math.nan
    return {
        "one output": "its outputs are the same for all items",
        "loss": f"its training loss did not fall: {loss:.2g} at the end",
        "untrained": f"it scores {run.validation[run.primary]:.1f} after training, {untrained or 0:.1f} before",
    }[sign]


def not_trained_lines(signs: Mapping[tuple[int, int], str], n_runs: int, last: int) -> list[str]:
    """Return lines on the runs that did not train, by layer and seed, and on the last layer if several of its did not.

    Examples:
        >>> not_trained_lines({(10, 2): "its training loss did not fall: 0.69 at the end"}, 9, 12)
        ['1 of 9 runs did not train: layer 10, seed 2 (its training loss did not fall: 0.69 at the end)']
    """
    if not signs:
        return []
    runs = listed([f"layer {layer}, seed {seed} ({why})" for (layer, seed), why in signs.items()])
    lines = [f"{len(signs)} of {counted(n_runs, 'run')} did not train: {runs}"]
    times = sum(layer == last for layer, _ in signs)
    if times > 1:
        lines.append(f"layer {last}, the whole model, did not train in {times} runs: lower the learning rate")
    return lines


def outcome(runs: Iterable[FineTuningRun], items: RunItems = NO_ITEMS, *, level: float = LEVEL) -> LayerOutcome:
    """Summarise the runs of one layer, with errors over items and seeds; without items, over seeds alone."""
    runs = sorted(runs, key=lambda run: run.seed)
    primary = runs[0].primary
    validation, test = (
        crossed(
            [getattr(run, split)[primary] for run in runs],
            items.of(runs, split),
            links=items.links.get(split),
            level=level,
            unit=items.unit,
            metric=primary,
            difference=False,
        )
        for split in SCORED
    )
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
    """Summarise runs of one model on one task by ascending layer; first blocks precede other blocks of that number."""
    choices = sorted({run.choice for run in runs})
    return tuple(outcome((run for run in runs if run.choice == choice), items, level=level) for choice in choices)


def compared(
    runs: Sequence[FineTuningRun],
    results: Sequence[LayerOutcome],
    items: RunItems = NO_ITEMS,
    *,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
    floor: Floor | None = None,
) -> AgainstBest | None:
    """Compare test scores of layers jointly with the best of them, see `best_over_seeds`.

    The chosen layer is the best by validation.

    Args:
        runs: All runs of these layers.
        results: Their summaries by layer.
        items: Influences of test items on the scores.
        level: Confidence level of the joint statement.
        tolerance: Points that a layer may be behind the best.
        floor: Score of a trivial baseline.

    Returns:
        None for a single layer, layers with different seeds, or unknown errors.
    """
    intervals = [result.interval for result in results if result.interval is not None]
    if len(results) < 2 or len(intervals) < len(results) or len({result.seeds for result in results}) > 1:
        return None
    places = {(result.choice, seed) for result in results for seed in result.seeds}
    ordered = sorted({run.key: run for run in runs}.items())
    layer_influences = items.of([run for place, run in ordered if place in places])
    k, n_seeds = len(results), len(results[0].seeds)
    return best_over_seeds(
        [result.scores for result in results],
        None if layer_influences is None else layer_influences.reshape(k, n_seeds, -1),
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
    """Return the test score of `first` minus that of `second`, with the error over items and seeds.

    The runs are paired by their order and scored on the same items.
    """
    values = [a.test[a.primary] - b.test[b.primary] for a, b in zip(first, second, strict=True)]
    of_first, of_second = (influences.of(runs) for influences, runs in zip(items, (first, second), strict=True))
    influences = None if of_first is None or of_second is None else of_first - of_second
    links = items[1].links.get("test")
    unit = items[1].unit
    primary = first[0].primary
    return crossed(values, influences, links=links, level=level, unit=unit, metric=primary)
