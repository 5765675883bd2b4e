"""`score`: every layer of models on tasks with score, error and cost, compared with the best. Knows no kind.

Without fine-tuning, embeddings and targets become scores by cosines, or by a probe.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice, check_tolerance
from layerprobe.context import EMBEDDED, current, in_parts, part, report, settings
from layerprobe.encoders.identity import ModelLike, Resolved, check_different, resolve, resolve_all
from layerprobe.encoders.model import DEFAULTS, ModelDescription
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract_split
from layerprobe.files.serialisation import digest
from layerprobe.metrics.names import METRICS, bounded
from layerprobe.names import distinct_names, plural
from layerprobe.scoring.probes import Probe
from layerprobe.scoring.scores import LayerOfModel, Scores, TaskScores
from layerprobe.scoring.values import LayerScores, ScoreMethod
from layerprobe.stats.best import against_best
from layerprobe.stats.crossed import crossed
from layerprobe.stats.values import TOLERANCE, AgainstBest, ItemInfluences, best_of
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, links_of, outputs_of_layer, sides_of
from layerprobe.tasks.explored import ItemSource, LayerOutputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task, TextSplit

Array = NDArray[np.float64]
Timing = Callable[[Sequence[Resolved]], Sequence[Sequence[tuple[float, float, float]]]]
"""Function from models to milliseconds of one text with their range, by model and layer:
`layerprobe.profiling.run.milliseconds`."""


def score(
    model: ModelLike | list[Any],
    task: Task | Sequence[Task],
    *,
    split: TextSplit | None = None,
    timing: Timing | None = None,
    tolerance: float = TOLERANCE,
) -> Scores:
    """Return the scores of the pretrained embeddings of every layer, for one or several models and tasks.

    On one task all layers of all models are scored on the same items, so that differences are paired, with one joint
    statement, see `against_best`: the layers that may be best, and how far each may be behind; errors of probes and
    thresholds are not included. Several tasks have equal weight, and layers are compared by their means.

    By default the test split is scored, or all data without a predefined split if nothing is fitted; for a list of
    tasks, even of one, the test split of each. Models are resolved before any computation; finished work is kept in
    the store if one fails. The same model with other options needs a `display_name`.

    Args:
        model: A name, a folder or a `Model`; or a list of models.
        task: The task to score on, or a list of tasks.
        split: train, validation, test, or all.
        timing: Function that measures milliseconds, such as `layerprobe.profiling.run.milliseconds`.
        tolerance: Points that a smaller layer may be behind the best, on one task.

    Raises:
        ModelError: If a model cannot be loaded or truncated.
        DataError: If `task` is not a task, there is no such split, outputs of a layer cannot be scored, or layers of
            several models cannot be compared.
        StoreError: If the store cannot be written.
    """
    check_tolerance(tolerance)
    models = model if isinstance(model, list) else [model]
    several_tasks = isinstance(task, Sequence) and not isinstance(task, str)
    requested: Any = task if several_tasks else [task]
    tasks = [checked_task(one) for one in requested]
    if not tasks:
        raise DataError("expected at least one task, got none")
    if len(tasks) > 1:
        _check_tasks_differ(tasks)
    checkpoints = resolve_all(models, items=tasks[0].readable) if models else []
    check_different(checkpoints)
    if several_tasks:
        scores = _over_tasks(checkpoints, tasks, split or "test")
    else:
        split = split or default_split(tasks[0], len(checkpoints))
        scores = _score_task(checkpoints, tasks[0], split, tolerance=tolerance)
    if timing is None or any(model.read for model in scores.models):  # nothing truncated to time
        return scores
    measured = timing(checkpoints)

    def timed(layer: LayerOfModel) -> LayerOfModel:
        time, *ends = measured[layer.model][layer.layer]
        return replace(layer, milliseconds=time, milliseconds_range=(ends[0], ends[1]))

    return replace(scores, layers=tuple(map(timed, scores.layers)))


def default_split(task: Task, n_models: int = 1) -> TextSplit:
    """Return the default split of one task: test if validation chooses among further ways."""
    return "test" if KINDS[task.kind].learning().ways is not None and n_models == 1 else task.scored


# ---- one task: items, links and baselines of the kind ---------------------------------------------------


ScoredModel = tuple[LayerScores, Embeddings]
"""The scores of a model on a split of a task, with the influences of its items."""


def _warnings(scored: ScoredModel, several: bool) -> list[str]:
    """Return the warnings about the embeddings and, with the name of one of several models, about its scores."""
    scores, embeddings = scored
    of = f"{embeddings.model.name}: " if several else ""
    return [*embeddings.warnings, *(f"{of}{warning}" for warning in scores.warnings)]


def _score_task(
    checkpoints: Sequence[Resolved],
    task: Task,
    split: TextSplit,
    *,
    tolerance: float,
) -> Scores:
    several = len(checkpoints) > 1
    kind = KINDS[task.kind]
    scored = [*in_parts(lambda one: score_by_item(one, task, split=split, required=several), checkpoints)]
    by_model, described = [scores for scores, _ in scored], [embeddings.model for _, embeddings in scored]
    rows = [(i, layer) for i, one in enumerate(by_model) for layer in one.layers]
    influences = [by_model[i].influences[layer] for i, layer in rows if by_model[i].influences]
    compared = _compared(by_model, task, split, tolerance=tolerance)
    if compared is None and several:
        raise DataError(f"expected at least two {plural(kind.unit)} without a common text, to compare layers")
    ways_of = kind.learning().ways
    return Scores(
        models=tuple(described),
        tasks=tuple(_task_scores(task, split, number, one) for number, one in enumerate(scored)),
        layers=tuple(
            LayerOfModel(
                model=i,
                layer=layer,
                score=by_model[i].scores[layer],
                interval=None if compared is None else compared.intervals[row],
                parameters=described[i].parameters[layer],
            )
            for row, (i, layer) in enumerate(rows)
        ),
        level=current().level,
        compared=compared,
        ways=None if ways_of is None or several or split != "test" else ways_of(checkpoints[0], task),
        settings=_settings(checkpoints[0], task if kind.prompts else None),
        influences=None
        if several
        else ItemInfluences.of(influences or None, digest=task.items_digest(split), links=links_of(task.split(split))),
        item_source=item_source(checkpoints, task, split, scored),
        warnings=tuple(dict.fromkeys(warning for one in scored for warning in _warnings(one, several))),
    )


def item_source(
    checkpoints: Sequence[Resolved], task: Task, split: TextSplit, scored: Sequence[ScoredModel]
) -> ItemSource:
    """Return the source of items of a split for a page, with the outputs of every layer of untrained models."""
    labels = distinct_names([embeddings.model.name for _, embeddings in scored])
    groups = tuple(map(partial(untrained_layers, task, split), checkpoints, scored, labels))
    best = max(range(len(groups)), key=lambda i: max(groups[i].scores))
    ends = [(i, len(group.layers) - 1) for i, group in enumerate(groups)]
    highest = best, max(range(len(groups[best].scores)), key=groups[best].scores.__getitem__)
    against = ends[0] if len(groups) == 1 else next(end for end in ends if end[0] != best)
    if against == highest:
        against = (against[0], 0)
    return ItemSource(task=task, split=split, groups=groups, start=(against, highest))


def untrained_layers(
    task: Task, split: TextSplit, checkpoint: Resolved, scored: ScoredModel, label: str
) -> LayerOutputs:
    """Return the outputs of the layers of an untrained model for the items of a split, for pages."""
    scores, embeddings = scored

    def outputs() -> Sequence[tuple[Any, float | None]]:
        if scores.outputs:
            return scores.outputs[scores.layers.start : scores.layers.stop]
        with settings(by_item=False, outputs=True):
            scored = score_split(checkpoint, task, split=split)[0]
            return scored.outputs[scores.layers.start : scores.layers.stop]

    return LayerOutputs(
        name=label,
        layers=scores.layers,
        outputs=outputs,
        scores=[scores.scores[layer] for layer in scores.layers],
        vectors=embeddings.vectors,
    )


def _task_scores(task: Task, split: TextSplit, model: int, scored: ScoredModel) -> TaskScores:
    """Return the scores of a model on a task, with those of each item if scores are means over items."""
    (scores, _), items = scored, task.split(split)
    return TaskScores(
        task=task.name,
        task_digest=task.digest,
        kind=task.kind,
        scores=replace(scores, influences=(), outputs=()),
        model=model,
        n_items=len(items),
        unit=KINDS[task.kind].unit,
        facts=items.facts or None,
        ids=None if scores.by_item is None else items.names,
    )


def _settings(checkpoint: Resolved, searched: Task | None = None) -> dict[str, str]:
    """Return the embedding settings that differ from the model's defaults, by name, and the prompts of queries."""
    used, default = checkpoint.settled, replace(checkpoint, asked=DEFAULTS).settled
    names = ["pooling", "norm", "max_length"] if searched else ["pooling", "prompt", "norm", "max_length"]
    differing = {name: str(getattr(used, name)) for name in names if getattr(used, name) != getattr(default, name)}
    if searched is None:
        return differing
    prompts = searched.test.with_prompts(*checkpoint.retrieval_prompts).prompts or (None, None)
    named = zip(("query_prompt", "document_prompt"), prompts, strict=True)
    return differing | {name: prompt for name, prompt in named if prompt}


