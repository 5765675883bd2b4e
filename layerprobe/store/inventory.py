"""What is in the store, and in what state. Knows manifests and sizes, not what is in the files."""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from layerprobe.errors import DataError, FormatError, StoreError
from layerprobe.files.atomic import folder_bytes, store_errors, tree_bytes
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import parse_json
from layerprobe.store.manifest import Manifest, read_manifest
from layerprobe.store.shards import opened

State = Literal["complete", "partial", "damaged", "other version", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One extraction in the store, or the fine-tuning runs of one model on one task, finished or not."""

    directory: Path
    state: State
    """complete; partial: to be resumed; damaged: to be redone in part; other version: written by one of layerprobe;
    unreadable: of somebody who does not let others read it."""
    bytes: int
    """Size of its files."""
    modified: float
    """When a file was last added, in seconds since 1970."""
    manifest: Manifest | None = None
    """None where it is missing or cannot be read."""
    runs: int | None = None
    """How many runs there are; None of an extraction."""
    origin: tuple[str, str] = ("", "")
    """Of runs, the model and the task; empty where nothing says it."""

    @property
    def fingerprint(self) -> str:
        """That of its key."""
        return self.directory.name

    @property
    def model(self) -> str:
        """Hub id or folder; empty where the manifest cannot be read."""
        return self.manifest.key.model if self.manifest else self.origin[0]

    @property
    def record(self) -> dict[str, Any]:
        """What it is, for JSON and tables."""
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


def entry_of(directory: Path) -> Entry:
    """Return the summary of one entry."""
    state: State = "partial"
    size, modified, manifest = 0, 0.0, None
    try:
        modified = directory.stat().st_mtime
        size = folder_bytes(directory)
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


def runs_of(directory: Path) -> Entry:
    """Return the summary of the runs of one model on one task; those that began and are not finished are partial."""
    finished = list(directory.glob("*/result.json"))
    names = ("", "")
    with contextlib.suppress(OSError, DataError, LookupError, TypeError):
        origin = parse_json(read_document(directory / "origin.json", limit=None))
        names = str(origin["model"]["name"]), str(origin["task"])
    with store_errors("read", directory):
        size, modified = tree_bytes(directory), max(path.stat().st_mtime for path in (directory, *finished))
    begun = sum(path.is_dir() for path in directory.iterdir())
    state: State = "complete" if finished and len(finished) == begun else "partial"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, runs=len(finished), origin=names)
