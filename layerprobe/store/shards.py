"""Embeddings in safetensors shards: written one by one, read by memory map. Knows rows and layers, not models."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from layerprobe.checks import one_layer
from layerprobe.errors import DamagedStoreError, DataError, StoreError, option
from layerprobe.files.atomic import TEMPORARY, make_directory, store_errors, write_whole
from layerprobe.files.inputs import open_regular
from layerprobe.store.manifest import SAMPLES, Manifest, StoredFile, read_manifest, stored_file, write_manifest

log = logging.getLogger(__name__)

_STORED: dict[str, tuple[str, np.dtype[Any]]] = {
    "float32": ("F32", np.dtype("<f4")),
    "float16": ("F16", np.dtype("<f2")),
}
"""Names of each key's dtype, in safetensors and in numpy."""
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
# Threads for checksums.
MAX_THREADS = 8
LEAST_FOR_THREADS = 2**22
"""Bytes above which checksums use threads; for less, starting threads takes longer than reading."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredEmbeddings:
    """The pooled embedding of every text and layer, on disk."""

    directory: Path
    manifest: Manifest

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output."""
        return self.manifest.n_layers

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Return one layer, (n_rows, width), read-only; a single float32 shard is returned as its memory map."""
        rows = self.rows(layer)
        mapped = rows.alone if rows.dtype == np.float32 else None
        whole = rows[:].astype(np.float32, copy=False) if mapped is None else mapped
        whole.flags.writeable = False
        return whole

    def rows(self, layer: int) -> StoredLayer:
        """Return the same as `layer`, with rows read on demand, for any number of shards."""
        layer = one_layer(layer, self.n_layers - 1)
        check_files(self.directory, self.manifest)
        headers = (_header(self.directory, self.manifest, index) for index in range(self.manifest.n_shards))
        places = [(path, offsets[layer], shape) for path, shape, offsets in headers]
        return StoredLayer(places, _STORED[self.manifest.key.store_dtype][1])


def _memory_map(path: Path, dtype: np.dtype[Any], offset: int, shape: tuple[int, int]) -> NDArray[np.floating]:
    """Return one layer of one shard as a memory map, which keeps a file open while it is in use."""
    with _reading(path, "it", ValueError), open_regular(path) as file:
        return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


class StoredLayer:
    """One layer, (n_rows, width); slices and index arrays read only the rows they need from memory maps of the shards.

    Shards are unmapped after reading, because a large store has more shards than a process may open; a single one
    stays mapped. Values keep their stored precision, float32 or float16, so that measures can allow for rounding.
    """

    def __init__(self, places: Sequence[tuple[Path, int, tuple[int, int]]], dtype: np.dtype[np.floating]) -> None:
        """`places` describe the shards: file, offset of the layer in bytes, and its shape."""
        self.dtype = dtype
        self._places = places
        self._ends = np.cumsum([rows for _, _, (rows, _) in places])
        self.shape = int(self._ends[-1]), places[0][2][1]
        self.alone = None if len(places) > 1 else _memory_map(places[0][0], dtype, *places[0][1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[np.floating]:
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            return self._run(start, max(start, stop))
        chosen = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        selected = np.empty((len(chosen), self.shape[1]), dtype=self.dtype)
        shards = np.searchsorted(self._ends, chosen, side="right")
        for shard in np.unique(shards).tolist():
            here = shards == shard
            selected[here] = self._mapped(shard)[chosen[here] - self._begin(shard)]
        return selected

    def _run(self, start: int, stop: int) -> NDArray[np.floating]:
        """Return consecutive rows."""
        selected = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right").tolist()
        for shard in range(first, last + 1) if start < stop else ():
            begin = self._begin(shard)
            low, high = max(start, begin), min(stop, int(self._ends[shard]))
            selected[low - start : high - start] = self._mapped(shard)[low - begin : high - begin]
        return selected

    def _begin(self, shard: int) -> int:
        return int(self._ends[shard - 1]) if shard else 0

    def _mapped(self, shard: int) -> NDArray[np.floating]:
        if self.alone is not None:
            return self.alone
        path, offset, shape = self._places[shard]
        return _memory_map(path, self.dtype, offset, shape)


class ShardWriter:
    """Writes the missing shards of one entry; made by `Store.writer`."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest

    @property
    def shards(self) -> list[tuple[int, int, int]]:
        """Index, first row and end row of every shard."""
        return [(index, *self._manifest.shard_rows(index)) for index in range(self._manifest.n_shards)]

    @property
    def pending(self) -> list[tuple[int, int, int]]:
        """Index, first row and end row of every shard that is missing or damaged."""
        return [self.shards[index] for index in self._manifest.pending]

    @property
    def place(self) -> tuple[Path, Manifest]:
        """First arguments of `write_shard`, also in other processes."""
        return self._directory, self._manifest

    def written(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return (n_layers, n, width) of n rows of shards that are not pending, in stored precision."""
        manifest, (_, dtype) = self._manifest, _STORED[self._manifest.key.store_dtype]
        embeddings = np.empty((manifest.n_layers, len(rows), manifest.width), dtype=dtype)
        shards = rows // manifest.rows_per_shard
        for index in np.unique(shards).tolist():
            path, shape, offsets = _header(self._directory, manifest, index)
            here = shards == index
            start, _ = manifest.shard_rows(index)
            for layer, offset in enumerate(offsets):
                embeddings[layer, here] = _memory_map(path, dtype, offset, shape)[rows[here] - start]
        return embeddings

    def write(self, index: int, embeddings: NDArray[np.float32], *, n_cut: int = 0) -> None:
        """Write the rows of one pending shard, as `write_shard`, and record it in the manifest."""
        self.note(write_shard(*self.place, index, embeddings, n_cut=n_cut))

    def note(self, shard: StoredFile) -> None:
        """Record a pending shard written by `write_shard` in the manifest."""
        self._update(shards=tuple(sorted((*self._manifest.shards, shard), key=lambda field: field.name)))

    def finish(self) -> StoredEmbeddings:
        """Mark the entry as complete."""
        if not self._manifest.complete:
            self._update(complete=True)
        return StoredEmbeddings(directory=self._directory, manifest=self._manifest)

    def _update(self, **changes: Any) -> None:
        manifest = dataclasses.replace(self._manifest, **changes)
        write_manifest(self._directory, manifest)
        self._manifest = manifest


def write_shard(
    directory: Path, manifest: Manifest, index: int, embeddings: NDArray[np.float32], *, n_cut: int = 0
) -> StoredFile:
    """Write the rows of a shard, (n_layers, rows, width) float32, which the manifest does not list yet.

    `n_cut` is the number of its texts that were truncated at the maximum length.
    """
    _, dtype = _STORED[manifest.key.store_dtype]
    for layer, rows in enumerate(embeddings):
        largest = float(np.abs(rows).max())
        if dtype == np.float16 and largest > LARGEST_FLOAT16:
            raise DataError(
                f"layer {layer} has a value of {largest:,.0f}, above float16's limit of {LARGEST_FLOAT16:,.0f}: store "
                f"embeddings in float32 ({option('store_dtype', 'float32')})"
            )
    data = save({f"layer.{layer}": np.ascontiguousarray(rows, dtype) for layer, rows in enumerate(embeddings)})
    shard = stored_file(manifest.shard_name(index), data, n_cut=n_cut)
    write_whole(directory / shard.name, data)
    return shard


def begin(directory: Path, new: Manifest, ids: NDArray[np.uint64]) -> Manifest:
    """Return the manifest to continue: the one on disk without damaged shards, or else the new one.

    The caller holds the entry's lock. Afterwards the directory contains the manifest, the sample ids and no
    temporary file.
    """
    make_directory(directory)
    on_disk = _resumable(directory, new)
    with store_errors("tidy up", directory):
        for path in directory.glob("*" if on_disk is None else f"{TEMPORARY}*"):
            path.unlink()
    manifest = on_disk or new
    data = _as_json(ids)
    samples = stored_file(SAMPLES, data)
    if problem := samples.problem(directory):
        if on_disk is not None:
            log.warning("%s is damaged, %s: recomputing it", directory / SAMPLES, problem)
        write_whole(directory / SAMPLES, data)
    intact = []
    for shard in manifest.shards:
        if problem := shard.problem(directory):
            log.warning("%s is damaged, %s: recomputing it", directory / shard.name, problem)
        else:
            intact.append(shard)
    complete = manifest.complete and len(intact) == manifest.n_shards
    resumed = dataclasses.replace(manifest, samples=samples, shards=tuple(intact), complete=complete)
    if resumed != on_disk:
        write_manifest(directory, resumed)
    return resumed


def _resumable(directory: Path, new: Manifest) -> Manifest | None:
    try:
        on_disk = read_manifest(directory)
    except DamagedStoreError as error:
        log.warning("%s", error)
        return None
    if on_disk is None:
        return None
    shapes = [(manifest.n_rows, manifest.n_layers, manifest.width) for manifest in (on_disk, new)]
    if shapes[0] != shapes[1]:
        raise StoreError(
            f"{directory} was begun with {shapes[0]} as rows, layers and width, now {shapes[1]}:"
            " remove that entry and extract again"
        )
    return on_disk


def check_files(directory: Path, manifest: Manifest, *, checksums: bool = True) -> None:
    """Raise unless every file of an entry is unchanged; without the checksums only sizes are compared.

    A file that has not changed since this process last read it is not read again.
    """
    files = (manifest.samples, *manifest.shards)

    def problem(file: StoredFile) -> str | None:
        return file.problem(directory, checksum=checksums)

    if checksums and sum(file.bytes for file in files) > LEAST_FOR_THREADS:
        with ThreadPoolExecutor(MAX_THREADS) as threads:  # sha256 lets other threads run
            problems = list(threads.map(problem, files))
    else:
        problems = list(map(problem, files))
    for file, wrong in zip(files, problems, strict=True):
        if wrong:
            raise damaged(directory / file.name, wrong)


def opened(directory: Path, manifest: Manifest, *, checksums: bool = True) -> StoredEmbeddings:
    """Return the embeddings of a complete entry after checking that its files are unchanged.

    Without the checksums only sizes and headers are checked, which is fast.
    """
    check_files(directory, manifest, checksums=checksums)
    for index in range(manifest.n_shards):
        _header(directory, manifest, index)  # raises if the header is garbled
    return StoredEmbeddings(directory=directory, manifest=manifest)


def _header(directory: Path, manifest: Manifest, index: int) -> tuple[Path, tuple[int, int], list[int]]:
    """Return the path of a shard, the shape of its layers, and the offset of each layer."""
    start, stop = manifest.shard_rows(index)
    path = directory / manifest.shard_name(index)
    shape = (stop - start, manifest.width)
    n_layers = manifest.n_layers
    dtype = manifest.key.store_dtype
    # a safetensors file: 8 bytes with the header's length, the header as JSON, the tensors
    with _reading(path, "its header", ValueError, TypeError, KeyError, AttributeError, RecursionError):
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            header = json.loads(file.read(min(length, size)))
        names = {f"layer.{layer}" for layer in range(n_layers)}
        if header.keys() - {"__metadata__"} != names:
            raise ValueError(f"expected {n_layers} layers, got {len(header)}")
        offsets = [_offset(header[f"layer.{layer}"], shape, dtype, 8 + length, size) for layer in range(n_layers)]
    return path, shape, offsets


def _offset(tensor: dict[str, Any], shape: tuple[int, int], dtype: str, start: int, size: int) -> int:
    begin, end = tensor["data_offsets"]
    name, kind = _STORED[dtype]
    expected = shape[0] * shape[1] * kind.itemsize
    if (tensor["dtype"], tensor["shape"], end - begin) != (name, list(shape), expected):
        raise ValueError(f"expected {name} of shape {list(shape)}, got {tensor['dtype']} of shape {tensor['shape']}")
    if not 0 <= begin <= size - start - expected:
        raise ValueError("a tensor lies outside the file")
    return int(start + begin)


def _as_json(ids: NDArray[np.uint64]) -> bytes:
    """Return a JSON list of ids in 16 hexadecimal digits, formatted like `json`."""
    digits = ids.astype(">u8").tobytes().hex().encode()
    rows = np.tile(np.frombuffer(b'"0123456789abcdef", ', dtype=np.uint8), (len(ids), 1))
    rows[:, 1:17] = np.frombuffer(digits, dtype=np.uint8).reshape(-1, 16)
    return b"[" + rows.tobytes()[:-2] + b"]"


@contextlib.contextmanager
def _reading(path: Path, what: str, *garbled: type[Exception]) -> Iterator[None]:
    """Raise DamagedStoreError if a file is missing or garbled; a file that cannot be opened is not damage."""
    try:
        with store_errors("read", path):
            yield
    except garbled as error:
        raise damaged(path, f"{what} is garbled ({error})") from error
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(path, "the file is missing") from error
        raise


def damaged(path: Path, problem: str) -> DamagedStoreError:
    """Return the error that names a file and its problem."""
    return DamagedStoreError(f"{path} is damaged, {problem}: extract again; only damaged parts are recomputed")