# ---- several tasks --------------------------------------------------------------------------------------


def _over_tasks(checkpoints: Sequence[Resolved], tasks: Sequence[Task], split: TextSplit) -> Scores:
    several, done, warnings = len(checkpoints) > 1, [], []
    described: dict[int, ModelDescription] = {}
    pairs = [(task, checkpoint) for task in tasks for checkpoint in checkpoints]
    scored = in_parts(lambda pair: score_by_item(pair[1], pair[0], split=split, required=False), pairs)
    for task, name in zip(tasks, distinct_names([task.name for task in tasks]), strict=True):
        for number in range(len(checkpoints)):
            one = next(scored)
            described[number] = one[1].model
            result = _task_scores(task, split, number, one)
            done.append(replace(result, scores=replace(result.scores, compared=_compared([one[0]], task, split))))
            warnings += [f"{name}: {warning}" for warning in _warnings(one, several)]
    scores = across_tasks(tuple(described.values()), done)
    return replace(scores, settings=_settings(checkpoints[0]), warnings=tuple(dict.fromkeys(warnings)))


def _compared(
    models: Sequence[LayerScores], task: Task, split: TextSplit, *, tolerance: float = TOLERANCE
) -> AgainstBest | None:
    """Return the layers of models on a task, compared with the best; None if their errors are unknown."""
    rows = [(scores, layer) for scores in models for layer in scores.layers]
    if not all(scores.influences for scores in models):
        return None
    return against_best(
        [scores.scores[layer] for scores, layer in rows],
        [scores.influences[layer] for scores, layer in rows],
        metric=task.primary,
        tolerance=tolerance,
        floor=models[0].floor,
        links=links_of(task.split(split)),
        level=current().level,
    )


