"""Several tasks -> the layer that does best on all; and `score`, of models and tasks. Knows scores and tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, cast, overload

from layerprobe.context import current
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint
from layerprobe.encoders.model import DEFAULT_OPTIONS, ModelDescription
from layerprobe.errors import DataError
from layerprobe.metrics.names import METRICS, Split, bounded
from layerprobe.names import distinct_names
from layerprobe.scoring.models import Timing, score_models
from layerprobe.scoring.values import AcrossTasks, LayerAcross, LayerScores, ScoresOfModels, TaskScores
from layerprobe.scoring.zero_shot import score_compared
from layerprobe.stats.seeds import best_of, mean_interval
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.values import Task, TextSplit


def across_tasks(model: ModelDescription, tasks: Sequence[TaskScores]) -> AcrossTasks:
    """Average the scores of every layer over several tasks and compare the layers.

    Each task counts alike. The best layer was chosen by the same scores, so that its distance from the next ones is
    larger here than on other tasks: the layers share what the level allows (Bonferroni).
    """
    level = current().level
    if not tasks:
        raise DataError("expected at least one task, got none")
    _check_different((task.task, task.task_digest) for task in tasks)
    curves = [task.scores.scores for task in tasks]
    if wrong := [len(curve) for curve in curves if len(curve) != model.n_layers]:
        raise DataError(f"expected scores of {model.n_layers} layers, got {wrong[0]}")
    means = [fmean(scores) for scores in zip(*curves, strict=True)]
    first = max(task.scores.first_layer for task in tasks)
    best = first + best_of(means[first:])
    widest = min((task.scores.primary for task in tasks), key=lambda name: METRICS[name].low)
    layers, each_level = [], 1 - 2 * (1 - level) / max(model.n_layers - first - 1, 2)
    for layer, mean in enumerate(means):
        behind = [curve[best] - curve[layer] for curve in curves]
        ends = None if layer == best else mean_interval(behind, each_level)
        interval = None if ends is None else bounded(widest, ends, difference=True)
        layers.append(LayerAcross(layer=layer, mean=mean, behind=fmean(behind), interval=interval))
    return AcrossTasks(model=model, tasks=tuple(tasks), layers=tuple(layers), level=level)


def _check_different(tasks: Iterable[tuple[str, str]]) -> None:
    """Raise DataError for duplicate tasks (same name or data), which would make the error look too small."""
    by_digest: dict[str, str] = {}
    for name, digest in tasks:
        if name in by_digest.values():
            raise DataError(f"expected different tasks, got {name} twice")
        if digest in by_digest:
            raise DataError(f"expected different tasks, got {by_digest[digest]} and {name}, which hold the same data")
        by_digest[digest] = name


def score_across(model: ModelLike, tasks: Sequence[Task], *, split: Split = "test") -> AcrossTasks:
    """Score every layer on several tasks without fine-tuning, as `score` does each of them."""
    _check_different((task.name, task.digest) for task in tasks)
    checkpoint = resolve_checkpoint(model)
    done, description, warnings = [], None, []
    for task, name in zip(tasks, distinct_names([task.name for task in tasks]), strict=True):
        scores, embeddings = score_compared(checkpoint, task, split=split)
        description = embeddings.model
        done.append(TaskScores(task=task.name, task_digest=task.digest, kind=task.kind, scores=scores))
        warnings += [f"{name}: {warning}" for warning in (*embeddings.warnings, *scores.warnings)]
    if description is None:
        raise DataError("expected at least one task, got none")
    return replace(across_tasks(description, done), settings=_not_its_own(checkpoint), warnings=tuple(warnings))


def _not_its_own(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the embedding settings that differ from the model's defaults, by name."""
    used, default = checkpoint.settled, replace(checkpoint, options=DEFAULT_OPTIONS).settled
    names = ("pooling", "prompt", "norm", "max_length")
    return {name: str(getattr(used, name)) for name in names if getattr(used, name) != getattr(default, name)}


@overload
def score(
    model: ModelLike, task: Task, *, split: TextSplit | None = None, tolerance: float = TOLERANCE
) -> LayerScores: ...
@overload
def score(model: ModelLike, task: Sequence[Task], *, split: TextSplit | None = None) -> AcrossTasks: ...
@overload
def score(
    model: list[Any],
    task: Task,
    *,
    split: TextSplit | None = None,
    timing: Timing | None = None,
    tolerance: float = TOLERANCE,
    all_pairs: bool = False,
) -> ScoresOfModels: ...
def score(
    model: ModelLike | list[Any],
    task: Task | Sequence[Task],
    *,
    split: TextSplit | None = None,
    timing: Timing | None = None,
    tolerance: float = TOLERANCE,
    all_pairs: bool = False,
) -> LayerScores | AcrossTasks | ScoresOfModels:
    """Return how well the pretrained embeddings of every layer of a model, or of several, do a task, or several.

    By default the test split is scored, or all of data that has no predefined split where nothing is fitted; of a list
    of tasks, be it of one, the test split of each.

    Args:
        model: A name, a folder, or a `Model`; or a list of models, whose layers are compared, see `score_models`.
        task: What to score; of several tasks, the one layer that does best on all is sought, see `score_across`.
        split: train, validation, test, or all.
        timing: Of several models, what measures milliseconds, such as `layerprobe.profiling.run.milliseconds`.
        tolerance: Points that a smaller layer may be behind the best, on one task.
        all_pairs: Of several models, whether letters say which of all layers differ from which.

    Raises:
        ModelError: If the model cannot be loaded or truncated.
        DataError: If it is no task, there is no such split, outputs of a layer cannot be scored, or there are several
            models and several tasks.
        StoreError: If the store cannot be written.
    """
    several = isinstance(task, Sequence) and not isinstance(task, str)
    if isinstance(model, list):
        if several:
            raise DataError(
                "expected several models or several tasks, got both: score the models on one task at a time"
            )
        return score_models(
            model, cast(Task, task), split=split, timing=timing, tolerance=tolerance, all_pairs=all_pairs
        )
    if timing is not None:
        raise DataError("expected a list of models with timing, got one model: use layerprobe.profiling.run.profile")
    if all_pairs:
        raise DataError("expected a list of models with all_pairs, got one model")
    if isinstance(task, Sequence) and not isinstance(task, str):
        return score_across(model, task, split=cast(Split, split or "test"))
    scores, embeddings = score_compared(model, task, split=split, tolerance=tolerance)
    return replace(scores, cautions=embeddings.warnings)
