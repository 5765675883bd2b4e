"""The outputs of a fine-tuned model for its items, saved with the run, and what each item adds to its scores."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import inside, store_errors, write_whole
from layerprobe.finetuning.values import FineTuningRun, Place
from layerprobe.metrics.names import Split
from layerprobe.stats.crossed import errors_known
from layerprobe.stats.links import Links
from layerprobe.tasks.evaluation import item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task

logger = logging.getLogger(__name__)

OUTPUTS = "outputs.safetensors"
_DIGEST = "sha256"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunOutputs:
    """Outputs of the best epoch: cosines, or a value for every class."""

    layers: tuple[int, ...]
    """Of the run: one, or all of a scan."""
    validation: Array
    """(layers, examples) or (layers, examples, classes); NaN at a layer that failed."""
    test: Array
    """The same of the test split."""

    def of(self, layer: int, split: Split = "test") -> Array:
        """Return (examples,) or (examples, classes) of one layer; DataError if the run has no such layer or split."""
        if layer not in self.layers or split == "train":
            raise DataError(f"expected outputs of layers {self.layers} on validation or test, got {layer} on {split}")
        outputs: Array = getattr(self, split)[self.layers.index(layer)]
        return outputs


def write_outputs(directory: Path, outputs: RunOutputs) -> None:
    """Write the outputs of a run into its directory, whole or not at all; StoreError if that fails."""
    arrays = {
        "layers": np.array(outputs.layers, dtype=np.int64),
        "validation": np.ascontiguousarray(outputs.validation),
        "test": np.ascontiguousarray(outputs.test),
    }
    write_whole(directory / OUTPUTS, save(arrays, metadata={_DIGEST: _digest(arrays)}))


def read_outputs(directory: Path) -> RunOutputs | None:
    """Return the outputs in a run's directory; None where there are none, or, with a warning, where they are damaged.

    Raises:
        StoreError: If the disk does not let them be read.
    """
    file = inside(directory, directory / OUTPUTS)
    with store_errors("read", file):
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="numpy") as opened:
                arrays = {name: opened.get_tensor(name) for name in ("layers", "validation", "test")}
                expected = (opened.metadata() or {}).get(_DIGEST)
            if _digest(arrays) != expected:
                raise DataError("its checksum is not that of its numbers")
            layers = tuple(arrays["layers"].tolist())
            return RunOutputs(layers=layers, validation=arrays["validation"], test=arrays["test"])
        except (SafetensorError, ValueError) as error:  # DataError is one
            logger.warning("%s cannot be read (%s): the run is done again", file, error)
            return None


def outputs_in(directory: Path) -> RunOutputs:
    """Return the outputs in the directory of a finished run; StoreError if they are not there any more, or damaged."""
    outputs = read_outputs(directory)
    if outputs is None:
        raise StoreError(
            f"{directory / OUTPUTS} was removed or damaged after its run was read, so intervals would be missing: "
            "run the same command again, which makes that run again"
        )
    return outputs


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of names, shapes and numbers."""
    state = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.shape} {array.dtype}\n".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


ScoredSplit = Literal["validation", "test"]
SCORED: tuple[ScoredSplit, ...] = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunItems:
    """Influences of the items of a task on the primary metric of runs of one model."""

    unit: str = "item"
    """What an item is called: pair or text."""
    influences: Mapping[ScoredSplit, Mapping[Place, Array]] = field(default_factory=dict)
    """By blocks and seed of a run, (n,) of mean 0, x 100; runs without outputs are not there."""
    links: Mapping[ScoredSplit, Links | None] = field(default_factory=dict)
    """Which items share texts."""

    def of(self, runs: Sequence[FineTuningRun], split: ScoredSplit = "test") -> Array | None:
        """Return the (runs, n) influences of some runs.

        None where there are none, one has no outputs, or a single item, or a single text in all, has no error.
        """
        influences, links = self.influences.get(split, {}), self.links.get(split)
        of_runs = [influences[run.place] for run in runs if run.place in influences]
        if not of_runs or len(of_runs) < len(runs) or not errors_known(len(of_runs[0]), links):
            return None
        return np.stack(of_runs)


NO_ITEMS = RunItems()
"""Of runs whose outputs were not kept: intervals are then over seeds alone."""


def run_items(task: Task, runs: Iterable[FineTuningRun]) -> RunItems:
    """Return the influences of the validation and test items of a task on its runs, from the runs' directories.

    Items that share a text count as linked.

    Raises:
        StoreError: If the outputs of a run are not there any more, or damaged, as nothing would be known of its errors.
    """
    influences: dict[ScoredSplit, dict[Place, Array]] = {split: {} for split in SCORED}
    for run in runs:
        outputs = outputs_in(run.directory)
        for split in SCORED:
            gold = task.split(split).gold
            influences[split][run.place] = item_influences(
                task.kind, outputs.of(run.layer, split), gold, metric=run.primary, threshold=run.threshold
            )
    links = {split: links_of(task.split(split)) for split in SCORED}
    return RunItems(unit=KINDS[task.kind].unit, influences=influences, links=links)
