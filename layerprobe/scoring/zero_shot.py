"""Scores of every layer without fine-tuning, from embeddings and targets: by cosines, or by a probe."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice
from layerprobe.context import EMBEDDED, current, in_parts, part, report, settings
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract_split
from layerprobe.files.serialisation import digest
from layerprobe.scoring.probes import Probe
from layerprobe.scoring.values import LayerScores, ScoreMethod
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, outputs_of_layer, sides_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task, TextSplit

Array = NDArray[np.float64]


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


def score_outputs(checkpoint: Resolved, task: Task, *, split: TextSplit, method: ScoreMethod) -> LayerScores:
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
