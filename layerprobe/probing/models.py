"""A model and a task -> embeddings or outputs of every layer, and which layer to use. Knows kinds of tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.arrays import Layer, Rows
from layerprobe.context import EMBEDDED, part
from layerprobe.encoders.loading import resolve
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, extract_items, left_out_layers
from layerprobe.metrics.names import split_title
from layerprobe.probing.estimators import FEATURES
from layerprobe.probing.probes import SCORED_AS, Problem
from layerprobe.probing.run import probe_layers
from layerprobe.probing.values import ProbeSettings, Probing
from layerprobe.scoring.probes import Probe
from layerprobe.stats.crossed import Links, joined
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task, TextSplit


def probe_model(model: Any, task: Task, *, settings: ProbeSettings, splits: Any, scoring: Any, **how: Any) -> Probing:
    """Embed the items of a task at every layer, or load the embeddings, and find the layer to use.

    Kinds with a probe of whole embeddings are cross-validated on all their items; scored pairs and queries
    are compared by cosines; `layerprobe.scoring.score.score` handles other kinds.
    """
    task = checked_task(task)
    kind = KINDS[task.kind]
    by_rows = kind.zero_shot == "probe" or (kind.zero_shot == "cosine" and kind.threshold is None)
    if not (by_rows or task.kind == SCORED_AS["queries"]):
        raise DataError(f"expected a task whose items are rows of embeddings, got kind {task.kind}: use score")
    checkpoint = resolve(model, items=task.readable)
    # the whole task for cross-validation, else its own split
    split: TextSplit = "all" if kind.zero_shot == "probe" else task.scored
    about: dict[str, Any] = {"name": checkpoint.label, "task": task.name, "n_groups": None}
    about["notes"] = (f"scored on {split_title(split)}",)
    with part(start=0, share=EMBEDDED, whole=1):
        items, embeddings = extract_items(checkpoint, task.split(split), task=task)
    layers, problem = _posed(items, embeddings, task)
    links, groups = links_of(items), None
    if kind.zero_shot == "probe" and splits is None:
        groups, notes = _kept_together(items, links, settings.folds)
        about["notes"] += notes
    problem = replace(problem.folded(groups, settings, splits).scored_by(scoring), links=links)
    about |= {"model": embeddings.model, "cautions": embeddings.cautions}
    first, n_layers = embeddings.first_layer, embeddings.n_layers
    reasons = left_out_layers(embeddings.model.name, embeddings.pooling, range(first, n_layers), n_layers)
    left_out = {f"layer {number}": reasons[0].partition(": ")[2] for number in range(first)}
    with part(start=EMBEDDED, share=1 - EMBEDDED, whole=1):
        return probe_layers(layers, problem, about, settings=settings, left_out=left_out, **how)


def _posed(items: Any, embeddings: Embeddings, task: Task) -> tuple[list[Layer], Problem]:
    """Return the layers for predicting the items of a task, and the targets."""
    kind = KINDS[task.kind]
    of: dict[str, Any] = {"scored_as": task.kind}
    stored = {  # probes detect constant last layers
        layer: embeddings.stored.rows(layer) for layer in range(embeddings.first_layer, embeddings.n_layers)
    }
    layers = [Layer(name=f"layer {i}", shape=rows.shape, read=rows.__getitem__) for i, rows in stored.items()]
    if task.kind == SCORED_AS["queries"]:
        rows, documents = (embeddings.rows(texts) for texts in (items.query_texts, items.document_texts))
        itself = np.array(items.own, dtype=np.int64)
        return layers, Problem(kind="queries", targets=items.gold, rows=rows, documents=documents, itself=itself, **of)
    sides = [embeddings.rows(side) for side in items.sides]
    if kind.zero_shot == "cosine":
        return layers, Problem(kind="pairs", targets=np.array(items.gold), rows=np.stack(sides, axis=1), **of)
    probe = kind.learning().probe
    layers = [_features(layer, probe, sides) for layer in layers]
    pairs = next((name for name, features in FEATURES.items() if features is probe.features), None)
    of["pairs"] = pairs if len(sides) > 1 else ""
    if kind.labelled:
        numbers = np.array(items.gold, dtype=np.intp)
        return layers, Problem(kind="classes", targets=numbers, names=np.array(task.labels), **of)
    return layers, Problem(kind="scores", targets=np.array(items.gold, dtype=np.float64), **of)


def _kept_together(items: Items, links: Links | None, folds: int) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
    """Return (n,) group numbers for the folds, which keep items with a common text together, and notes about them.

    If that would put most items into one fold, or make too few sets, only copies of an item are kept together, as in
    `layerprobe.tasks.splitting`.
    """
    if links is None:
        return None, ()
    sets = joined(*links.sides)
    sizes = np.bincount(sets)
    if sizes.max() <= len(sets) / 2 and len(sizes) >= folds:
        return sets, ()
    numbers: dict[tuple[str, ...], int] = {}
    copies = np.array([numbers.setdefault(item, len(numbers)) for item in items.alike], dtype=np.intp)
    linked = f"{sizes.max():,} of {len(sets):,} items are linked by shared texts"
    return copies, (f"{linked}: only copies of an item stay in one fold, so folds share texts",)


def _features(layer: Layer, probe: Probe, sides: list[NDArray[np.int64]]) -> Layer:
    """Return the features of items for the probe: the embedding, or features from two embeddings."""

    def read(rows: Rows) -> NDArray[Any]:
        first, *second = (layer.rows(side[rows]) for side in sides)
        features: NDArray[Any] = probe.features(first, second[0] if second else None)
        return features

    return Layer(name=layer.name, shape=(len(sides[0]), read(slice(0, 1)).shape[1]), read=read)
