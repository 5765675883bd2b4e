"""Embeddings of every layer as arrays: in memory, or in files of which only what is used is read. Knows no targets."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.similarity.checks import as_array, check_finite, check_shape

Rows = slice | NDArray[np.intp]
NUMBERS = 2**22
"""Numbers of a layer that are read at a time: 16 MB."""
SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".pq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """A (n, d) matrix of which rows are read when they are used."""

    name: str
    shape: tuple[int, int]
    read: Callable[[Rows], NDArray[Any]]
    """Rows of it: a slice, or numbers of rows in any order."""

    def rows(self, rows: Rows) -> NDArray[Any]:
        """Return rows as floating-point numbers; raise DegenerateLayerError if one is not finite."""
        values = as_array(self.read(rows), name=self.name)
        check_shape(values.shape, values.dtype, name=self.name)
        check_finite([values], name=self.name)
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows in blocks, each with its slice, from first to last."""
        n, width = self.shape
        step = max(1, NUMBERS // width)
        for start in range(0, n, step):
            where = slice(start, min(start + step, n))
            yield where, self.rows(where)

    def taken(self, chosen: NDArray[np.intp]) -> Layer:
        """Return the layer of some rows, in their order."""
        return Layer(name=self.name, shape=(len(chosen), self.shape[1]), read=lambda rows: self.read(chosen[rows]))

    def constant(self) -> str | None:
        """Return an error message if all rows are the same; reading stops at the first that differs."""
        first = self.rows(slice(0, 1))
        if all((block == first).all() for _, block in self.blocks()):
            return f"it is the same for all {self.shape[0]:,} samples"
        return None


def as_layers(embeddings: object) -> tuple[Layer, ...]:
    """Return the layers of embeddings, without reading them.

    Args:
        embeddings: (n, layers, features), in memory or memory-mapped; a sequence of (n, features), whose widths may
            differ; or a file or folder: .npy, .npz and .safetensors with one such array, or one (n, features) a
            layer in the order of their names; Parquet with a column of lists a layer; a folder with a file a layer.

    Raises:
        DataError: If it is none of these, or has no rows.
        MisalignedSamplesError: If layers have other numbers of rows.
    """
    if isinstance(embeddings, str | Path):
        layers = _of_path(Path(embeddings))
    elif isinstance(embeddings, Sequence):
        layers = [_matrix(f"layer {number}", array) for number, array in enumerate(embeddings)]
    else:
        layers = _of_array(embeddings, "embeddings")
    if not layers:
        raise DataError("expected embeddings of at least one layer, got none")
    n = layers[0].shape[0]
    for layer in layers:
        if layer.shape[0] != n:
            raise MisalignedSamplesError(
                f"{layer.name} has {layer.shape[0]:,} rows, expected the {n:,} of {layers[0].name}: embed the same "
                "samples in the same order"
            )
    if n == 0:
        raise DataError("expected embeddings of at least one sample, got no rows")
    return tuple(layers)


def _matrix(name: str, array: Any) -> Layer:
    """Return one (n, features) array, without copying it."""
    array = _rows_first(array)
    if isinstance(array, np.ma.MaskedArray):
        array = as_array(array, name=name)
    shape = tuple(array.shape)
    if len(shape) != 2 or shape[1] == 0:
        raise DataError(f"{name} has shape {shape}, expected (samples, features): pool tokens to one vector a sample")
    return Layer(name=name, shape=shape, read=lambda rows: array[rows])


def _rows_first(array: Any) -> Any:
    """Return an array that `array[rows]` indexes by rows; data frames, which index columns, are converted."""
    if hasattr(array, "to_numpy"):
        return array.to_numpy()
    return array if hasattr(array, "shape") and hasattr(array, "__getitem__") else np.asarray(array)


def _of_array(array: Any, name: str) -> list[Layer]:
    if not hasattr(array, "shape"):
        raise DataError(f"expected embeddings as an array, a list of arrays or a file, got a {type(array).__name__}")
    array = _rows_first(array)
    if len(array.shape) == 2:
        return [_matrix("layer 0", array)]
    if len(array.shape) != 3:
        raise DataError(f"{name} has shape {tuple(array.shape)}, expected (samples, layers, features)")
    return [_matrix(f"layer {number}", array[:, number]) for number in range(array.shape[1])]


# ---- files ----------------------------------------------------------------------------------------------


def _of_path(path: Path) -> list[Layer]:
    try:
        if path.is_dir():
            if (path / "config.json").is_file():
                raise DataError(f"{path} is the folder of a model: expected a task for it, or embeddings as arrays")
            files = sorted((file for file in path.iterdir() if file.suffix in SUFFIXES), key=_natural)
            if not files:
                raise DataError(f"expected a file a layer in {path}, one of {', '.join(SUFFIXES)}, got none")
            parts = [(file, _of_file(file)) for file in files]
            for file, layers in parts:
                if len(layers) > 1:
                    raise DataError(f"expected one layer a file in a folder, got {len(layers)} in {file}")
            return [
                Layer(name=f"layer {number}", shape=layer.shape, read=layer.read)
                for number, (_, (layer,)) in enumerate(parts)
            ]
        if path.suffix not in SUFFIXES:
            raise DataError(f"expected embeddings in a folder or a file that ends in {', '.join(SUFFIXES)}, got {path}")
        return _of_file(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _of_file(path: Path) -> list[Layer]:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: expected embeddings; was it written to the end?")
    if path.suffix == ".npy":
        return _of_array(_opened(path), str(path))
    if path.suffix == ".npz":
        with _opened(path) as file:
            shapes = {name: file[name].shape for name in sorted(file.files, key=_natural)}

        @functools.lru_cache(maxsize=1)  # no row of an .npz can be read alone; the last layer is kept
        def unpacked(name: str) -> NDArray[Any]:
            array: NDArray[Any] = _opened(path)[name]
            return array

        return _named(path, shapes, lambda name, rows: unpacked(name)[rows])
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            tensors: Any = safe_open(path, framework="pt")
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in sorted(tensors.keys(), key=_natural)}
        except SafetensorError as error:
            raise DataError(f"{path} is no whole safetensors file: {error}") from error
        return _named(path, shapes, lambda name, rows: _sliced(tensors.get_slice(name), rows))
    return _of_parquet(path)


def _opened(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is no whole array of numbers: {' '.join(str(error).split())[:120]}") from error


def _named(path: Path, shapes: dict[str, tuple[int, ...]], read: Callable[[str, Any], NDArray[Any]]) -> list[Layer]:
    """Return the layers of a file of named arrays: those of the one with three axes, or each with two, in order."""
    whole = [name for name, shape in shapes.items() if len(shape) == 3]
    if whole and len(shapes) > 1:
        raise DataError(f"expected one array or an array a layer in {path}, got {', '.join(shapes)}")
    if whole:
        n, layers, width = shapes[whole[0]]
        return [
            Layer(
                name=f"layer {number}",
                shape=(n, width),
                read=lambda rows, number=number: read(whole[0], (rows, number)),  # type: ignore[misc]
            )
            for number in range(layers)
        ]
    for name, shape in shapes.items():
        if len(shape) != 2:
            raise DataError(f"{name} of {path} has shape {shape}, expected (samples, features) a layer")
    return [
        Layer(
            name=f"layer {number}",
            shape=(shape[0], shape[1]),
            read=lambda rows, name=name: read(name, rows),  # type: ignore[misc]
        )
        for number, (name, shape) in enumerate(shapes.items())
    ]


def _sliced(tensor: Any, where: Any) -> NDArray[Any]:
    """Return rows of a tensor in a file, from the lowest to the highest that is wanted."""
    import torch

    rows, *layer = where if isinstance(where, tuple) else (where,)
    if not isinstance(rows, slice):
        low = int(rows.min()) if len(rows) else 0
        part = slice(low, int(rows.max()) + 1 if len(rows) else 0)
        read: NDArray[Any] = _sliced(tensor, (part, *layer))[rows - low]
        return read
    whole: torch.Tensor = tensor[(rows, *layer)]
    numbers: NDArray[Any] = (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()
    return numbers


def _of_parquet(path: Path) -> list[Layer]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, memory_map=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no whole Parquet file: {error}") from error
    lists = [f.name for f in file.schema_arrow if pa.types.is_nested(f.type) and not pa.types.is_struct(f.type)]
    if not lists:
        names = ", ".join(file.schema_arrow.names)
        raise DataError(f"expected a column of lists of numbers for each layer in {path}, got the columns {names}")
    ends = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])

    widths: dict[str, int] = {}

    @functools.lru_cache(maxsize=2)
    def group(name: str, number: int) -> NDArray[Any]:
        cells = file.read_row_group(number, columns=[name]).column(0).combine_chunks()
        lengths = pc.min_max(pc.list_value_length(cells)).as_py()
        if (
            cells.null_count
            or lengths["min"] != lengths["max"]
            or lengths["max"] != widths.setdefault(name, lengths["max"])
        ):
            raise DataError(f"expected lists of one length in column {name!r} of {path}, got missing or shorter ones")
        rows: NDArray[Any] = cells.flatten().to_numpy(zero_copy_only=False).reshape(len(cells), -1)
        return rows

    def read(name: str, rows: Rows) -> NDArray[Any]:
        numbers = np.arange(int(ends[-1]))[rows] if isinstance(rows, slice) else rows
        groups = np.searchsorted(ends, numbers, side="right") - 1
        result = np.empty((len(numbers), widths[name]), np.float32)
        for number in np.unique(groups):
            here = groups == number
            result[here] = group(name, int(number))[numbers[here] - ends[number]]
        return result

    if file.metadata.num_rows == 0:
        raise DataError(f"{path} has no rows: expected embeddings")
    shapes: dict[str, tuple[int, ...]] = {
        name: (int(ends[-1]), group(name, 0).shape[1]) for name in sorted(lists, key=_natural)
    }
    return _named(path, shapes, read)


def _natural(name: str | Path) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts layer_2 before layer_10.

    Examples:
        >>> sorted(["layer_10", "layer_2"], key=_natural)
        ['layer_2', 'layer_10']
    """
    parts = re.findall(r"\d+|\D+", name.name if isinstance(name, Path) else name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
