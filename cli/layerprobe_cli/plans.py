"""What a search will cost, said before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerprobe_cli.output import Output

if TYPE_CHECKING:
    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.tasks.values import Task


def say_cost(
    output: Output, checkpoint: Checkpoint, task: Task, searching: dict[str, Any], *, dry_run: bool, further: int = 0
) -> None:
    """Print what a search with some arguments of `find` takes; nothing where such a one goes on."""
    from layerprobe.study.plan import plan_search, search_begun

    found_by = {name: searching[name] for name in ("seeds", "cross_validation", "protocol")}
    if dry_run or not search_begun(checkpoint, task, **found_by):
        settings = {name: value for name, value in searching.items() if name not in ("jobs", "ray")}
        output.plan(plan_search(checkpoint, task, further=further, **settings), dry_run=dry_run)
