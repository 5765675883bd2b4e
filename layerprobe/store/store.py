"""The folder of all entries and cached results, and their states. Knows files, not models and not maths.

root/embeddings/<fingerprint>/manifest.json, samples.json, shard-00000-of-00008.safetensors, ...
root/results/<kind>/<key>.json
root/locks/<fingerprint>.lock
"""

import contextlib
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from platformdirs import user_cache_path

from layerprobe.errors import DamagedStoreError, DataError, FormatError, StoreError, another_folder, option
from layerprobe.files.atomic import (
    TEMPORARY,
    inside,
    locked,
    make_directory,
    read_kept,
    readable_size,
    store_errors,
    tree_bytes,
    write_kept,
)
from layerprobe.files.inputs import from_home, read_document
from layerprobe.files.serialisation import CHECKSUM, from_dict, parse_json
from layerprobe.store.manifest import (
    MANIFEST,
    SAMPLE_BYTES,
    SAMPLES,
    Manifest,
    StoredFile,
    StoreKey,
    is_fingerprint,
    read_manifest,
    sample_ids,
)
from layerprobe.store.shards import ShardWriter, StoredEmbeddings, begin, opened
from layerprobe.versions import __version__

State = Literal["complete", "partial", "damaged", "other version", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One extraction in the store, or one model's fine-tuning runs on one task, finished or not."""

    directory: Path
    state: State
    """complete; partial: can be resumed; damaged: partly recomputed; other version: written by another layerprobe;
    unreadable: another user's, without read permission."""
    bytes: int
    """Total size of its files, in bytes."""
    modified: float
    """Time of the last added file, in seconds since 1970."""
    manifest: Manifest | None = None
    """None if it is missing or cannot be read."""
    runs: int | None = None
    """Number of runs; None for an extraction."""
    origin: tuple[str, str] = ("", "")
    """Model and task of runs; empty if unknown."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the entry's key."""
        return self.directory.name

    @property
    def model(self) -> str:
        """Hub id or folder; empty if the manifest cannot be read."""
        return self.manifest.key.model if self.manifest else self.origin[0]

    @property
    def record(self) -> dict[str, Any]:
        """Summary of the entry, for JSON and tables."""
        modified = datetime.fromtimestamp(self.modified, UTC).isoformat(timespec="seconds")
        if self.runs is not None:
            model, task = self.origin
            about = {"fingerprint": self.fingerprint, "state": self.state, "model": model, "task": task}
            return {**about, "runs": self.runs, "bytes": self.bytes, "modified": modified}
        manifest = self.manifest
        described = manifest.description.get("model", {}) if manifest else {}
        return {
            "fingerprint": self.fingerprint,
            "state": self.state,
            "model": described.get("name", self.model),
            "layers": manifest.n_layers if manifest else "",
            "texts": manifest.n_rows if manifest else "",
            "features": manifest.width if manifest else "",
            "dtype": manifest.key.store_dtype if manifest else "",
            "bytes": self.bytes,
            "modified": modified,
        }


def extraction_entry(directory: Path) -> Entry:
    """Return the summary of one entry."""
    state: State = "partial"
    size = 0
    modified = 0.0
    manifest = None
    try:
        modified = directory.stat().st_mtime
        size = tree_bytes(directory)
        manifest = read_manifest(directory)
        if manifest is not None and manifest.complete:
            opened(directory, manifest, checksums=False)
            state = "complete"
    except FormatError:
        state = "other version"
    except (StoreError, OSError) as error:
        denied = isinstance(error.__cause__ or error, PermissionError)
        state = "unreadable" if denied else "damaged"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, manifest=manifest)


def runs_entry(directory: Path) -> Entry:
    """Return the summary of one model's runs on one task; those begun and not finished are partial."""
    finished = list(directory.glob("*/result.json"))
    names = ("", "")
    with contextlib.suppress(OSError, DataError, LookupError, TypeError):
        origin = parse_json(read_document(directory / "origin.json", limit=None))
        names = str(origin["model"]["name"]), str(origin["task"])
    with store_errors("read", directory):
        size = tree_bytes(directory)
        modified = max(path.stat().st_mtime for path in (directory, *finished))
    begun = sum(path.is_dir() for path in directory.iterdir())
    state: State = "complete" if finished and len(finished) == begun else "partial"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, runs=len(finished), origin=names)


