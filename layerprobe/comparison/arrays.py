"""Embeddings of every layer as arrays: in memory, or in files of which only what is used is read. Knows no targets."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, MisalignedSamplesError, MissingPackageError
from layerprobe.similarity.checks import as_array, check_finite, check_shape, not_finite

Rows = slice | NDArray[np.intp]
NUMBERS = 2**22
"""Numbers of a layer that are read at a time: 16 MB."""
NAMED = (".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5")
"""Endings of files of arrays with names, among which targets can be."""
SUFFIXES = (".npy", *NAMED, ".parquet", ".pq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """A (n, d) matrix of which rows are read when they are used."""

    name: str
    """Such as `layer 3`, or what it is called where its name has no number."""
    shape: tuple[int, int]
    read: Callable[[Rows], Any]
    """Rows of it: a slice, or numbers of rows in any order."""
    number: int | None = None
    """The number in its name, where all layers have one; None where its place counts."""

    def rows(self, rows: Rows) -> NDArray[Any]:
        """Return rows as floating-point numbers; raise DegenerateLayerError if one is not finite."""
        values = as_array(self.read(rows), name=self.name)
        check_shape(values.shape, values.dtype, name=self.name)
        check_finite([values], name=self.name)
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)

    @property
    def pieces(self) -> Iterator[slice]:
        """Slices of the rows, from first to last, that are read at a time."""
        n, width = self.shape
        step = max(1, NUMBERS // width)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows in blocks, each with its slice, from first to last."""
        for where in self.pieces:
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

    def unusable(self) -> str | None:
        """Return an error message that counts the rows with NaN or infinite values, None where there are none."""
        return not_finite(as_array(self.read(where), name=self.name) for where in self.pieces)


def as_layers(embeddings: object) -> tuple[Layer, ...]:
    """Return the layers of embeddings, without reading them.

    Layers whose names end in different numbers, such as layer_0, layer_6 and layer_12, have these numbers.

    Args:
        embeddings: (n, layers, features), in memory or memory-mapped, as an array, a tensor or `Embeddings`; a sequence
            of (n, features), whose widths may differ, or a mapping of names to them; or a file or folder: .npy, .npz,
            .safetensors, .pt and .h5 with one such array, or one (n, features) a layer in the order of their names;
            Parquet with a column of lists a layer; a folder with a file a layer. Arrays of one axis in a file, such as
            labels, are no layers.

    Raises:
        DataError: If it is none of these, or has no rows.
        MisalignedSamplesError: If layers have other numbers of rows.
        MissingPackageError: If a .h5 file is to be read without h5py.
    """
    if isinstance(embeddings, str | Path):
        layers = _of_path(Path(embeddings))
    elif isinstance(embeddings, Mapping):
        layers = _named("the mapping", {str(name): _stored(array, str(name)) for name, array in embeddings.items()})
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


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array of which parts are read when they are used: rows, or rows and the number of a layer."""

    shape: tuple[int, ...]
    read: Callable[[Any], Any]

    @property
    def layers(self) -> list[Layer]:
        """Those of (n, layers, features)."""
        n, layers, width = self.shape
        return [
            Layer(name=f"layer {i}", shape=(n, width), read=lambda rows, i=i: self.read((rows, i)))  # type: ignore[misc]
            for i in range(layers)
        ]


def _stored(array: Any, name: str) -> _Stored:
    """Return an array in memory, without copying it; data frames, which index columns, are converted."""
    if hasattr(array, "to_numpy"):
        array = array.to_numpy()
    if not (hasattr(array, "shape") and hasattr(array, "__getitem__")):
        array = np.asarray(array)
    if isinstance(array, np.ma.MaskedArray):
        array = as_array(array, name=name)
    return _Stored(tuple(array.shape), array.__getitem__)


def _matrix(name: str, array: Any) -> Layer:
    """Return one (n, features) array."""
    stored = _stored(array, name)
    shape = stored.shape
    if len(shape) != 2 or shape[1] == 0:
        raise DataError(f"{name} has shape {shape}, expected (samples, features): pool tokens to one vector a sample")
    return Layer(name=name, shape=(shape[0], shape[1]), read=stored.read)


def _of_array(array: Any, name: str) -> list[Layer]:
    if not hasattr(array, "shape"):
        raise DataError(f"expected embeddings as an array, a list of arrays or a file, got a {type(array).__name__}")
    stored = _stored(array, "layer 0")
    if len(stored.shape) == 2:
        return [_matrix("layer 0", array)]
    if len(stored.shape) != 3:
        raise DataError(f"{name} has shape {stored.shape}, expected (samples, layers, features)")
    return stored.layers


def _named(what: object, arrays: Mapping[str, _Stored]) -> list[Layer]:
    """Return the layers of named arrays: those of the one with three axes, or each with two, in order."""
    arrays = {name: array for name, array in arrays.items() if len(array.shape) != 1} or arrays
    whole = [array for array in arrays.values() if len(array.shape) == 3]
    if whole and len(arrays) > 1:
        raise DataError(f"expected one array or an array a layer in {what}, got {', '.join(arrays)}")
    if whole:
        return whole[0].layers
    for name, array in arrays.items():
        if len(array.shape) != 2:
            raise DataError(f"{name} of {what} has shape {array.shape}, expected (samples, features) a layer")
    layers = [
        Layer(name=name, shape=(array.shape[0], array.shape[1]), read=array.read) for name, array in arrays.items()
    ]
    return numbered(layers)


def numbered(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers by the last number of their names, where all have one and the rest is equal; else as they are."""
    parts = [re.fullmatch(r"(.*?)(\d{1,9})(\D*)", layer.name) for layer in layers]
    numbers = [int(part[2]) for part in parts if part]
    if len(set(numbers)) == len(layers) and len({(part[1], part[3]) for part in parts if part}) == 1:
        by_number = sorted(zip(numbers, layers, strict=True), key=lambda pair: pair[0])
        return [
            Layer(name=f"layer {number}", shape=layer.shape, read=layer.read, number=number)
            for number, layer in by_number
        ]
    if len(layers) == 1:
        return [Layer(name="layer 0", shape=layers[0].shape, read=layers[0].read)]
    return list(layers)