def across_tasks(
    models: Sequence[ModelDescription],
    tasks: Sequence[TaskScores],
) -> Scores:
    """Average the scores of every layer over several tasks and compare the layers of all models.

    Tasks have equal weight. The best layer was chosen by the same scores, so that its lead is larger here than on other
    tasks: the error probability of the level is divided among the layers (Bonferroni).

    Args:
        models: The models.
        tasks: Scores by task, and for each task by model.
    """
    level, by_task = current().level, [tasks[i : i + len(models)] for i in range(0, len(tasks), len(models))]
    rows = [
        (i, layer)
        for i, model in enumerate(models)
        for layer in range(model.n_layers)
        if all(layer in of_models[i].scores.layers for of_models in by_task)
    ]
    curves = [[of_models[i].scores.scores[layer] for of_models in by_task] for i, layer in rows]
    means = list(map(fmean, curves))
    best = best_of(means)
    widest = min((one.scores.primary for one in tasks), key=lambda name: METRICS[name].low)
    layers, each_level = [], 1 - 2 * (1 - level) / max(len(rows) - 1, 2)
    for row, (i, layer) in enumerate(rows):
        behind = [ours - theirs for ours, theirs in zip(curves[best], curves[row], strict=True)]
        error = None if row == best else crossed(behind, None, level=each_level)
        layers.append(
            LayerOfModel(
                model=i,
                layer=layer,
                score=means[row],
                behind=fmean(behind),
                interval=None if error is None else bounded(widest, error.interval, difference=True),
                parameters=models[i].parameters[layer],
            )
        )
    return Scores(models=tuple(models), tasks=tuple(tasks), layers=tuple(layers), level=level)


