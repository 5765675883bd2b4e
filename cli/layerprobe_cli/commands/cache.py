"""layerprobe cache list | info | verify | prune."""

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.files.atomic import readable_size
from layerprobe.results.table import Column, Table, named_values
from layerprobe_cli import options as o
from layerprobe_cli.output import fail
from layerprobe_cli.shell import Call, Done

OF = "layerprobe.store.store:Store.prune"
Fingerprint = Annotated[str, typer.Argument(help="As `cache list` shows it; its beginning is enough.")]


def cache_list(call: Call, cache_dir: o.CacheDir = None) -> Done:
    """List what is kept: one extraction a line, the latest first.

    Example:  [bold]layerprobe cache list[/bold]
    """
    from layerprobe.store.store import Store

    store = Store(cache_dir)
    entries = [entry.record for entry in store.entries()]
    size = readable_size(sum(entry["bytes"] for entry in entries))
    parts: list[Table | str] = [f"{store.root}: {len(entries)} extractions, {size}"]
    if entries:
        rows = [entry | {"fingerprint": entry["fingerprint"][:12], "size": entry["bytes"]} for entry in entries]
        names = ("fingerprint", "state", "layers", "texts", "features", "dtype", "size", "model")
        forms = {"size": readable_size}
        columns = (Column(name, [row[name] for row in rows], form=forms.get(name, "")) for name in names)
        parts.append(Table(columns=tuple(columns), title="Extractions"))
    return Done(result=entries, parts=parts)


def cache_info(call: Call, fingerprint: Fingerprint, cache_dir: o.CacheDir = None) -> Done:
    """Show everything that an extraction depends on.

    Example:  [bold]layerprobe cache info 3f2a[/bold]
    """
    from layerprobe.files.serialisation import to_dict
    from layerprobe.store.store import Store

    entry = Store(cache_dir).entry(fingerprint)
    summary = entry.record
    if entry.manifest is not None:
        summary |= {"folder": str(entry.directory), "created": entry.manifest.created}
        summary |= {"bytes_when_complete": entry.manifest.bytes}
        fields = {"store_dtype": summary.pop("dtype"), **to_dict(entry.manifest.key)}
        summary |= {name: value for name, value in fields.items() if name != "model"}
    return Done(result=summary, parts=[named_values(summary, "Extraction")])


def cache_verify(
    call: Call,
    what: Annotated[str | None, {"argument": True, "metavar": "[FINGERPRINT|PATH]"}] = None,
    cache_dir: o.CacheDir = None,
) -> Done:
    """Read every file and compare checksums. Exits with 1 if something is damaged.

    What is damaged is made again by the command that made it, when that runs again.

    Example:  [bold]layerprobe cache verify[/bold]

    Example:  [bold]layerprobe cache verify layerprobe-report[/bold]

    Args:
        what: The beginning of a fingerprint; or any folder or file that layerprobe wrote: a run, a model, a lab, a
            study.json. By default all that is kept.
    """
    from layerprobe.store.store import Store
    from layerprobe.store.verification import verify

    store = Store(cache_dir)
    if what is not None and Path(what).exists():
        verified = verify(Path(what))
    else:
        verified = store.verify(None if what is None else store.entry(what).fingerprint)
    for problem in () if call.json else verified.problems:
        fail(problem)
    parts = [f"{path} has no checksum: it cannot be verified" for path in verified.unchecked]
    if not verified.problems:
        parts.append(f"everything is as it was written: {verified.checked} extractions, results, runs and models")
    return Done(result=verified, parts=parts, code=int(bool(verified.problems)))


def cache_prune(
    call: Call,
    fingerprint: Annotated[str | None, {"argument": True}] = None,
    older_than: Annotated[float | None, {"metavar": "DAYS", "min": 0}] = None,
    partial: bool = False,
    everything: Annotated[bool, {"flags": ("--all",)}] = False,
    dry_run: bool = False,
    cache_dir: o.CacheDir = None,
) -> Done:
    """Remove extractions: one, old ones, unfinished ones, or all. Fine-tuning runs stay.

    Example:  [bold]layerprobe cache prune --older-than 30 --dry-run[/bold]

    Args:
        fingerprint: One extraction.
        older_than: Unchanged for this many days.
        partial: Only unfinished ones, and half-written results that killed processes left.
        everything: All of them, and cached results.
    """
    from layerprobe.store.store import Store

    if everything == (fingerprint is not None or older_than is not None or partial):
        raise typer.BadParameter("expected a fingerprint, --older-than or --partial, or --all alone")
    store = Store(cache_dir)
    removed = store.prune(
        older_than_days=older_than,
        partial_only=partial,
        fingerprint=None if fingerprint is None else store.entry(fingerprint).fingerprint,
        everything=everything,
        dry_run=dry_run,
    )
    line = f"{len(removed.entries)} extractions, {readable_size(removed.bytes)}"
    names = [entry.fingerprint for entry in removed.entries]
    return Done(
        result={"removed": names, "bytes": removed.bytes, "dry_run": dry_run},
        parts=[f"{'would remove' if dry_run else 'removed'} {line}"],
    )
