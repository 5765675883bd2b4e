"""What is in the store and whether it is as it was written. Knows manifests and checksums, not their contents."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from layerprobe.errors import DamagedStoreError, DataError, StoreError, StoreVersionError
from layerprobe.files.atomic import TEMPORARY, folder_bytes, store_errors, tree_bytes
from layerprobe.files.folders import SUMS, folder_problems, parsed, problems_of
from layerprobe.files.inputs import read_document
from layerprobe.store.manifest import MANIFEST, Manifest, is_fingerprint, read_manifest
from layerprobe.store.shards import damaged, opened

State = Literal["complete", "partial", "damaged", "newer", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One extraction in the store, or the fine-tuning runs of one model on one task, finished or not."""

    directory: Path
    state: State
    """complete; partial: to be resumed; damaged: to be redone in part; newer: written by a newer layerprobe;
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
    except StoreVersionError:
        state = "newer"
    except (StoreError, OSError) as error:
        denied = isinstance(error.__cause__ or error, PermissionError)
        state = "unreadable" if denied else "damaged"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, manifest=manifest)


def runs_of(directory: Path) -> Entry:
    """Return the summary of the runs of one model on one task; those that began and are not finished are partial."""
    finished = list(directory.glob("*/result.json"))
    names = ("", "")
    with contextlib.suppress(OSError, DataError, LookupError, TypeError):
        origin, _ = parsed(read_document(directory / "origin.json", limit=None))
        names = str(origin["model"]["name"]), str(origin["task"])
    with store_errors("read", directory):
        size, modified = tree_bytes(directory), max(path.stat().st_mtime for path in (directory, *finished))
    begun = sum(path.is_dir() for path in directory.iterdir())
    state: State = "complete" if finished and len(finished) == begun else "partial"
    return Entry(directory=directory, state=state, bytes=size, modified=modified, runs=len(finished), origin=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of verifying a folder."""

    problems: tuple[str, ...]
    """What is wrong, one line a file."""
    checked: int
    """Entries, results and folders that carry checksums."""
    unchecked: tuple[str, ...]
    """Results that carry none: written by an older layerprobe, or by something else."""


def verify(path: Path) -> Verification:
    """Return what is wrong in a folder, or with a file, after reading all that is kept there; nothing is remembered.

    A folder may be a store, an entry, a run, a model that layerprobe wrote, or hold any of these.
    """
    problems: list[str] = []
    unchecked: list[str] = []
    checked = 0
    for place, found_problems in _kept_in(path.absolute()):  # the names of folders say what is in them
        if found_problems is None:
            unchecked.append(str(place))
        else:
            checked += 1
            problems += found_problems
    return Verification(problems=tuple(problems), checked=checked, unchecked=tuple(unchecked))


def _kept_in(root: Path) -> Iterator[tuple[Path, list[str] | None]]:
    """Yield what is kept and what is wrong with it; None where it carries no checksum."""
    if root.is_file():
        yield root, _result_problems(root, root.parent)
        return
    with store_errors("read", root):
        os.scandir(root).close()

    unread: list[OSError] = []
    listed: set[Path] = set()
    for name, folders, files in os.walk(root, onerror=unread.append):
        folder = Path(name)
        # what another process is writing has no name yet
        folders[:] = sorted(entry for entry in folders if not entry.startswith(TEMPORARY))
        for item in sorted((*folders, *files)):
            if (link := folder / item).is_symlink():
                yield link, [f"{link} is a link: expected none in what layerprobe keeps"]
        if is_fingerprint(folder.name) and folder.parent.name == "embeddings":
            yield folder, _listed(_entry_problems(folder))
            folders.clear()
            continue
        if SUMS in files:
            yield folder, _listed(folder_problems(folder, again=True))
        if SUMS in files or folder.parent in listed:
            listed.add(folder)
        for item in sorted(files):
            path = folder / item
            if path.suffix == ".json" and not path.is_symlink() and not item.startswith(TEMPORARY):
                problems = _result_problems(path, root, listed=folder in listed)
                if problems is not None or folder not in listed:
                    yield path, problems
    for error in unread:
        yield Path(error.filename), [f"cannot read {error.filename}: {error.strerror}"]


def _result_problems(path: Path, root: Path, *, listed: bool = False) -> list[str] | None:
    """Return what is wrong with a result, None where it carries no checksum.

    With `listed` its bytes were compared with a list, and may be no result at all; it can still be of another place.
    """
    try:
        with store_errors("read", path):
            data = read_document(path, limit=None)
        _, checksum = parsed(data)
    except StoreError as error:
        return [str(error)]
    except DataError as error:
        return None if listed else [f"{path} cannot be read ({error})"]
    if checksum is None:
        return None
    problems = problems_of(path, checksum, root=root, again=True)
    return _listed(f"{path} cannot be read ({problem})" for problem in problems)


def _listed(problems: Iterable[str]) -> list[str]:
    """Return problems as a list; a file that cannot be read ends it, and is one."""
    messages = []
    try:
        for problem in problems:
            messages.append(problem)  # noqa: PERF402 - those before the end are kept
    except StoreError as error:
        messages.append(str(error))
    return messages


def _entry_problems(directory: Path) -> Iterator[str]:
    try:
        manifest = read_manifest(directory)
    except (DamagedStoreError, StoreVersionError) as error:
        yield str(error)
        return
    except StoreError as error:
        if not any(path.is_symlink() for path in (directory, directory / MANIFEST)):  # a link was told
            yield str(error)
        return
    for file in (manifest.samples, *manifest.shards) if manifest is not None else ():
        if problem := file.problem(directory, again=True):
            yield str(damaged(directory / file.name, problem))
