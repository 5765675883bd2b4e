"""A linear map to fewer dimensions, saved as a Dense module of sentence-transformers. Knows arrays, files.

The map adds nothing to embeddings: centring them would change every cosine. It keeps the directions along which
normalised embeddings of texts are largest, so that their inner products change least (Eckart and Young 1936).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from layerprobe.files.folders import folder_errors, new_folder


def fewer(embeddings: NDArray[Any], dimensions: int) -> NDArray[np.float32]:
    """Return the (dimensions, width) map of (text, width) embeddings to fewer features; its rows are orthonormal."""
    values = np.asarray(embeddings, dtype=np.float64)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    directions = np.linalg.eigh(unit.T @ unit)[1].T[::-1][:dimensions]
    return np.ascontiguousarray(directions, dtype=np.float32)


def write_dense(folder: Path, weight: NDArray[np.float32]) -> None:
    """Write a (dimensions, width) map as a Dense module, whole or not at all; StoreError if it cannot be written."""
    identity, advice = "torch.nn.modules.linear.Identity", "choose another folder with --cache-dir"
    keys = {"in_features": weight.shape[1], "out_features": len(weight), "bias": False, "activation_function": identity}
    with folder_errors(folder, advice=advice), new_folder(folder, replace=True) as new:
        (new / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
        save_file({"linear.weight": weight}, new / "model.safetensors")
