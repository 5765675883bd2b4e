"""Prints the estimated cost of a search before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layerprobe_cli.shell import Call

if TYPE_CHECKING:
    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.tasks.values import Task


def search_estimate(
    call: Call,
    checkpoints: Sequence[Checkpoint],
    task: Task,
    searching: dict[str, Any],
    *,
    dry_run: bool,
    further: int = 0,
    contrast: tuple[Checkpoint, Sequence[int]] | None = None,
) -> None:
    """Print what a search of models with some arguments of `find` takes; nothing where such a one goes on.

    A contrast is a reference of one model, and layers of it that are fine-tuned besides.
    """
    from layerprobe.study.plan import plan_contrast, plan_models, plan_search, search_begun

    found_by = {name: searching[name] for name in ("seeds", "cross_validation", "protocol")}
    if dry_run or not any(search_begun(checkpoint, task, **found_by) for checkpoint in checkpoints):
        settings = {name: value for name, value in searching.items() if name not in ("jobs", "ray")}
        if len(checkpoints) == 1:
            plan = plan_search(checkpoints[0], task, further=further, **settings)
            both = contrast and plan_contrast(plan, contrast[0], task, contrast[1], protocol=searching["protocol"])
            call.estimate(both or plan, dry_run=dry_run)
        else:
            call.estimate(plan_models(checkpoints, task, **settings), dry_run=dry_run)
