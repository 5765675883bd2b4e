"""layerprobe cache list | prune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.files.atomic import readable_size
from layerprobe.results.table import Column, Table, named_values
from layerprobe_cli import options as o
from layerprobe_cli.shell import Call, Done

if TYPE_CHECKING:
    from layerprobe.store.store import Entry


def cache_list(call: Call, cache_dir: o.CacheDir = None) -> Done:
    """List what is kept on disk, the latest first.

    Each extraction is a line, and so are all fine-tuning runs of a model on a task. Sizes add up to that of the folder.

    Example:  [bold]layerprobe cache list[/bold]
    """
    from layerprobe.store.store import Store

    store = Store(cache_dir)
    by_title = {"Extractions": store.entries(), "Runs": store.runs()}
    columns = {
        "Extractions": "fingerprint state layers texts features dtype size model",
        "Runs": "fingerprint state runs size task model",
    }
    tables = [_table(title, entries, columns[title].split()) for title, entries in by_title.items() if entries]
    sizes = {what: readable_size(size) for what, size in store.sizes().items() if size}
    whole = readable_size(sum(store.sizes().values()))
    if sizes:
        tables.append(named_values(sizes, "Sizes"))
    records = [entry.record for entries in by_title.values() for entry in entries]
    return Done(result=records, tables=[f"{store.root}: {whole}", *tables])


def _table(title: str, entries: Sequence[Entry], names: Sequence[str]) -> Table:
    rows = [entry.record | {"fingerprint": entry.fingerprint[:12], "size": entry.bytes} for entry in entries]
    forms = {"size": readable_size}
    columns = (Column(name, [row[name] for row in rows], form=forms.get(name, "")) for name in names)
    return Table(columns=tuple(columns), title=title)


def cache_prune(
    call: Call,
    fingerprint: Annotated[str | None, typer.Argument()] = None,
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", min=0)] = None,
    model: str | None = None,
    partial: bool = False,
    runs: bool = False,
    everything: Annotated[bool, typer.Option("--all")] = False,
    dry_run: bool = False,
    cache_dir: o.CacheDir = None,
) -> Done:
    """Remove extractions, and with --runs fine-tuning runs: one, old ones, those of a model, or all.

    Example:  [bold]layerprobe cache prune --older-than 30 --dry-run[/bold]

    Example:  [bold]layerprobe cache prune --runs --model electra[/bold]

    Args:
        fingerprint: One entry: an extraction, or with --runs the runs of a model on a task.
        older_than: Only entries that have not changed for this many days.
        model: Only entries of models whose name contains this.
        partial: Only unfinished entries, and results that a killed process left half-written.
        runs: Also fine-tuning runs, which take time to repeat.
        everything: All entries, and cached results.
        dry_run: Only list what would be removed.
    """
    from layerprobe.store.store import Store

    conditions = (fingerprint, older_than, model, partial or None)
    if everything == any(condition is not None for condition in conditions):
        raise typer.BadParameter("expected a fingerprint, --older-than, --model or --partial, or --all alone")
    store = Store(cache_dir)
    removed, freed = store.prune(
        older_than_days=older_than,
        partial_only=partial,
        fingerprint=None if fingerprint is None else store.entry(fingerprint, runs=runs).fingerprint,
        model=model,
        runs=runs,
        everything=everything,
        dry_run=dry_run,
    )
    n_runs = sum(entry.runs or 0 for entry in removed)
    n_extractions = sum(entry.runs is None for entry in removed)
    kept_runs = f"{n_runs} runs, " if n_runs else ""
    line = f"{n_extractions} extractions, {kept_runs}{readable_size(freed)}"
    names = [entry.fingerprint for entry in removed]
    return Done(
        result={"removed": names, "bytes": freed, "dry_run": dry_run},
        tables=[f"{'would remove' if dry_run else 'removed'} {line}"],
    )