# ---- files ----------------------------------------------------------------------------------------------


def _of_path(path: Path) -> list[Layer]:
    try:
        if path.is_dir():
            if (path / "config.json").is_file():
                raise DataError(f"{path} is the folder of a model: expected a task for it, or embeddings as arrays")
            files = sorted((file for file in path.iterdir() if file.suffix in SUFFIXES), key=_natural)
            if not files:
                raise DataError(f"expected a file a layer in {path}, one of {', '.join(SUFFIXES)}, got none")
            layers = []
            for file in files:
                layer, *more = _of_file(file)
                if more:
                    raise DataError(f"expected one layer a file in a folder, got {1 + len(more)} in {file}")
                layers.append(Layer(name=file.stem, shape=layer.shape, read=layer.read))
            return numbered(layers)
        if path.suffix not in SUFFIXES:
            raise DataError(f"expected embeddings in a folder or a file that ends in {', '.join(SUFFIXES)}, got {path}")
        return _of_file(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _of_file(path: Path) -> list[Layer]:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: expected embeddings; was it written to the end?")
    if path.suffix == ".npy":
        return _of_array(opened(path), str(path))
    arrays = arrays_of(path) if path.suffix in NAMED else _of_parquet(path)
    return _named(path, {name: arrays[name] for name in sorted(arrays, key=_natural)})


def arrays_of(path: Path) -> dict[str, _Stored]:
    """Return the arrays of a file by name, without reading them where the format allows it."""
    if path.suffix == ".npz":
        with opened(path) as file:
            shapes = {name: opened(path, name).shape for name in file.files}

        @functools.lru_cache(maxsize=1)  # no row of an .npz can be read alone; the last layer is kept
        def unpacked(name: str) -> NDArray[Any]:
            array: NDArray[Any] = opened(path, name)
            return array

        return {
            name: _Stored(shape, lambda where, name=name: unpacked(name)[where])  # type: ignore[misc]
            for name, shape in shapes.items()
        }
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            tensors: Any = safe_open(path, framework="pt")
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in [*tensors.keys()]}
        except SafetensorError as error:
            raise DataError(f"{path} is no whole safetensors file: {error}") from error
        return {
            name: _Stored(shape, functools.partial(_run_of, functools.partial(tensors.get_slice, name)))
            for name, shape in shapes.items()
        }
    return _of_torch(path) if path.suffix in (".pt", ".pth") else _of_hdf5(path)


