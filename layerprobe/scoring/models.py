"""Several models on one task -> every layer of each with its score, error and cost, compared with the best."""

import itertools
from collections.abc import Callable, Sequence

from layerprobe.context import current
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_all
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings
from layerprobe.names import plural
from layerprobe.scoring.values import LayerOfModel, LayerScores, ScoresOfModels
from layerprobe.scoring.zero_shot import score_by_item
from layerprobe.stats.best import against_best
from layerprobe.stats.letters import compact_letters, differing
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.links import links_of
from layerprobe.tasks.overlaps import checked_task
from layerprobe.tasks.values import Task, TextSplit

Timing = Callable[[Sequence[Checkpoint]], Sequence[Sequence[tuple[float, float, float]]]]
"""Models -> by model and layer, milliseconds of one text with their range: `layerprobe.profiling.run.milliseconds`."""


def score_models(
    models: Sequence[ModelLike],
    task: Task,
    *,
    split: TextSplit | None = None,
    timing: Timing | None = None,
    tolerance: float = TOLERANCE,
    all_pairs: bool = False,
) -> ScoresOfModels:
    """Score every layer of at least two models on a task without fine-tuning, and compare all with the best of them.

    All are scored on the same items, so that differences are paired; a probe and a threshold count as given. All layers
    of all models are in one statement, see `against_best`: which may be the best, and how far the best is ahead of each
    at most. `tolerance` is in points; with `all_pairs` letters also say which differ from which. Models are looked up
    before anything is spent; what was done before one fails is in the store. The same model with other options needs a
    `display_name`.
    """
    task, level = checked_task(task), current().level
    split, unit = split or task.scored, KINDS[task.kind].unit
    checkpoints = resolve_all(models, items=task.readable) if models else []
    check_different(checkpoints)
    scored = [score_by_item(checkpoint, task, split=split) for checkpoint in checkpoints]
    rows = [(i, layer) for i, (one, _) in enumerate(scored) for layer in range(one.first_layer, len(one.scores))]
    times = None if timing is None else timing(checkpoints)
    values = [scored[i][0].scores[layer] for i, layer in rows]
    influences, links = [scored[i][0].influences[layer] for i, layer in rows], links_of(task.split(split))
    compared = against_best(
        values, influences, metric=task.primary, links=links, level=level, tolerance=tolerance, floor=scored[0][0].floor
    )
    if compared is None:
        raise DataError(f"expected at least two {plural(unit)} that share no text, by which layers can be compared")
    letters, layers = [""] * len(values), []
    if all_pairs:
        letters = list(compact_letters(differing(values, influences, links=links, level=level), values))
    for (i, layer), value, interval, letter_set in zip(rows, values, compared.intervals, letters, strict=True):
        time, *ends = times[i][layer] if times else (None,)
        layers.append(
            LayerOfModel(
                model=i,
                layer=layer,
                score=value,
                interval=interval,
                letters=letter_set,
                parameters=scored[i][1].model.parameters[layer],
                milliseconds=time,
                milliseconds_range=(ends[0], ends[1]) if ends else None,
            )
        )
    return ScoresOfModels(
        models=tuple(embeddings.model for _, embeddings in scored),
        task=task.name,
        task_digest=task.digest,
        kind=task.kind,
        split=split,
        method=scored[0][0].method,
        primary=task.primary,
        n_items=len(influences[0]),
        unit=unit,
        level=level,
        layers=tuple(layers),
        compared=compared,
        warnings=tuple(dict.fromkeys(itertools.chain.from_iterable(map(_warnings, scored)))),
    )


def _warnings(scored: tuple[LayerScores, Embeddings]) -> list[str]:
    """Return the warnings about a model's embeddings and, with its name, about its scores."""
    scores, embeddings = scored
    return [*embeddings.warnings, *(f"{embeddings.model.name}: {warning}" for warning in scores.warnings)]


def check_different(checkpoints: Sequence[Checkpoint]) -> None:
    """Raise DataError if there are fewer than two models, or two are the same or called the same."""
    if len(checkpoints) < 2:
        raise DataError(f"expected at least two models to compare, got {len(checkpoints)}")
    for i, one in enumerate(checkpoints):
        for other in checkpoints[:i]:
            if (one.identity, one.settled, one.modality) == (other.identity, other.settled, other.modality):
                raise DataError(f"expected different models, got {other.label} and {one.label}, which are the same")
            if one.label == other.label:
                raise DataError(f"expected models of different names, got two called {one.label}: give a display_name")
