"""The influence of validation and test items on the scores of runs, from the outputs saved with them.

Knows runs, their directories and the examples of their task.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.finetuning.outputs import read_outputs
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.stats.crossed import errors_known
from layerprobe.stats.links import Links
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.links import links_of
from layerprobe.tasks.values import Task

Array = NDArray[np.float64]
ScoredSplit = Literal["validation", "test"]
SCORED: tuple[ScoredSplit, ...] = ("validation", "test")
LayerSeed = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunItems:
    """Influences of the items of a task on the primary metric of runs of one model."""

    unit: str = "item"
    """What an item is called: pair or text."""
    influences: Mapping[ScoredSplit, Mapping[LayerSeed, Array]] = field(default_factory=dict)
    """By layer and seed of a run, (n,) of mean 0, x 100; runs without outputs are not there."""
    links: Mapping[ScoredSplit, Links | None] = field(default_factory=dict)
    """Which items share texts."""

    def of(self, runs: Sequence[FineTuningRun], split: ScoredSplit = "test") -> Array | None:
        """Return the (runs, n) influences of some runs.

        None where one of them has no outputs, or a single item, or a single text in all of them, has no error.
        """
        influences, links = self.influences.get(split, {}), self.links.get(split)
        of_runs = [influences[run.layer, run.seed] for run in runs if (run.layer, run.seed) in influences]
        if len(of_runs) < len(runs) or not errors_known(len(of_runs[0]), links):
            return None
        return np.stack(of_runs)


NO_ITEMS = RunItems()
"""Of runs whose outputs were not kept: intervals are then over seeds alone."""


def run_items(
    task: Task, runs: Iterable[tuple[FineTuningRun, Path]], *, documents: Mapping[str, str] | None = None
) -> RunItems:
    """Return the influences of the validation and test items of a task on its runs, from the runs' directories.

    A layer of a joint run is a run in the directory of that, see `JointRun.truncated`. Items
    that share a text count as linked, and where `documents` says which document a text is from, also those of one.
    """
    influences: dict[ScoredSplit, dict[LayerSeed, Array]] = {split: {} for split in SCORED}
    for run, directory in runs:
        outputs = read_outputs(directory)
        for split in SCORED if outputs is not None else ():
            assert outputs is not None
            gold = task.split(split).gold
            influences[split][run.layer, run.seed] = item_influences(
                task.kind, outputs.of(run.layer, split), gold, metric=run.primary, threshold=run.threshold
            )
    links = {split: links_of(task.split(split), documents) for split in SCORED}
    return RunItems(unit=KINDS[task.kind].unit, influences=influences, links=links)
