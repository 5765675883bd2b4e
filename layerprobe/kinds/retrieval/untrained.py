"""Frozen embeddings of queries and documents -> how well every layer finds the one from the other."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.checks import check_choice
from layerprobe.context import current, report
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint
from layerprobe.extraction.embeddings import Embeddings, extract_items
from layerprobe.kinds.retrieval.items import RetrievalItems, RetrievalTask
from layerprobe.kinds.retrieval.metrics import (
    closest_documents,
    float32_rows,
    listed_floors,
    ranking_metrics,
    relevant_ranks,
)
from layerprobe.kinds.retrieval.values import Ranking, RetrievalScores
from layerprobe.metrics.influence import mean_influences
from layerprobe.metrics.names import LISTED_METRICS, RETRIEVAL_METRICS, bounded
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import Rows, layer_scores, naming_layer
from layerprobe.similarity.values import Difference, Interval
from layerprobe.stats.best import against_best
from layerprobe.stats.crossed import least_variance
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.tasks.values import Task, TextSplit

Values = NDArray[np.float64]
_SAME = 1e-9
"""Scores x 100 that differ by no more are the same."""


def untrained_retrieval(checkpoint: Checkpoint, task: Task, *, split: TextSplit) -> LayerScores:
    """Return how well every layer finds the relevant documents of a split's queries, by cosine, as `retrieve` does."""
    items, embeddings = extract_items(checkpoint, task.split(split), task=task)
    assert isinstance(items, RetrievalItems)
    scores = score_queries(embeddings, items)
    by_layer = [
        Evaluation(
            metrics={metric: _mean_of(scores[metric][layer]) for metric in LISTED_METRICS},
            influences=mean_influences(scores[LISTED_METRICS[0]][layer]) if current().by_item else None,
        )
        for layer in range(embeddings.n_layers)
    ]
    return layer_scores(task, split, "cosine", by_layer, embeddings.first_layer)


def closest(values: NDArray[np.float32], rows: Rows, items: RetrievalItems) -> Values:
    """Return the closest documents of every query by (text, width) embeddings, see `closest_documents`."""
    queries, documents = (rows(texts) for texts in (items.query_texts, items.document_texts))
    return closest_documents(values, queries, documents, np.array(items.own), name="the embeddings")


def retrieve(
    model: ModelLike,
    task: RetrievalTask,
    *,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    ranking: Ranking = "cosine",
    tolerance: float = TOLERANCE,
) -> RetrievalScores:
    """Embed queries and documents at every layer, or take them from the store, and score every layer.

    Args:
        model: A name, a folder, or a `Model`.
        task: What `load_retrieval` returned.
        query_prompt: Put before every query, such as "query: "; by default the prompt of the options, or else
            the one that a configuration of sentence-transformers has for queries; likewise for documents.
        document_prompt: Put before every document.
        ranking: cosine, or dot: the inner product.
        tolerance: Points of the primary metric that a smaller layer may be behind the best.

    Returns:
        All metrics by layer and query, their means with Student's t intervals over queries, and the paired
        differences of every layer to the last one, whose intervals hold for all layers together.
    """
    level = current().level
    check_choice(ranking, Ranking, name="ranking")
    checkpoint = resolve_checkpoint(model)
    items = task.items.with_prompts(query_prompt, document_prompt)
    items, embeddings = extract_items(checkpoint, items)
    by_query = score_queries(embeddings, items, ranking=ranking)
    settings, primary = dict(embeddings.settings), by_query[RETRIEVAL_METRICS[0]][embeddings.first_layer :]
    before = items.prompts if any(items.prompts) else (settings.get("prompt", ""),) * 2
    settings.pop("prompt", None)
    settings |= {name: text for name, text in zip(("query_prompt", "document_prompt"), before, strict=True) if text}
    return RetrievalScores(
        model=embeddings.model,
        task=task.name,
        task_digest=task.digest,
        n_documents=len(items.documents),
        ranking=ranking,
        query_ids=task.query_ids,
        by_query={metric: tuple(tuple(layer.tolist()) for layer in layers) for metric, layers in by_query.items()},
        means={metric: tuple(_mean(layer, level) for layer in layers) for metric, layers in by_query.items()},
        differences=_to_the_last(by_query[RETRIEVAL_METRICS[0]], level),
        settings=settings,
        warnings=embeddings.warnings,
        first_layer=embeddings.first_layer,
        compared=against_best(
            [_mean_of(layer) for layer in primary],
            [mean_influences(layer) for layer in primary],
            metric=RETRIEVAL_METRICS[0],
            level=level,
            tolerance=tolerance,
            floor=listed_floors(items)[RETRIEVAL_METRICS[0]],
        ),
    )