def _check_tasks_differ(tasks: Sequence[Task]) -> None:
    """Raise DataError for duplicate tasks (same name or data), which would underestimate the error."""
    for one, other in itertools.combinations(tasks, 2):
        if one.name == other.name:
            raise DataError(f"expected different tasks, got {one.name} twice")
        if one.digest == other.digest:
            raise DataError(f"expected different tasks, got {one.name} and {other.name}, which hold the same data")


# ---- scores of one model, by cosines or by a probe -------------------------------------------------------------------


def zero_shot(
    embeddings: Embeddings, task: Task, *, split: TextSplit = "test", fitted: Embeddings | None = None
) -> LayerScores:
    """Score the pretrained embeddings of every layer on the task; no model is needed.

    Scores use the cosines of pairs (with the best threshold on the validation split, if the kind has one), or the
    probe of the kind, see `probed`.

    `embeddings` are those of `extract` for the texts of the split, and `fitted` for those of the split `fitted_on` of
    the kind; by default `embeddings` include them. Progress is reported for probed layers.
    """
    kind = KINDS[task.kind]
    if kind.zero_shot == "own":
        raise DataError(f"a task of kind {task.kind} cannot be scored on embeddings alone: use score")
    if kind.zero_shot == "probe":
        return probed(embeddings, task, split=split, fitted=fitted)
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            threshold = None
            if kind.fitted_on not in (None, split):
                threshold = _cosines(fitted or embeddings, layer, task, kind.fitted_on).threshold
            by_layer.append(_cosines(embeddings, layer, task, split, threshold=threshold))
    return layer_scores(task, split, "cosine", by_layer, embeddings.first_layer, embeddings.collapsed)


def probed(
    embeddings: Embeddings, task: Task, *, split: TextSplit = "test", fitted: Embeddings | None = None
) -> LayerScores:
    """Score the probe of the task's kind at every layer; loads finished scores from the store.

    The arguments are those of `zero_shot`; `fitted` belongs to the train split.
    """
    probe: Probe | None = KINDS[task.kind].learning().probe
    if probe is None:
        kinds = ", ".join(name for name, kind in KINDS.usable().items() if kind.learning().probe is not None)
        raise DataError(f"expected a task of a kind with a probe, one of {kinds}, got {task.kind}")
    if split in ("train", "all"):
        raise DataError(f"a probe is fitted on the train split: expected the validation or test split, got {split}")
    fitted = fitted or embeddings
    key = digest([probe.version, embeddings.fingerprint, fitted.fingerprint, task.digest, split, *task.unusual_primary])
    if (stored := kept_scores(embeddings.store, probe.kept, key)) is not None:
        return stored
    train, examples = task.examples("train"), task.examples(split)
    if len(train) < 2:
        raise DataError(f"expected at least two training {KINDS[task.kind].unit}s to fit a probe, got {len(train)}")
    by_layer = []
    for layer in range(embeddings.n_layers):
        outputs = probe.fit(
            probe.features(*sides_of(fitted.measured(layer), fitted.rows, train)),
            np.array(train.targets),
            probe.features(*sides_of(embeddings.measured(layer), embeddings.rows, examples)),
        )
        with naming_layer(layer, embeddings):
            gold = np.array(examples.targets)
            by_layer.append(evaluate_outputs(task.kind, outputs, gold, primary=task.primary))
        report(f"probing {embeddings.model.name}", EMBEDDED + (1 - EMBEDDED) * (layer + 1) / embeddings.n_layers, 1)
    scores = layer_scores(task, split, "probe", by_layer, embeddings.first_layer, embeddings.collapsed)
    embeddings.store.save_result(probe.kept, key, scores)
    return scores


