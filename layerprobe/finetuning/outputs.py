"""The outputs of a fine-tuned model for validation and test examples, saved with the run.

Knows arrays and files.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from layerprobe.errors import DataError
from layerprobe.files.atomic import inside, store_errors, write_whole
from layerprobe.metrics.names import Split

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

    def __post_init__(self) -> None:
        if {len(self.validation), len(self.test)} != {len(self.layers)}:
            shapes = f"{self.validation.shape} and {self.test.shape}"
            raise DataError(f"expected outputs of {len(self.layers)} layers, got {shapes}")

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


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of names, shapes and numbers."""
    state = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.shape} {array.dtype}\n".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
