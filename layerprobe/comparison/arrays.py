"""Embeddings of every layer as arrays, in memory or in files, which are read in parts. Knows no targets."""

import functools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.names import some
from layerprobe.similarity.checks import as_array, check_finite, check_shape, not_finite

Rows = slice | NDArray[np.intp]
NUMBERS = 2**22
"""Numbers of a layer read at a time: 16 MB."""
NAMED = (".npz", ".safetensors")
"""Endings of files of named arrays, which can include targets."""
SUFFIXES = (".npy", *NAMED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """A (n, d) matrix whose rows are read when used."""

    name: str
    """Name such as `layer 3`, or the given name if it has no number."""
    shape: tuple[int, ...]
    """(n, d); (n, layers, d) for an array not yet divided into layers, and (n,) for labels."""
    read: Callable[[Any], Any]
    """Function from a slice, or row numbers in any order, to rows; for (n, layers, d), from rows and a layer number."""
    number: int | None = None
    """The number in its name, if all layers have one; None if its position counts."""

    def rows(self, rows: Rows) -> NDArray[Any]:
        """Return rows in float32, or float64 if needed; raise DegenerateLayerError for NaN."""
        values = as_array(self.read(rows), name=self.name)
        check_shape(values.shape, values.dtype, name=self.name)
        check_finite([values], name=self.name)
        exact = values.dtype == np.float32 or values.dtype.itemsize <= 2
        return values.astype(np.float32 if exact else np.float64, copy=False)

    @property
    def pieces(self) -> Iterator[slice]:
        """Slices of the rows, from first to last, to read at a time."""
        n, width = self.shape
        step = max(1, NUMBERS // max(1, width))
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows in blocks, each with its slice, from first to last."""
        for where in self.pieces:
            yield where, self.rows(where)

    def unusable(self) -> str | None:
        """Return an error message that counts the rows with NaN or infinite values; None if there are none."""
        return not_finite(as_array(self.read(where), name=self.name) for where in self.pieces)


def as_layers(embeddings: object) -> tuple[Layer, ...]:
    """Return the layers of embeddings, without reading them.

    Layers whose names end in different numbers, such as layer_0, layer_6 and layer_12, have these numbers.

    Args:
        embeddings: (n, layers, features), in memory or memory-mapped, as an array, a tensor or `Embeddings`; a sequence
            of (n, features), whose widths may differ, or a mapping of names to them; or a file or folder: .npy, .npz,
            .safetensors with one such array, or one (n, features) per layer in the order of their names; a folder with
            one file per layer. One-dimensional arrays in a file, such as labels, are ignored.

    Raises:
        DataError: If `embeddings` is none of these, or has no rows.
        MisalignedSamplesError: If layers have different numbers of rows.
    """
    if isinstance(embeddings, str | Path):
        layers = _path_layers(Path(embeddings))
    elif isinstance(embeddings, Mapping):
        layers = _named("the mapping", [_stored(array, str(name)) for name, array in embeddings.items()])
    elif isinstance(embeddings, Sequence):
        layers = [_matrix(f"layer {number}", array) for number, array in enumerate(embeddings)]
    else:
        layers = _array_layers(embeddings, "embeddings")
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


def _divided(array: Layer) -> list[Layer]:
    """Return the layers of a (n, layers, features) array."""
    n, layers, width = array.shape
    return [
        Layer(name=f"layer {i}", shape=(n, width), read=lambda rows, i=i: array.read((rows, i)))  # type: ignore[misc]
        for i in range(layers)
    ]


def _stored(array: Any, name: str) -> Layer:
    """Return an array in memory, without copying it; data frames, which index columns, are converted."""
    if hasattr(array, "to_numpy"):
        array = array.to_numpy()
    in_parts = all(hasattr(type(array), name) for name in ("shape", "__getitem__", "__array__"))
    if not in_parts or hasattr(array, "detach") or isinstance(array, np.ma.MaskedArray):
        array = as_array(array, name=name)
    return Layer(name=name, shape=tuple(array.shape), read=array.__getitem__)


def _matrix(name: str, array: Any) -> Layer:
    """Return one (n, features) array."""
    layer = _stored(array, name)
    shape = layer.shape
    if len(shape) != 2 or shape[1] == 0:
        raise DataError(f"{name} has shape {shape}, expected (samples, features): pool tokens to one vector per sample")
    return layer


def _array_layers(array: Any, name: str) -> list[Layer]:
    if not hasattr(type(array), "shape"):  # the type's: a nested tensor raises for its own
        raise DataError(f"expected embeddings as an array, a list of arrays or a file, got a {type(array).__name__}")
    stored = _stored(array, "layer 0")
    if len(stored.shape) == 2:
        return [_matrix("layer 0", array)]
    if len(stored.shape) != 3:
        raise DataError(f"{name} has shape {stored.shape}, expected (samples, layers, features)")
    return _divided(stored)


def _named(what: object, arrays: Sequence[Layer]) -> list[Layer]:
    """Return the layers of named arrays: of a single one with three axes, or of those with two, in order."""
    arrays = [array for array in arrays if len(array.shape) != 1] or arrays
    whole = [array for array in arrays if len(array.shape) == 3]
    if whole and len(arrays) > 1:
        raise DataError(
            f"expected one array, or one array per layer, in {what}, got {some([one.name for one in arrays])}"
        )
    if whole:
        return _divided(whole[0])
    for array in arrays:
        if len(array.shape) != 2:
            raise DataError(f"{array.name} of {what} has shape {array.shape}, expected (samples, features) per layer")
    return numbered(arrays)


def numbered(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers by the last number in their names, if all have one and the rest is equal; else unchanged."""
    parts = [re.fullmatch(r"(.*?)(\d{1,9})(\D*)", layer.name) for layer in layers]
    numbers = [int(part[2]) for part in parts if part]
    if len(set(numbers)) == len(layers) and len({(part[1], part[3]) for part in parts if part}) == 1:
        by_number = sorted(zip(numbers, layers, strict=True), key=lambda pair: pair[0])
        return [replace(layer, name=f"layer {number}", number=number) for number, layer in by_number]
    if len(layers) == 1:
        return [replace(layers[0], name="layer 0")]
    return list(layers)


def _path_layers(path: Path) -> list[Layer]:
    try:
        if path.is_dir():
            if (path / "config.json").is_file():
                raise DataError(f"{path} is the folder of a model: expected a task for it, or embeddings as arrays")
            files = sorted((file for file in path.iterdir() if file.suffix in SUFFIXES), key=_natural)
            if not files:
                raise DataError(
                    f"expected one file per layer in {path}, with an ending of {', '.join(SUFFIXES)}, got none"
                )
            layers = []
            for file in files:
                layer, *more = _file_layers(file)
                if more:
                    raise DataError(f"expected one layer per file in a folder, got {1 + len(more)} in {file}")
                layers.append(replace(layer, name=file.stem, number=None))
            return numbered(layers)
        if path.suffix not in SUFFIXES:
            raise DataError(f"expected embeddings in a folder or a file that ends in {', '.join(SUFFIXES)}, got {path}")
        return _file_layers(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _file_layers(path: Path) -> list[Layer]:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: expected embeddings; was it written to the end?")
    if path.suffix == ".npy":
        return _array_layers(opened(path), str(path))
    return _named(path, sorted(arrays_of(path), key=lambda array: _natural(array.name)))


def arrays_of(path: Path) -> list[Layer]:
    """Return the arrays of a file, without reading them if the format allows it."""
    if path.suffix == ".npz":
        with opened(path) as file:
            shapes = {name: opened(path, name).shape for name in file.files}

        @functools.lru_cache(maxsize=1)  # rows of an .npz cannot be read alone; the last layer is cached
        def unpacked(name: str) -> NDArray[Any]:
            return opened(path, name)

        return [
            Layer(name=name, shape=shape, read=lambda where, name=name: unpacked(name)[where])  # type: ignore[misc]
            for name, shape in shapes.items()
        ]
    from safetensors import SafetensorError, safe_open

    try:
        tensors: Any = safe_open(path, framework="pt")
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in [*tensors.keys()]}
    except SafetensorError as error:
        raise DataError(f"{path} is not a complete safetensors file: {error}") from error
    return [
        Layer(name=name, shape=shape, read=functools.partial(_run_of, functools.partial(tensors.get_slice, name)))
        for name, shape in shapes.items()
    ]


def _run_of(opened: Callable[[], Any], where: Any) -> Any:
    """Return rows of an array that only supports slices, via the slice from the lowest to the highest wanted row."""
    rows, *layer = where if isinstance(where, tuple) else (where,)
    if isinstance(rows, slice):
        return opened()[(rows, *layer)]
    low = int(rows.min()) if len(rows) else 0
    part = slice(low, int(rows.max()) + 1 if len(rows) else 0)
    return opened()[(part, *layer)][rows - low]


def opened(path: Path, name: str | None = None) -> Any:
    """Return the array of a .npy file, a named array of an .npz, or all its arrays; nothing is unpickled."""
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
        raise DataError(f"{path} is not a complete array of numbers: {' '.join(str(error).split())[:120]}") from error


def _natural(name: str | Path) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts layer_2 before layer_10.

    Examples:
        >>> sorted(["layer_10", "layer_2"], key=_natural)
        ['layer_2', 'layer_10']
    """
    parts = re.findall(r"\d+|\D+", name.name if isinstance(name, Path) else name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
