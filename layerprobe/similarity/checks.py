"""Checks of arrays before comparison. Knows names of arrays for messages; knows no kernels."""

import contextlib
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError, option

Array: TypeAlias = NDArray[np.float64]

MIN_SAMPLES = 4
"""Smallest number of samples: the debiased HSIC divides by n - 3."""
NOISE = 8
"""Rounding errors of an encoder's forward pass, in units of the spacing of its dtype."""


def check_same_samples(n: int, expected: int, *, name: str, other: str) -> None:
    """Raise MisalignedSamplesError unless two arrays have equally many rows."""
    if n != expected:
        raise MisalignedSamplesError(
            f"{name} has {n} samples, expected the {expected} of {other}: embed the same texts in the same order"
        )


def as_array(X: ArrayLike, *, name: str) -> NDArray[Any]:
    """Return an array, a data frame or a torch tensor, even with a dtype unknown to NumPy, as an array.

    Raises:
        DataError: If it is not an array in memory: ragged, sparse, nested, empty, or masked (a mask would be lost).
    """
    if np.ma.is_masked(X):
        raise DataError(f"{name} has masked values: remove these rows from all arrays")
    given: Any = X
    array = np.asarray(None)
    with contextlib.suppress(TypeError, ValueError, RuntimeError, NotImplementedError):
        if hasattr(given, "detach"):
            given = given.detach().cpu()
            short = given.is_floating_point() and given.element_size() < 4 and str(given.dtype) != "torch.float16"
            given = given.float() if short else given
        array = np.asarray(given)
    if array.ndim == 0 and array.dtype == object:
        raise DataError(
            f"{name} is a {type(X).__name__}, not an array of numbers: expected rows of equal length, dense "
            "(use .toarray() or .to_dense() on sparse ones) and in memory"
        )
    return array


def row_readable(X: Any, *, name: str) -> Any:
    """Return objects that read their rows from files unchanged, and anything else as an array."""
    whole = not isinstance(getattr(X, "dtype", None), np.dtype) or not hasattr(X, "__array__")
    return as_array(X, name=name) if whole or np.ma.isMaskedArray(X) else X


def finite_matrix(X: ArrayLike, *, name: str) -> Array:
    """Return a (n, d) layer in float64."""
    array = as_array(X, name=name)
    check_shape(array.shape, array.dtype, name=name)
    matrix = array.astype(np.float64)
    check_finite([matrix], name=name)
    return matrix


def check_finite(parts: Iterable[NDArray[Any]], *, name: str) -> None:
    """Raise DegenerateLayerError if a value is NaN or infinite, in a layer or in runs of its rows."""
    if message := not_finite(parts):
        raise DegenerateLayerError(f"{name} {message}")


def not_finite(parts: Iterable[NDArray[Any]]) -> str | None:
    """Return an error message that counts NaN and infinite values and their rows; None if all are finite.

    Examples:
        >>> not_finite([np.ones((3, 2)), np.array([[np.nan, 1.0]])])  # doctest: +ELLIPSIS
        'has 1 NaN or infinite values, the first in row 3, expected finite numbers: it is in 1 of 4 rows, remove ...'
    """
    counts = np.concatenate([np.count_nonzero(~np.isfinite(part), axis=1) for part in parts])
    rows, n = int(np.count_nonzero(counts)), len(counts)
    if not rows:
        return None
    if rows == n:
        advice = f"all {n:,} rows have them, embed again in float32"
    elif rows == 1:
        advice = f"it is in 1 of {n:,} rows, remove that row from all arrays, or embed again in float32"
    else:
        advice = f"{rows:,} of {n:,} rows have them, remove these rows from all arrays, or embed again in float32"
    first = int((counts > 0).argmax())
    return f"has {counts.sum()} NaN or infinite values, the first in row {first}, expected finite numbers: {advice}"


def check_shape(shape: tuple[int, ...], dtype: np.dtype[Any], *, name: str) -> None:
    """Raise DataError unless a layer is a matrix of real numbers."""
    if len(shape) != 2 or shape[1] == 0:
        raise DataError(f"{name} has shape {shape}, expected (samples, features): pool tokens to one vector per text")
    if dtype.kind not in "fiu":
        raise DataError(f"{name} has dtype {dtype}, expected real numbers: convert it to float32 or float64")


def check_samples(n: int, *, name: str) -> None:
    """Raise DegenerateLayerError if a layer has fewer than `MIN_SAMPLES` rows."""
    if n < MIN_SAMPLES:
        raise DegenerateLayerError(
            f"{name} has {n} samples, expected at least {MIN_SAMPLES}: compare models on more texts"
        )


def centred_layer(X: ArrayLike, *, name: str) -> Array:
    """Return a layer in float64 with the mean of every column subtracted."""
    layer = finite_matrix(X, name=name)
    check_samples(len(layer), name=name)
    centred: Array = layer - layer.mean(axis=0)
    if not varying(layer, centred, as_array(X, name=name).dtype).any():
        raise DegenerateLayerError(constant_layer(len(layer), name=name))
    return centred


def varying(layer: Array, centred: Array, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return which features vary by more than the rounding of a layer's stored dtype."""
    floor = rounding(np.abs(layer).max(axis=0), np.sqrt(np.mean(layer**2)), dtype)
    return np.abs(centred).max(axis=0) > floor


def unit_rows(matrix: Array, *, name: str) -> Array:
    """Return the normalised rows; raise DegenerateLayerError if one is zero, or its norm exceeds float64."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    bad = ~((norms > 0) & np.isfinite(norms))
    if bad.any():
        row = int(bad.argmax())
        what = "is zero" if norms[row, 0] == 0 else "is too long for float64"
        raise DegenerateLayerError(
            f"{name} {what} in row {row}, expected embeddings with a direction: remove texts without tokens"
        )
    return matrix / norms


def rounding(largest: Array, root_mean_square: float, dtype: np.dtype[Any]) -> Array:
    """Return the variation of each feature by rounding alone, in storage and in sums over all features.

    `largest` are the (d,) largest magnitudes of the features, and the root mean square is that of all values.
    """
    spacing = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    # float16 is a storage format here: the sums were made in float32.
    sums = min(spacing, float(np.finfo(np.float32).eps)) * root_mean_square
    return NOISE * (max(spacing, float(np.finfo(np.float64).eps)) * largest + sums)


def constant_layer(n: int, *, name: str) -> str:
    """Return the error message for a layer that is the same for all samples."""
    return (
        f"{name} is the same for all {n} samples, expected embeddings that vary: leave it out (for a model, keep only "
        f"the blocks before it: {option('keep_blocks', '1,2,3')}), or change the pooling (before the first block, the "
        "first token is the same in every text)"
    )
