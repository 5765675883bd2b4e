"""The key of a store entry, everything its numbers depend on, and its manifest. Knows the format, no embeddings."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DamagedStoreError, DataError
from layerprobe.files.atomic import problem_with, read_kept, write_kept
from layerprobe.files.serialisation import RARE, digest, to_dict
from layerprobe.store import StoreDtype
from layerprobe.versions import EMBEDDING_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKey:
    """Everything the numbers depend on; further information is in the manifest's description."""

    model: str
    """Hub id or folder."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    tokenizer: str
    """Digest of the tokenizer."""
    pooling: str
    """mean, cls, max or last."""
    max_length: int
    """Maximum number of tokens per text."""
    dtype: str
    """Precision of the forward pass."""
    norm: str
    """final or raw; read: final, of a model whose blocks cannot be removed."""
    prompt: str
    """Prefix of every text."""
    random_init: int | None
    """Seed of random weights; None for the checkpoint's weights."""
    trust_remote_code: bool
    """Whether code of the checkpoint was allowed to run."""
    texts_digest: str
    """`texts_digest` of the distinct texts, in order."""
    store_dtype: StoreDtype = field(default="float32", metadata=RARE)
    """Precision of the stored embeddings."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Numbers of the kept blocks; None: all."""
    model_kwargs: str = field(default="", metadata=RARE)
    """Other arguments for loading the model, as JSON."""
    dim: int | None = field(default=None, metadata=RARE)
    """Number of kept features; None: all."""
    unpooled: tuple[str, ...] = field(default=(), metadata=RARE)
    """Prompts at the beginning of texts whose tokens are not pooled."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the sha256 of all fields and of a version; names the directory."""
        return digest({"format": EMBEDDING_VERSION, **to_dict(self)})[:32]


def is_fingerprint(name: str) -> bool:
    """Return whether a name has the form of a `StoreKey`'s fingerprint.

    Examples:
        >>> is_fingerprint("notes")
        False
    """
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def texts_digest(texts: Iterable[str]) -> str:
    """Return the sha256 of texts in order: that of their list as JSON, with one text in memory at a time.

    Examples:
        >>> texts_digest(["a", "b"]) == texts_digest(["b", "a"])
        False
        >>> texts_digest(["a", "b"]) == digest(["a", "b"])
        True
    """
    as_json = json.JSONEncoder(ensure_ascii=False).encode
    sha256 = hashlib.sha256(b"[")
    for number, text in enumerate(texts):
        sha256.update(f"{',' if number else ''}{as_json(text)}".encode("utf-8", "surrogatepass"))
    sha256.update(b"]")
    return sha256.hexdigest()


def sample_ids(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of the sha256 of every text, as big-endian numbers.

    Examples:
        >>> [f"{number:016x}" for number in sample_ids(["a"])]
        ['ca978112ca1bbdca']
    """
    sums = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts)
    return np.fromiter((int.from_bytes(sha) for sha in sums), dtype=np.uint64)


def first_rows(texts: Sequence[str], ids: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the rows of texts without duplicates of earlier ones, ascending; `ids` are their `sample_ids`.

    Only texts with the same id are compared, so that memory holds no more than these.

    Examples:
        >>> texts = ["b", "a", "b", "c", "a"]
        >>> first_rows(texts, sample_ids(texts)).tolist()
        [0, 1, 3]
    """
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    ends = np.append(begins[1:], len(ids))
    first = np.ones(len(ids), dtype=bool)
    several = ends - begins > 1
    for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        seen: set[str] = set()
        for row in order[begin:end].tolist():  # ascending, because the order is stable
            text = texts[row]
            first[row] = text not in seen
            seen.add(text)
    return np.flatnonzero(first)


MANIFEST = "manifest.json"
SAMPLES = "samples.json"
SAMPLE_BYTES = 20
"""Bytes per id: 16 hexadecimal digits, two quotes, a comma and a space."""
MAX_SHARDS = 10**5
"""Most shards of an entry; their numbers have five digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A finished file beside the manifest."""

    name: str
    bytes: int
    sha256: str
    n_cut: int = field(default=0, metadata=RARE)
    """Number of texts of a shard that were truncated at the maximum length."""

    def problem(self, directory: Path, *, checksum: bool = True) -> str | None:
        """Return the problem of the file, or None; without the checksum only its size is compared."""
        sha256 = self.sha256 if checksum else None
        return problem_with(directory / self.name, size=self.bytes, sha256=sha256)


def stored_file(name: str, data: bytes, *, n_cut: int = 0) -> StoredFile:
    """Return the size and checksum of the data of a file."""
    return StoredFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), n_cut=n_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry: its key, its shape and its finished files.

    Shards hold consecutive rows, all but the last `rows_per_shard` of them.
    """

    key: StoreKey
    n_rows: int
    """Number of distinct texts."""
    n_layers: int
    width: int
    """Number of features per layer."""
    rows_per_shard: int
    created: str
    """ISO 8601, UTC."""
    layerprobe: str
    """Version of layerprobe that wrote it."""
    samples: StoredFile
    """File with the ids of the rows."""
    shards: tuple[StoredFile, ...] = ()
    """Finished shards, in order."""
    complete: bool = False
    """Whether all shards are finished."""
    description: dict[str, Any] = field(default_factory=dict)
    """Strings, numbers and lists that do not affect the numbers."""

    def __post_init__(self) -> None:
        if min(self.n_rows, self.n_layers, self.width, self.rows_per_shard) < 1:
            raise DataError("a size is not positive")
        if self.n_shards > MAX_SHARDS:
            raise DataError(f"its sizes imply {self.n_shards:,} shards, of at most {MAX_SHARDS:,}")
        expected = [self.shard_name(index) for index in range(self.n_shards)]
        names = [shard.name for shard in self.shards]
        # Names must be those that the sizes imply, so none can point outside the directory.
        if self.samples.name != SAMPLES or not set(names) <= set(expected) or names != sorted(set(names)):
            raise DataError("it lists files with unexpected names")
        if self.complete and len(names) < len(expected):
            raise DataError("it is marked complete but lacks shards")

    @property
    def n_shards(self) -> int:
        """Number of shards, finished or not."""
        return -(-self.n_rows // self.rows_per_shard)

    def shard_name(self, index: int) -> str:
        """Return the file name of a shard."""
        return f"shard-{index:05d}-of-{self.n_shards:05d}.safetensors"

    def shard_rows(self, index: int) -> tuple[int, int]:
        """Return the first row of a shard and its end row."""
        return index * self.rows_per_shard, min((index + 1) * self.rows_per_shard, self.n_rows)

    @property
    def n_cut(self) -> int:
        """Number of texts in finished shards that were truncated at the maximum length."""
        return sum(shard.n_cut for shard in self.shards)

    @property
    def pending(self) -> tuple[int, ...]:
        """Indices of the unfinished shards."""
        finished = {shard.name for shard in self.shards}
        return tuple(index for index in range(self.n_shards) if self.shard_name(index) not in finished)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, whole or not at all, with its checksum."""
    write_kept(directory / MANIFEST, manifest, root=directory.parent)


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of an entry, None if there is none yet."""
    path = directory / MANIFEST
    try:
        manifest = read_kept(Manifest, path, root=directory.parent)
    except DamagedStoreError as error:
        raise DamagedStoreError(f"{error}: extract again to start this entry afresh") from error
    if manifest is not None and manifest.key.fingerprint != directory.name:
        raise DamagedStoreError(f"{path} belongs to another entry: extract again to start this entry afresh")
    return manifest
