"""What of an entry on disk can be gone on with. Knows manifests and checksums, not arrays."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from layerprobe.errors import DamagedStoreError, StoreError
from layerprobe.files import TEMPORARY, make_directory, problem_with, store_errors, write_whole
from layerprobe.store.manifest import SAMPLES, Manifest, StoredFile, read_manifest, write_manifest
from layerprobe.store.shards import stored_file

log = logging.getLogger(__name__)


def begin(directory: Path, new: Manifest, ids: Sequence[str]) -> Manifest:
    """Return the manifest to go on with: that on disk less the shards that are damaged, or else the new one.

    The caller holds the entry's lock. Afterwards the directory has the manifest, the sample ids and no
    temporary file.

    Raises:
        StoreVersionError: If a newer layerprobe wrote the entry.
        StoreError: If the entry was begun with another shape, or a file cannot be written.
    """
    make_directory(directory)
    on_disk = _resumable(directory, new)
    _remove(directory, "*" if on_disk is None else f"{TEMPORARY}*")
    manifest = on_disk or new
    data = json.dumps(ids).encode()
    samples = stored_file(SAMPLES, data)
    if problem_with(directory / SAMPLES, size=samples.bytes, sha256=samples.sha256):
        write_whole(directory / SAMPLES, data)
    intact = tuple(shard for shard in manifest.shards if not _shard_problem(directory, shard))
    complete = manifest.complete and len(intact) == manifest.n_shards
    resumed = dataclasses.replace(manifest, samples=samples, shards=intact, complete=complete)
    if resumed != on_disk:
        write_manifest(directory, resumed)
    return resumed


def _remove(directory: Path, pattern: str) -> None:
    with store_errors("tidy up", directory):
        for path in directory.glob(pattern):
            path.unlink()


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
            f"{directory} was begun with {shapes[0]} as rows, layers and width, now they are {shapes[1]}:"
            " remove that entry and extract again"
        )
    return on_disk


def _shard_problem(directory: Path, shard: StoredFile) -> str | None:
    problem = problem_with(directory / shard.name, size=shard.bytes, sha256=shard.sha256)
    if problem:
        log.warning("%s is damaged, %s: it is redone", directory / shard.name, problem)
    return problem