log = logging.getLogger(__name__)

SHARD_BYTES = 64 * 2**20
"""Size of a shard in memory, as float32."""
ITEM_BYTES = 4
MIN_SHARD_ROWS, MAX_SHARD_ROWS = 256, 65536
DAY = 86400
LEFT = 3600
"""Seconds after which a small temporary file is certainly abandoned."""
_RESULT = "result"

T = TypeVar("T")


class Store:
    """Entries and results under one folder.

    Args:
        root: The folder; by default `LAYERPROBE_CACHE`, or layerprobe's folder in the user's cache.
        rows_per_shard: Rows per shard of new entries; by default as many as fit 64 MiB, from 256 to 65536.
    """

    def __init__(self, root: str | Path | None = None, *, rows_per_shard: int | None = None) -> None:
        # absolute: later reads work after a change of the working directory
        root = root or os.environ.get("LAYERPROBE_CACHE")
        try:
            self.root = from_home(root or user_cache_path("layerprobe", appauthor=False)).absolute()
        except RuntimeError as error:
            raise StoreError(f"{error}: {another_folder()}") from error
        self._rows_per_shard = rows_per_shard

    def open(self, key: StoreKey) -> StoredEmbeddings | None:
        """Return the complete entry of a key, None if there is none.

        All its files are read and their checksums compared, once per process unless the files change.
        """
        directory = self._directory(key.fingerprint)
        manifest = read_manifest(directory)
        return opened(directory, manifest) if manifest is not None and manifest.complete else None

    @contextlib.contextmanager
    def writer(
        self,
        key: StoreKey,
        *,
        texts: Sequence[str],
        n_layers: int,
        width: int,
        description: Mapping[str, Any] | None = None,
    ) -> Iterator[ShardWriter]:
        """Lock the entry of a key and its distinct texts for writing; missing or damaged parts are resumed.

        While another process writes the entry, this call waits, and then nothing is pending. The description is
        strings, numbers and lists to store beside the embeddings.
        """
        needed, free = self.room(key, n_rows=len(texts), n_layers=n_layers, width=width)
        if needed > free:
            halved = f", or halve them with {option('store_dtype', 'float16')}" if key.store_dtype == "float32" else ""
            raise StoreError(
                f"embeddings need {readable_size(needed)} of free space in {self.root}, which has "
                f"{readable_size(free)}: free some space, {another_folder()}{halved}"
            )
        rows = min(max(SHARD_BYTES // max(1, n_layers * width * ITEM_BYTES), MIN_SHARD_ROWS), MAX_SHARD_ROWS)
        new = Manifest(
            key=key,
            n_rows=len(texts),
            n_layers=n_layers,
            width=width,
            rows_per_shard=self._rows_per_shard or rows,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            layerprobe=__version__,
            samples=StoredFile(name=SAMPLES, bytes=0, sha256=""),
            description=dict(description or {}),
        )
        directory = self._directory(key.fingerprint)
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(self._lock(key.fingerprint)):
                log.info("waiting for another process to write %s", directory)
                stack.enter_context(self._lock(key.fingerprint, wait=True))
            yield ShardWriter(directory, begin(directory, new, sample_ids(texts)))

    def room(self, key: StoreKey, *, n_rows: int, n_layers: int, width: int) -> tuple[int, int]:
        """Return the number of bytes still to be written for a key's entry, and the free bytes."""
        directory = self._directory(key.fingerprint)
        with store_errors("read", self.root):
            size = tree_bytes(directory)
            existing = next(folder for folder in (self.root, *self.root.absolute().parents) if folder.exists())
            free = shutil.disk_usage(existing).free
        row_bytes = n_layers * width * (2 if key.store_dtype == "float16" else 4) + SAMPLE_BYTES
        return max(0, n_rows * row_bytes - size), free  # ignores headers of some kilobytes

    def entries(self) -> list[Entry]:
        """Return the entries of the store, the latest first."""
        return sorted(map(extraction_entry, self._directories()), key=lambda entry: -entry.modified)

    def runs(self) -> list[Entry]:
        """Return the fine-tuning runs in the store, one entry per model and task, the latest first."""
        return sorted(map(runs_entry, self._directories(below="runs")), key=lambda entry: -entry.modified)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each category of files in the folder; they add up to the folder's size."""
        folders = {"extractions": "embeddings", "runs": "runs", "results": "results", "locks": "locks"}
        sizes = {what: tree_bytes(self.root / folder) for what, folder in folders.items()}
        return {**sizes, "other files": tree_bytes(self.root) - sum(sizes.values())}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{readable_size(size)} of {what}" for what, size in self.sizes().items() if size)
        return f"<Store {self.root}: {sizes or 'empty'}>"

    def entry(self, beginning: str, *, runs: bool = False) -> Entry:
        """Return the only entry whose fingerprint has this beginning; raise StoreError if there is none, or several."""
        entries = self.entries() + (self.runs() if runs else [])
        matching = [entry for entry in entries if beginning and entry.fingerprint.startswith(beginning)]
        if len(matching) != 1:
            what = "is no extraction" if not matching else f"are {len(matching)} extractions"
            raise StoreError(f"there {what} whose fingerprint begins with {beginning!r}: see `layerprobe cache list`")
        return matching[0]

    def prune(
        self,
        *,
        older_than_days: float | None = None,
        partial_only: bool = False,
        fingerprint: str | None = None,
        model: str | None = None,
        runs: bool = False,
        everything: bool = False,
        dry_run: bool = False,
    ) -> tuple[list[Entry], int]:
        """Remove the extractions that meet all given conditions, and with `runs` such runs, which are expensive.

        Entries that a process is writing stay.

        Args:
            older_than_days: Minimum age of the last added file, in days.
            partial_only: Only unfinished ones.
            fingerprint: Only this one.
            model: Only those of models whose name contains this.
            runs: Also fine-tuning runs, with their weights.
            everything: All of them, and cached results; cannot be combined with other conditions.
            dry_run: Only list what would be removed.

        Returns:
            The removed entries, or those to remove, and the number of bytes freed, cached results included.
        """
        conditions = (older_than_days, fingerprint, model, partial_only or None)
        if everything == any(condition is not None for condition in conditions):
            raise DataError("expected an age, a model, partial entries, a fingerprint, or everything alone")
        before = math.inf if older_than_days is None else time.time() - older_than_days * DAY
        of_runs = [entry for entry in self.runs() if fingerprint in (None, entry.fingerprint)] if runs else []
        named = fingerprint is not None and bool(of_runs)
        entries = of_runs + ([] if named else [*map(extraction_entry, self._directories(fingerprint))])
        chosen = [
            entry
            for entry in entries
            if entry.modified < before
            and (model or "") in entry.model
            and (entry.state == "partial" or not partial_only)
        ]
        removed = [entry for entry in chosen if dry_run or self._remove(entry, alone=len(chosen) == 1)]
        freed = sum(entry.bytes for entry in removed)
        if everything or partial_only:
            freed += self._remove_results(everything=everything, dry_run=dry_run)
        return removed, freed

    def load_result(self, kind: str, key: str, result: type[T]) -> T | None:
        """Return a result; None if there is none, or if it is unusable, which is logged: it will be recomputed."""
        path = self._result(kind, key)
        try:
            # a stored result has one field, because the checksum needs an object
            entry = read_kept(dict[str, Any], path, root=self.root)
            return None if entry is None else cast("T", from_dict(result, entry.get(_RESULT)))
        except (DamagedStoreError, DataError) as error:
            log.warning("%s: recomputing it", error)
            return None

    def save_result(self, kind: str, key: str, result: Any) -> None:
        """Save a result that `to_dict` can convert to JSON, whole or not at all."""
        path = self._result(kind, key)
        make_directory(path.parent)
        write_kept(path, {_RESULT: result}, root=self.root)

    def _directory(self, fingerprint: str) -> Path:
        return inside(self.root, self.root / "embeddings" / fingerprint)

    def _directories(self, fingerprint: str | None = None, *, below: str = "embeddings") -> list[Path]:
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"expected the folder of a store, got the file {self.root}: {another_folder()}")
        folder = inside(self.root, self.root / below)
        directories = []
        if folder.exists():
            with store_errors("read", folder):
                names = sorted(path for path in folder.iterdir() if is_fingerprint(path.name))
                directories = [path for path in names if path.is_dir() and not path.is_symlink()]
            for path in names:
                if path.is_symlink():
                    log.warning("%s is a link, not an entry: remove it", path)
        if fingerprint is None:
            return directories
        if folder / fingerprint not in directories:
            raise StoreError(f"no entry {fingerprint!r} in {self.root}: see `layerprobe cache list`")
        return [self._directory(fingerprint)]

    def _result(self, kind: str, key: str) -> Path:
        return inside(self.root, self.root / "results" / kind / f"{key}.json")

    def _lock(self, fingerprint: str, *, wait: bool = False) -> AbstractContextManager[bool]:
        # Not in the entry's directory: pruning would remove a lock that another process waits for.
        return locked(self.root, self.root / "locks" / f"{fingerprint}.lock", wait=wait)

    def _remove(self, entry: Entry, *, alone: bool) -> bool:
        """Remove an entry, or runs, unless a process is writing it; with several, log those that cannot be removed."""
        try:
            return self._removed(entry.directory) if entry.runs is None else self._removed_runs(entry.directory)
        except StoreError as error:
            if alone:
                raise
            log.warning("not removed: %s", error)
            return False

    def _removed(self, directory: Path) -> bool:
        fingerprint = directory.name
        with self._lock(fingerprint) as held, store_errors("remove", directory):
            if held:
                # First: an interruption then leaves an entry without shards, not a damaged one.
                (directory / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(directory)
            else:
                log.warning("%s is being written: not removed", directory)
        return held

    def _removed_runs(self, folder: Path) -> bool:
        with contextlib.ExitStack() as held:
            for directory in sorted(path for path in inside(self.root, folder).iterdir() if path.is_dir()):
                if not held.enter_context(locked(folder.parent, directory / "lock")):
                    log.warning("%s is being written: not removed", directory)
                    return False
            with store_errors("remove", folder):
                shutil.rmtree(folder)
        return True

    def _remove_results(self, *, everything: bool, dry_run: bool) -> int:
        """Remove cached results, or only half-written ones of killed processes; return the number of bytes freed."""
        folder = inside(self.root, self.root / "results")
        if not folder.is_dir():
            return 0
        with store_errors("remove", folder):
            results = [path for path in sorted(folder.glob("*/*")) if _is_result(path)]
            if not everything:
                before = time.time() - LEFT
                results = [p for p in results if p.name.startswith(TEMPORARY) and p.stat().st_mtime < before]
            freed = sum(path.stat().st_size for path in results)
            for path in () if dry_run else results:
                path.unlink()
            for left in () if dry_run else (*folder.iterdir(), folder):
                with contextlib.suppress(OSError):  # other files stay
                    left.rmdir()
        return freed


def cache(cache_dir: str | Path | None = None) -> Store:
    """Return the cache on disk: its `root`, its content (`sizes`, `entries`, `runs`), and `prune` to remove entries.

    Args:
        cache_dir: The folder; by default `LAYERPROBE_CACHE`, or layerprobe's folder in the user's cache.
    """
    return Store(cache_dir)


def _is_result(path: Path) -> bool:
    """Return whether a file below results/ was written by `save_result` of any version, by its name or content."""
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return False
    if path.name.startswith(TEMPORARY) or re.fullmatch(r"[0-9a-f]{32,64}\.json", path.name):
        return True
    try:
        content = parse_json(read_document(path, limit=None)) if path.suffix == ".json" else None
        return isinstance(content, dict) and CHECKSUM in content
    except DataError:
        return False
