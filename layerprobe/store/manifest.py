"""The manifest of a store entry. Knows its format, not the embeddings."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerprobe.errors import DamagedStoreError, DataError, StoreVersionError
from layerprobe.files.atomic import inside, problem_with, store_errors
from layerprobe.files.checked_json import write_kept
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import RARE, digest, from_dict, unsealed
from layerprobe.store.key import StoreKey
from layerprobe.versions import FORMAT_VERSION

MANIFEST = "manifest.json"
SAMPLES = "samples.json"
_DESCRIPTION_DIGEST = "description_sha256"
SAMPLE_BYTES = 20
"""Of the id of a row: 16 hexadecimal digits, two quotes, a comma and a space."""
MAX_SHARDS = 10**5
"""Of an entry; their numbers have five digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A finished file beside the manifest."""

    name: str
    bytes: int
    sha256: str
    n_cut: int = field(default=0, metadata=RARE)
    """Texts of a shard that were cut at the maximum length."""

    def problem(self, directory: Path, *, checksum: bool = True, again: bool = False) -> str | None:
        """Return what is wrong with the file, or None; without the checksum only its size is compared.

        With `again` its bytes are read even if this process knows their checksum.
        """
        sha256 = self.sha256 if checksum else None
        return problem_with(directory / self.name, size=self.bytes, sha256=sha256, again=again)


def stored_file(name: str, data: bytes, *, n_cut: int = 0) -> StoredFile:
    """Return the size and checksum of what is written under a name."""
    return StoredFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), n_cut=n_cut)


def entry_bytes(key: StoreKey, *, n_rows: int, n_layers: int, width: int) -> int:
    """Return what an entry takes on disk when it is complete, but for headers of some kilobytes."""
    return n_rows * (n_layers * width * key.item_bytes + SAMPLE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry: its key, its shape and its finished files.

    Shards hold consecutive rows, all of `rows_per_shard` but the last.
    """

    format: int
    """Version of the format; this layerprobe writes `FORMAT_VERSION`."""
    key: StoreKey
    n_rows: int
    """Distinct texts."""
    n_layers: int
    width: int
    """Features of a layer."""
    rows_per_shard: int
    created: str
    """ISO 8601, UTC."""
    layerprobe: str
    """Version that wrote it."""
    samples: StoredFile
    """The ids of the rows."""
    shards: tuple[StoredFile, ...] = ()
    """The finished ones, in order."""
    complete: bool = False
    """Whether all shards are there."""
    description: dict[str, Any] = field(default_factory=dict)
    """Strings, numbers and lists worth knowing that the numbers do not depend on."""

    def __post_init__(self) -> None:
        if min(self.n_rows, self.n_layers, self.width, self.rows_per_shard) < 1:
            raise DataError("a size is not positive")
        if self.n_shards > MAX_SHARDS:
            raise DataError(f"its sizes imply {self.n_shards:,} shards, of at most {MAX_SHARDS:,}")
        expected = [self.shard_name(index) for index in range(self.n_shards)]
        names = [shard.name for shard in self.shards]
        # Names are compared with those that the sizes imply, so none can lead out of the directory.
        if self.samples.name != SAMPLES or not set(names) <= set(expected) or names != sorted(set(names)):
            raise DataError("it lists files with unexpected names")
        if self.complete and len(names) < len(expected):
            raise DataError("it says complete and lacks shards")

    @property
    def n_shards(self) -> int:
        """Number of shards, finished or not."""
        return -(-self.n_rows // self.rows_per_shard)

    def shard_name(self, index: int) -> str:
        """Return the file name of a shard."""
        return f"shard-{index:05d}-of-{self.n_shards:05d}.safetensors"

    def shard_rows(self, index: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last."""
        return index * self.rows_per_shard, min((index + 1) * self.rows_per_shard, self.n_rows)

    @property
    def bytes(self) -> int:
        """What all files take when they are there, but for headers."""
        return entry_bytes(self.key, n_rows=self.n_rows, n_layers=self.n_layers, width=self.width)

    @property
    def n_cut(self) -> int:
        """Texts of the finished shards that were cut at the maximum length; 0 in formats 1 and 2."""
        return sum(shard.n_cut for shard in self.shards)

    @property
    def pending(self) -> tuple[int, ...]:
        """The shards that are not finished."""
        finished = {shard.name for shard in self.shards}
        return tuple(index for index in range(self.n_shards) if self.shard_name(index) not in finished)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, whole or not at all, with its checksum."""
    write_kept(directory / MANIFEST, manifest, root=directory.parent)


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of an entry, None where there is none yet."""
    path = inside(directory, directory / MANIFEST)
    with store_errors("read", path):
        try:
            data = read_document(path, limit=None)
        except FileNotFoundError:
            return None
    try:
        manifest = _parsed(data, path)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedStoreError(f"{path} is garbled ({error}): extract again to start this entry afresh") from error
    if manifest.key.fingerprint != directory.name:
        raise DamagedStoreError(f"{path} belongs to another entry: extract again to start this entry afresh")
    return manifest


def _parsed(data: bytes, path: Path) -> Manifest:
    raw = json.loads(data.decode())
    if not isinstance(raw, dict) or type(raw.get("format")) is not int:
        raise DataError("it has no format version")
    if raw["format"] > FORMAT_VERSION:  # whose checksum may be of another kind
        raise StoreVersionError(
            f"{path} has format {raw['format']}, this layerprobe reads up to {FORMAT_VERSION}:"
            " upgrade layerprobe, or choose another folder with --cache-dir"
        )
    content, checksum = unsealed(raw)
    # format 1 had a checksum of its description alone; all else of it that numbers depend on is in names and headers
    if content["format"] == 1 and content.pop(_DESCRIPTION_DIGEST, None) != digest(content.get("description")):
        raise DataError("its description is not the one that was written")
    if content["format"] != 1 and checksum is None:
        raise DataError("it has no checksum")
    manifest: Manifest = from_dict(Manifest, content)
    return manifest