def _of_torch(path: Path) -> dict[str, _Stored]:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes, by what is damaged
        raise DataError(
            f"{path} is no whole file of tensors alone, as torch.save writes them in a tensor, a list or a dict: "
            f"{' '.join(str(error).split())[:120]}"
        ) from error
    if isinstance(content, list | tuple):
        content = {f"layer {number}": tensor for number, tensor in enumerate(content)}
    arrays = content if isinstance(content, dict) else {"layer 0": content}
    if other := [name for name, tensor in arrays.items() if not isinstance(tensor, torch.Tensor)]:
        raise DataError(f"expected tensors in {path}, got a {type(arrays[other[0]]).__name__} as {other[0]!r}")
    return {str(name): _stored(tensor, str(name)) for name, tensor in arrays.items()}


def _of_hdf5(path: Path) -> dict[str, _Stored]:
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as error:
        raise MissingPackageError(f"{path} is read by h5py, which is not installed: pip install h5py") from error
    arrays: dict[str, _Stored] = {}

    def add(name: str, item: Any) -> None:
        if hasattr(item, "shape"):  # a data set, no group of them
            arrays[name] = _Stored(tuple(item.shape), functools.partial(_run_of, lambda: item))

    h5py.File(path, "r").visititems(add)
    return arrays


def _run_of(opened: Callable[[], Any], where: Any) -> Any:
    """Return rows of an array that gives slices alone, from the lowest to the highest that is wanted."""
    rows, *layer = where if isinstance(where, tuple) else (where,)
    if isinstance(rows, slice):
        return opened()[(rows, *layer)]
    low = int(rows.min()) if len(rows) else 0
    part = slice(low, int(rows.max()) + 1 if len(rows) else 0)
    return opened()[(part, *layer)][rows - low]


def opened(path: Path, name: str | None = None) -> Any:
    """Return the array of a .npy file, or of that name in an .npz, or the arrays of an .npz; nothing is unpickled."""
    try:
        with path.open("rb") as file:  # numpy leaves a damaged archive open
            if file.read(2) == b"PK":
                zipfile.ZipFile(file).close()
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        content = content if name is None else content[name]
        if not isinstance(content, np.ndarray) and not (name is None and path.suffix == ".npz"):
            raise ValueError(f"{'it' if name is None else name} holds no array")
        return content
    except (ValueError, EOFError, OSError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is no whole array of numbers: {' '.join(str(error).split())[:120]}") from error


@contextlib.contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Turn whatever the bytes lead pyarrow and numpy to into one line."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(f"{path} is no whole Parquet file with lists of numbers: {reason}") from error


def _of_parquet(path: Path) -> dict[str, _Stored]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with _parquet_errors(path):
        file = pq.ParquetFile(path, memory_map=True)
        lists = [f.name for f in file.schema_arrow if pa.types.is_nested(f.type) and not pa.types.is_struct(f.type)]
        if not lists:
            names = ", ".join(file.schema_arrow.names)
            raise DataError(f"expected a column of lists of numbers for each layer in {path}, got the columns {names}")
        ends = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])

    widths: dict[str, int] = {}

    @functools.lru_cache(maxsize=2)
    @_parquet_errors(path)
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

    @_parquet_errors(path)
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
    return {name: _Stored((int(ends[-1]), group(name, 0).shape[1]), functools.partial(read, name)) for name in lists}


def _natural(name: str | Path) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts layer_2 before layer_10.

    Examples:
        >>> sorted(["layer_10", "layer_2"], key=_natural)
        ['layer_2', 'layer_10']
    """
    parts = re.findall(r"\d+|\D+", name.name if isinstance(name, Path) else name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
