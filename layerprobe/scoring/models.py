"""Several models on one task -> every layer of each with its score, error, letters and cost. Knows scores and tasks."""

from collections import Counter
from collections.abc import Callable, Sequence

from layerprobe.context import current, settings
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError
from layerprobe.metrics.crossed import crossed
from layerprobe.metrics.letters import compact_letters, differing
from layerprobe.scoring.values import LayerOfModel, LayerScores, ScoresOfModels
from layerprobe.scoring.zero_shot import score_split
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.links import links_of
from layerprobe.tasks.overlaps import checked_task
from layerprobe.tasks.values import Task, TextSplit

Timing = Callable[[Checkpoint], Sequence[float]]
"""A model -> milliseconds of one text at each layer, such as `layerprobe.profiling.run.milliseconds`."""


def score_models(
    models: Sequence[ModelLike], task: Task, *, split: TextSplit | None = None, timing: Timing | None = None
) -> ScoresOfModels:
    """Score every layer of several models on a task without fine-tuning, and say which of all these differ.

    All models are scored on the same items, so that differences are paired; a probe and a threshold count as given. All
    layers of all models are candidates of one statement, so that the best layer of each can be read off without the
    luck of having been chosen.

    All models are looked up before anything is spent on one. What was embedded, and probes, are in the store: after a
    failure of one model, the same call goes on there.

    Args:
        models: At least two, different ones; one model with other options needs a `display_name`.
        task: What to score.
        split: train, validation, test, or all; by default as for one model.
        timing: What measures milliseconds; by default they are left out.

    Raises:
        ModelError: If a model cannot be loaded or truncated.
        DataError: If there are fewer than two models, two are the same or called the same, the kind of task does not
            say what items add to a score, or as `score`.
        StoreError: If the store cannot be written.
    """
    task, level = checked_task(task), current().level
    split = split or task.scored
    if len(models) < 2:
        raise DataError(f"expected at least two models to compare, got {len(models)}")
    checkpoints = [resolve_checkpoint(model, items=task.readable) for model in models]
    _check_different(checkpoints)
    scored: list[LayerScores] = []
    described: list[ModelDescription] = []
    warnings: list[str] = []
    for checkpoint in checkpoints:
        with settings(by_item=True):
            scores, embeddings = score_split(checkpoint, task, split=split)
        if len(scores.influences) != len(scores.scores):
            raise DataError(
                f"expected a task whose kind says what each item adds to a score, got {task.kind}: "
                "score the models one by one"
            )
        scored.append(scores)
        described.append(embeddings.model)
        warnings += embeddings.warnings
    times = [None if timing is None else timing(checkpoint) for checkpoint in checkpoints]
    rows = [(i, layer) for i, each in enumerate(scored) for layer in range(each.first_layer, len(each.scores))]
    values = [scored[i].scores[layer] for i, layer in rows]
    influences, links = [scored[i].influences[layer] for i, layer in rows], links_of(task.split(split))
    letters = compact_letters(differing(values, influences, links=links, level=level), values)
    unit, layers = KINDS[task.kind].unit, []
    for (i, layer), value, psi, letter in zip(rows, values, influences, letters, strict=True):
        error = crossed([value], [psi], links=links, level=level, unit=unit, metric=task.primary, difference=False)
        assert error is not None
        time = times[i]
        layers.append(
            LayerOfModel(
                model=i,
                layer=layer,
                score=value,
                interval=error.interval,
                letters=letter,
                parameters=described[i].parameters[layer],
                milliseconds=None if time is None else time[layer],
            )
        )
    return ScoresOfModels(
        models=tuple(described),
        task=task.name,
        task_digest=task.digest,
        kind=task.kind,
        split=split,
        method=scored[0].method,
        primary=task.primary,
        n_items=len(influences[0]),
        unit=unit,
        level=level,
        layers=tuple(layers),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _check_different(checkpoints: Sequence[Checkpoint]) -> None:
    """Raise DataError if two models are the same, or are called the same."""
    for i, each in enumerate(checkpoints):
        for other in checkpoints[:i]:
            if (each.identity, each.settled, each.modality) == (other.identity, other.settled, other.modality):
                raise DataError(f"expected different models, got {other.label} and {each.label}, which are the same")
    name, times = Counter(each.label for each in checkpoints).most_common(1)[0]
    if times > 1:
        raise DataError(f"expected models of different names, got {times} called {name}: give each a display_name")
