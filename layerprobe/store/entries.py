"""What is in the store and in what state. Knows manifests and checksums, not arrays."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from layerprobe.errors import StoreError, StoreVersionError
from layerprobe.files.atomic import folder_bytes, store_errors
from layerprobe.store.manifest import Manifest, read_manifest
from layerprobe.store.shards import opened

State = Literal["complete", "partial", "damaged", "newer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One extraction in the store, finished or not."""

    directory: Path
    state: State
    """complete; partial: to be resumed; damaged: to be redone in part; newer: written by a newer layerprobe."""
    bytes: int
    """Size of its files."""
    modified: float
    """When a file was last added, in seconds since 1970."""
    manifest: Manifest | None = None
    """None where it is missing or cannot be read."""

    @property
    def fingerprint(self) -> str:
        """That of its key."""
        return self.directory.name

    @property
    def model(self) -> str:
        """Hub id or folder; empty where the manifest cannot be read."""
        return self.manifest.key.model if self.manifest else ""


def entry_of(directory: Path) -> Entry:
    """Return the summary of one entry."""
    with store_errors("read", directory):
        size = folder_bytes(directory)
        modified = directory.stat().st_mtime
    state: State = "partial"
    manifest = None
    try:
        manifest = read_manifest(directory)
        if manifest is not None and manifest.complete:
            opened(directory, manifest, checksums=False)
            state = "complete"
    except StoreVersionError:
        state = "newer"
    except StoreError:
        state = "damaged"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, manifest=manifest)