def score_queries(
    embeddings: Embeddings, items: RetrievalItems, *, ranking: Ranking = "cosine"
) -> dict[str, list[Values]]:
    """Return what every query scores at every layer by each metric of retrieval, (query,) x 100; no model is needed.

    Every document is ranked for every query by the similarity of their embeddings; of equal ones the earlier document
    comes first, which is the one with the higher id, as in trec_eval. A document that is the query itself is not
    ranked. Memory is that of one layer and of blocks of 64 MB.
    """
    queries, documents = (embeddings.rows(texts) for texts in (items.query_texts, items.document_texts))
    texts, numbers = np.unique(documents, return_inverse=True)
    relevant = [np.array([document for document, _ in judged]) for judged in items.relevance]
    gains = [np.array([gain for _, gain in judged]) for judged in items.relevance]
    itself = np.array(items.own, dtype=np.int64)
    by_metric: dict[str, list[Values]] = {metric: [] for metric in RETRIEVAL_METRICS}
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            values, units = embeddings.measured(layer), ranking == "cosine"
            query_rows, searched = (
                float32_rows(values, rows, units=units, name=f"layer {layer}") for rows in (queries, texts)
            )
            ranks = relevant_ranks(query_rows, searched, numbers, relevant, itself)
            scores = [ranking_metrics(*query) for query in zip(ranks, gains, strict=True)]
        for metric, layers in by_metric.items():
            layers.append(100 * np.array([score[metric] for score in scores]))
        report(f"ranking by {embeddings.model.name}", layer + 1, embeddings.n_layers)
    return by_metric


# ---- intervals over queries ---------------------------------------------------------------------------


def _mean_of(values: Values) -> float:
    """Return the mean, which no order of the queries changes."""
    return math.fsum(values) / len(values)


def _mean(values: Values, level: float, *, difference: bool = False) -> Interval:
    n = len(values)
    # queries that all score the same do not say that others would
    variance = values.var(ddof=1) / n if np.ptp(values) > _SAME else least_variance(n)
    mean, error = _mean_of(values), math.sqrt(variance)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    lower, upper = bounded(RETRIEVAL_METRICS[0], (mean - half, mean + half), difference=difference)
    return Interval(value=mean, standard_error=error, lower=lower, upper=upper, level=level)


def _to_the_last(layers: Sequence[Values], level: float) -> tuple[Difference, ...]:
    """Return each layer less the last; with m differences each interval is at 1 - (1 - level) / m."""
    *others, last = layers
    differences = []
    for layer, values in enumerate(others):
        mean = _mean(values - last, 1 - (1 - level) / len(others), difference=True)
        p_value = min(1.0, len(others) * _p_value(mean, len(last) - 1))
        differences.append(
            Difference(
                label=f"layer {layer} less layer {len(others)}",
                value=mean.value,
                standard_error=mean.standard_error,
                lower=mean.lower,
                upper=mean.upper,
                level=level,
                p_value=p_value,
            )
        )
    return tuple(differences)


def _p_value(mean: Interval, degrees: int) -> float:
    """Return the two-sided p of a mean of zero."""
    return float(2 * stats.t.sf(abs(mean.value) / mean.standard_error, degrees))
