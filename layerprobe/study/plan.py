"""Estimates the cost of a search. Knows its settings and the price of one run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerprobe.context import current
from layerprobe.encoders.loading import ModelLike, resolve, resolve_all
from layerprobe.finetuning.saved import RESULT
from layerprobe.finetuning.tuning import agreed, plan_tuning, run_folder
from layerprobe.finetuning.values import Protocol
from layerprobe.results.estimate import Estimate, together
from layerprobe.search.values import SEEDS, TOLERANCE, SearchSettings
from layerprobe.study.find import check_together, search_folds
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task


def search_begun(
    model: ModelLike,
    task: Task,
    *,
    seeds: int = SEEDS,
    cross_validation: bool | None = None,
    protocol: Protocol | None = None,
) -> bool:
    """Return whether `find` with these arguments already has a finished run, so that less is left than planned."""
    checkpoint = resolve(model, items=task.readable)
    fold = search_folds(task, seeds, cross_validation)[0]
    protocol, checkpoint = agreed(protocol, checkpoint)
    return any(run_folder(checkpoint, fold, protocol).path.glob(f"*/{RESULT}"))


def plan_find(
    models: Sequence[ModelLike],
    task: Task,
    *,
    goes_on: bool = True,
    contrast: tuple[ModelLike, Sequence[int]] | None = None,
    further: int = 0,
    **settings: Any,
) -> Estimate | None:
    """Estimate the most that `find` of one model or several takes, with its arguments; raises as `find` would.

    With `goes_on` None where a finished run is there, so that less is left than planned. `further` block-steps, and
    layers of a reference as a contrast, are fine-tuned besides. Nothing is written.
    """
    searching = {name: value for name, value in settings.items() if name not in ("jobs", "ray")}
    begun_with = {name: searching[name] for name in ("seeds", "cross_validation", "protocol") if name in searching}
    if goes_on and any(search_begun(model, task, **begun_with) for model in models):
        return None
    resolved = resolve_all(models, items=task.readable) if models else []
    if len(models) != 1:
        check_together(resolved, scan=searching.get("scan", False))
    plans = [_plan_search(model, task, further=further, **searching) for model in resolved]
    if len(plans) > 1:
        return together(plans, "They share this budget, about {} together.")
    if contrast is None:
        return plans[0]
    reference, layers = contrast
    seeds, protocol = plans[0]["seeds"], searching.get("protocol")
    runs = seeds * sum(layer + 1 for layer in layers)
    other = plan_tuning(reference, task, block_steps=lambda _: runs, seeds=seeds, protocol=protocol)
    return together((plans[0], other), "That is about {} together.")


def _plan_search(
    model: ModelLike,
    task: Task,
    *,
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    seeds: int = SEEDS,
    cross_validation: bool | None = None,
    scan: bool = False,
    against_last: int = 0,
    further: int = 0,
    final: bool = False,
    protocol: Protocol | None = None,
) -> Estimate:
    """Estimate the most that the search of one model takes, plus `further` block-steps."""
    level = current().level
    task = checked_task(task)
    settings = SearchSettings(tolerance=tolerance, level=level, budget=budget, seeds=seeds, scan=scan)

    def block_steps(n_blocks: int) -> float:
        # the layer to keep and the last one, if none of their runs is there
        most = settings.block_steps(n_blocks) + against_last * 2 * (n_blocks + 1)
        # no run is made twice, and the sweep has all but scans and seeds of that comparison beyond its own
        others = (seeds * scan + 2 * max(against_last - seeds, 0)) * (n_blocks + 1)
        return min(most, settings.full_sweep(n_blocks) + others) + further

    fold = search_folds(task, seeds, cross_validation)[0]
    n_labelled = len(task.train) + len(task.validation)

    def with_final(n_blocks: int) -> float:
        return block_steps(n_blocks) + final * (n_blocks + 1) * n_labelled / len(fold.train)

    plan = plan_tuning(model, fold, block_steps=with_final, seeds=seeds, protocol=protocol)
    note = f"Then the layer to keep is fine-tuned once more, on all {n_labelled:,} training and validation examples."
    return replace(plan, details=(*plan.details, note)) if final else plan
