"""Extractive summaries from frozen sentence embeddings, layer by layer, beside the first sentences and the oracle.

Source: centrality in the graph of a document's sentences: Erkan and Radev 2004 (LexRank, JAIR 22), whose degree is the
mean cosine here; the centroid: Radev, Jing, Stys and Tam 2004 (Information Processing and Management 40).
"""

from collections.abc import Iterator
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import current, report
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, extract_split
from layerprobe.kinds.summaries.items import SummaryItems
from layerprobe.kinds.summaries.values import Centrality, SummaryMethod, SummaryScores
from layerprobe.metrics.names import Split
from layerprobe.scoring.probes import LOGISTIC
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import Rows, layer_scores
from layerprobe.stats.crossed import crossed
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.links import links_of
from layerprobe.tasks.overlaps import checked_task
from layerprobe.tasks.values import Task, TextSplit

Array = NDArray[np.float64]

TINY = 1e-12
"""Norms below this, of sums of unit vectors that cancel out, have no direction."""


def centrality(embeddings: NDArray[np.floating], by: Centrality = "degree") -> Array:
    """Return how central each sentence of a document is, in [-1, 1].

    degree: the mean cosine with the other sentences; centroid: the cosine with the mean of all embeddings. A document
    of one sentence has 0. Where all embeddings have one norm, both rank the sentences alike.

    Args:
        embeddings: (sentences, width).
        by: What counts as central.

    Examples:
        >>> centrality(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).round(3).tolist()
        [0.354, 0.354, 0.707]
    """
    values = np.asarray(embeddings, dtype=np.float64)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not (norms > 0).all():
        raise DataError("expected finite embeddings of sentences that are not zero")
    units = values / norms
    if len(units) == 1:
        return np.zeros(1)
    if by == "degree":
        degrees: Array = (units @ units.sum(axis=0) - 1) / (len(units) - 1)
        return degrees
    centre = values.mean(axis=0)
    cosines: Array = units @ centre / max(float(np.linalg.norm(centre)), TINY)
    return cosines


def central_sentences(model: ModelLike, task: Task, *, split: TextSplit = "test") -> LayerScores:
    """Return the ROUGE of the most central sentences by layer, without training; the arguments are those of `score`."""
    checkpoint, items = resolve_checkpoint(model), _items(task, split)
    embeddings = extract_split(checkpoint, task, split)
    by_layer = [
        evaluate_outputs(task.kind, central(embeddings.measured(layer), embeddings.rows, items), items)
        for layer in range(embeddings.n_layers)
    ]
    return layer_scores(task, split, "centrality", by_layer, embeddings.first_layer)


def summarize(model: ModelLike, task: Task) -> SummaryScores:
    """Choose the sentences of each document by every layer in three ways, and compare with the first sentences.

    By centrality, degree and centroid, without labels; by logistic regression on the frozen embedding of a sentence,
    fitted on whether the greedy oracle has it. Layer and way are chosen on the validation split, differences to the
    first sentences are on test, with intervals over documents. The oracle is what no choice of sentences is
    likely to exceed.
    """
    level = current().level
    task = checked_task(task)
    checkpoint = resolve_checkpoint(model)
    items = {split: _items(task, split) for split in get_args(Split)}
    embedded = {split: extract_split(checkpoint, task, split) for split in get_args(Split)}
    test, links = items["test"], links_of(task.test)
    lead, oracle = (evaluate_outputs(task.kind, outputs, test).metrics for outputs in (test.lead(), test.best()))
    first = item_influences(task.kind, test.lead(), test)
    enough = links is None or links.units > 1
    methods, done = [], 0
    for name in (*get_args(Centrality), "probe"):
        validation, tested, gains = [], [], []
        for layer in range(embedded["test"].n_layers):
            chosen, outputs = _outputs(embedded, items, layer, name)
            validation.append(evaluate_outputs(task.kind, chosen, items["validation"]).metrics[task.primary])
            tested.append(evaluate_outputs(task.kind, outputs, test).metrics)
            influences = (item_influences(task.kind, outputs, test) - first)[None]
            gain = [tested[-1][task.primary] - lead[task.primary]]
            gains.append(
                crossed(
                    gain,
                    influences if enough else None,
                    links=links,
                    level=level,
                    unit=KINDS[task.kind].unit,
                    metric=task.primary,
                )
            )
            done += 1
            report(f"summaries by {embedded['test'].model.name}", done, 3 * embedded["test"].n_layers)
        methods.append(
            SummaryMethod(
                name=name,
                validation=tuple(validation),
                test={metric: tuple(by_metric[metric] for by_metric in tested) for metric in tested[0]},
                gains=tuple(gains),
            )
        )
    return SummaryScores(
        model=embedded["test"].model,
        task=task.name,
        primary=task.primary,
        documents=len(test),
        keep=test.keep,
        first_layer=embedded["test"].first_layer,
        lead=lead,
        oracle=oracle,
        methods=tuple(methods),
    )


def _items(task: Task, split: TextSplit) -> SummaryItems:
    items = task.split(split)
    if not isinstance(items, SummaryItems):
        raise DataError(f"expected documents with summaries, got {task.name} of kind {task.kind}")
    return items


def _outputs(
    embedded: dict[Split, Embeddings], items: dict[Split, SummaryItems], layer: int, method: str
) -> tuple[Array, Array]:
    """Return what a method outputs for the validation and the test split."""
    splits: tuple[Split, Split] = ("validation", "test")
    for by in get_args(Centrality):
        if method == by:
            validation, test = (
                central(embedded[split].measured(layer), embedded[split].rows, items[split], by) for split in splits
            )
            return validation, test
    train = LOGISTIC.features(_sentences(embedded["train"], layer, items["train"]), None)
    both = [LOGISTIC.features(_sentences(embedded[split], layer, items[split]), None) for split in splits]
    probabilities = LOGISTIC.fit(train, items["train"].targets, np.concatenate(both))[:, 1]
    n = len(both[0])
    return items["validation"].arranged(probabilities[:n]), items["test"].arranged(probabilities[n:])


def central(values: NDArray[np.float32], rows: Rows, items: SummaryItems, by: Centrality = "degree") -> Array:
    """Return how central the sentences of all documents are, of (text, width) embeddings; see `centrality`."""
    values = values[rows(items.sentences)]

    def documents() -> Iterator[Array]:
        start = 0
        for sentences in items.documents:
            yield centrality(values[start : start + len(sentences)], by)
            start += len(sentences)

    return items.arranged(np.concatenate(list(documents())))


def _sentences(embeddings: Embeddings, layer: int, items: SummaryItems) -> NDArray[np.float32]:
    """Return the embeddings of the sentences of all documents, one after the other."""
    return embeddings.measured(layer)[embeddings.rows(items.sentences)]
