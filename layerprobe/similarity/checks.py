"""What an array must be before it is compared. Knows the names that arrays are reported by; knows no kernels."""

from __future__ import annotations

import typing
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError

Array: TypeAlias = NDArray[np.float64]

MIN_SAMPLES = 4
"""The debiased HSIC divides by n - 3."""

NOISE = 8
"""Rounding errors of an encoder's forward pass, in units of the spacing of its dtype."""


def check_choice(value: object, kind: Any, *, name: str) -> None:
    """Raise unless `value` is one of the strings of the Literal `kind`.

    Raises:
        DataError: Naming the choices.
    """
    choices = typing.get_args(kind)
    if value not in choices:
        raise DataError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_same_samples(n: int, expected: int, *, name: str, other: str) -> None:
    """Raise unless two arrays have equally many rows.

    Raises:
        MisalignedSamplesError: If they do not belong to the same texts.
    """
    if n != expected:
        raise MisalignedSamplesError(
            f"{name} has {n} samples, expected the {expected} of {other}: embed the same texts in the same order"
        )


def finite_matrix(X: ArrayLike, *, name: str) -> Array:
    """Return `X` in float64.

    Args:
        X: (n, d) real numbers.
        name: What messages call it, such as "layer 3 of bert-tiny".

    Raises:
        DataError: If it is no matrix of real numbers.
        DegenerateLayerError: If a value is NaN or infinite.
    """
    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] == 0:
        raise DataError(
            f"{name} has shape {array.shape}, expected (samples, features): pool tokens to one vector a text"
        )
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name} has dtype {array.dtype}, expected real numbers: convert it to float32 or float64")
    matrix = array.astype(np.float64)
    bad = ~np.isfinite(matrix)
    if bad.any():
        row = int(bad.any(axis=1).argmax())
        raise DegenerateLayerError(
            f"{name} has {int(bad.sum())} NaN or infinite values, the first in row {row}, expected finite numbers: "
            "extract it again in float32"
        )
    return matrix


def centred_layer(X: ArrayLike, *, name: str) -> Array:
    """Return a layer in float64 with the mean of every column subtracted.

    Args:
        X: (n, d) embeddings, n >= 4, of any real dtype.
        name: What messages call it, such as "layer 3 of bert-tiny".

    Returns:
        (n, d) with columns of mean zero.

    Raises:
        DataError: If it is no matrix of real numbers.
        DegenerateLayerError: If it has fewer than 4 rows, values that are not finite, or rows that differ by no
            more than the rounding of its dtype.
    """
    layer = finite_matrix(X, name=name)
    if len(layer) < MIN_SAMPLES:
        raise DegenerateLayerError(
            f"{name} has {len(layer)} samples, expected at least {MIN_SAMPLES}: compare models on more texts"
        )
    centred: Array = layer - layer.mean(axis=0)
    if _is_noise(centred, layer, dtype=np.asarray(X).dtype):
        raise DegenerateLayerError(
            f"{name} is the same for all {len(layer)} samples, expected embeddings that vary: leave it out, "
            "or pool otherwise (the first token is the same in every text before the first block)"
        )
    return centred


def _is_noise(centred: Array, layer: Array, *, dtype: np.dtype[Any]) -> bool:
    """Return whether no column varies by more than rounding: of its own storage, and of sums over all columns."""
    spacing = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    # float16 is a storage format here: the sums were made in float32.
    sums = min(spacing, float(np.finfo(np.float32).eps)) * np.sqrt(np.mean(layer**2))
    floor = NOISE * (max(spacing, float(np.finfo(np.float64).eps)) * np.abs(layer).max(axis=0) + sums)
    return bool((np.abs(centred).max(axis=0) <= floor).all())