def score_split(model: ModelLike, task: Task, *, split: TextSplit | None = None) -> tuple[LayerScores, Embeddings]:
    """Embed a split of a task at every layer, or read it from the store; return scores by `zero_shot` and embeddings.

    By default the test split is scored, or all data without a predefined split if nothing is fitted.
    """
    task = checked_task(task)
    split = split or task.scored
    check_choice(split, TextSplit, name="split")
    checkpoint = resolve(model, items=task.readable)
    kind = KINDS[task.kind]
    floor = kind.floors(task.split(split)).get(task.primary)
    if (score_untrained := kind.learning().untrained) is not None:
        scores: LayerScores = score_untrained(checkpoint, task, split=split)
        return replace(scores, floor=floor), extract_split(checkpoint, task, split)
    fit = kind.fitted_on
    with part(start=0, share=EMBEDDED if fit else 1, whole=1):
        names = (split, *(() if fit is None else (fit,)))
        scored, *fitted = in_parts(lambda name: extract_split(checkpoint, task, name), names)
    scores = zero_shot(scored, task, split=split, fitted=fitted[0] if fitted else None)
    return replace(scores, floor=floor), scored


def score_by_item(
    checkpoint: Resolved, task: Task, *, split: TextSplit, required: bool = True
) -> tuple[LayerScores, Embeddings]:
    """Return scores like `score_split`, with influences of the items; DataError if these are required but unknown."""
    with settings(by_item=True):
        scores, embeddings = score_split(checkpoint, task, split=split)
    if required and not scores.influences:
        raise DataError(
            f"the kind {task.kind} has no influences of items on scores, to compare models: score one model at a time"
        )
    return scores, embeddings


def score_outputs(checkpoint: Resolved, task: Task, *, split: TextSplit, method: ScoreMethod = "cosine") -> LayerScores:
    """Score the outputs of `Kind.outputs` for the untrained embeddings of every layer."""
    embeddings, items = extract_split(checkpoint, task, split), task.split(split)
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            outputs = outputs_of_layer(embeddings.measured(layer), embeddings.rows, task, items)
            by_layer.append(evaluate_outputs(task.kind, outputs, items.gold))
    return layer_scores(task, split, method, by_layer, embeddings.first_layer, embeddings.collapsed)


def layer_scores(
    task: Task,
    split: TextSplit,
    method: ScoreMethod,
    by_layer: list[Evaluation],
    first_layer: int,
    collapsed: int = 0,
) -> LayerScores:
    """Combine the evaluations of all layers into a `LayerScores`; layers are left out as in `Embeddings`."""
    return LayerScores(
        split=split,
        method=method,
        primary=task.primary,
        metrics={
            name: tuple(one.metrics[name] for one in by_layer)
            for name in dict.fromkeys((task.primary, *KINDS[task.kind].metrics))
        },
        first_layer=first_layer,
        collapsed=collapsed,
        influences=tuple(tuple(one.influences.tolist()) for one in by_layer if one.influences is not None),
        outputs=tuple((one.outputs, one.threshold) for one in by_layer if one.outputs is not None),
    )


def kept_scores(store: Store, kind: str, key: str) -> LayerScores | None:
    """Load scores from the store, with influences of items if the context asks for `by_item`; None if missing.

    Outputs are not stored.
    """
    if current().outputs:
        return None
    stored = store.load_result(kind, key, LayerScores)
    if stored is None or (current().by_item and not stored.influences):
        return None
    return stored if current().by_item else replace(stored, influences=())


@contextlib.contextmanager
def naming_layer(layer: int, embeddings: Embeddings) -> Iterator[None]:
    """Add the layer to the message of an error about outputs that cannot be scored."""
    try:
        yield
    except MisalignedSamplesError:
        raise
    except DataError as error:
        raise DataError(f"layer {layer} of {embeddings.model.name} cannot be scored: {error}") from error


def _cosines(
    embeddings: Embeddings, layer: int, task: Task, split: TextSplit, *, threshold: float | None = None
) -> Evaluation:
    items = task.examples(split)
    outputs = outputs_of_layer(embeddings.measured(layer), embeddings.rows, task, items)
    return evaluate_outputs(task.kind, outputs, items.gold, threshold=threshold)
