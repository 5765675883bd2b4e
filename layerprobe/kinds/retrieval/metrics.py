"""Ranks of relevant documents and the metrics of retrieval. Knows arrays; knows no texts and no layers.

The ranks of the relevant documents among all documents are exact, so every measure follows from them; no list is cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import MisalignedSamplesError
from layerprobe.metrics.influence import mean_influences
from layerprobe.metrics.names import LISTED_METRICS
from layerprobe.similarity.checks import finite_matrix, unit_rows
from layerprobe.stats.floors import Floor, ranking_floors
from layerprobe.tasks.explored import ItemView, ReadOutputs

BLOCK = 2**24
"""Scores that are in memory at a time: 64 MB."""
ROWS = 4096
"""Rows that are made units at a time."""
CUTOFF = 10
LISTED = 100
"""Documents that are kept of the ranking for a query."""

Ranks = NDArray[np.int64]


def float32_rows(layer: NDArray[np.float32], rows: NDArray[np.int64], *, units: bool, name: str) -> NDArray[np.float32]:
    """Return rows of a layer in memory, of length 1 where requested; lengths are computed in float64.

    Raises:
        DegenerateLayerError: If a value is not finite, or a row has no direction.
    """
    result = np.empty((len(rows), layer.shape[1]), np.float32)
    for start in range(0, len(rows), ROWS):
        block = finite_matrix(layer[rows[start : start + ROWS]], name=name)
        result[start : start + ROWS] = unit_rows(block, name=name) if units else block
    return result


def relevant_ranks(
    queries: NDArray[np.float32],
    texts: NDArray[np.float32],
    documents: NDArray[np.int64],
    relevant: Sequence[NDArray[np.int64]],
    own: NDArray[np.int64],
) -> Iterator[Ranks]:
    """Yield, query by query, the rank from 1 of each relevant document among all documents.

    Documents are ranked by their inner product with the query, the highest first; of equal ones the earlier document
    comes first. Documents of one text are exactly equal.

    Of (q, d) queries and (t, d) distinct texts, `documents` (n,) are rows of `texts`; `relevant` are for each query the
    numbers of its relevant documents, and `own` (q,) the document that is the query itself and not ranked, or -1.

    Raises:
        MisalignedSamplesError: If the numbers of features differ: the two come from different layers or models.

    Examples:
        >>> texts = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32)
        >>> query = np.array([[1, 0.5]], dtype=np.float32)
        >>> [ranks.tolist() for ranks in relevant_ranks(query, texts, np.arange(3), [np.array([0, 1])], np.array([-1]))]
        [[2, 3]]
    """
    for query, scores in enumerate(_scores(queries, texts, documents, own)):
        yield np.array([_rank(scores, document) for document in relevant[query]])


def closest_documents(
    embeddings: NDArray[np.float32],
    queries: NDArray[np.int64],
    documents: NDArray[np.int64],
    own: NDArray[np.int64],
    *,
    name: str,
    listed: int = LISTED,
    units: bool = True,
) -> NDArray[np.float64]:
    """Return the documents that are closest to each query by the cosine, the first ones of the ranking.

    Args:
        embeddings: (text, features).
        queries: (q,) rows of the embeddings.
        documents: (n,) rows of the embeddings; of equal cosines the earlier document comes first.
        own: (q,) the document that is the query itself and not ranked, or -1.
        name: What the embeddings are called where one has no direction.
        listed: Documents a query at most.
        units: Whether they are ranked by the cosine; by the inner product otherwise.

    Returns:
        (q, k, 2): number of the document and cosine, for the k closest; all but one where `own` leaves one out and
        there are no more than `listed`.

    Raises:
        DegenerateLayerError: If a value is not finite, or an embedding has no direction.

    Examples:
        >>> embeddings = np.array([[1, 0.5], [0, 1], [1, 0], [2, 0]], dtype=np.float32)
        >>> outputs = closest_documents(embeddings, np.array([0]), np.array([1, 2, 3]), np.array([-1]), name="x")
        >>> outputs[0, :, 0].tolist()
        [1.0, 2.0, 0.0]
    """
    texts, numbers = np.unique(documents, return_inverse=True)
    query_rows, searched = (float32_rows(embeddings, rows, units=units, name=name) for rows in (queries, texts))
    k = min(listed, len(documents) - bool((own >= 0).any()))
    outputs = np.empty((len(queries), k, 2))
    for query, scores in enumerate(_scores(query_rows, searched, numbers, own)):
        at_least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= at_least)
        order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
        outputs[query, :, 0], outputs[query, :, 1] = order, scores[order]
    return outputs


def _scores(
    queries: NDArray[np.float32], texts: NDArray[np.float32], documents: NDArray[np.int64], itself: NDArray[np.int64]
) -> Iterator[NDArray[np.float32]]:
    """Yield each query's inner products with all documents; -inf for the query itself."""
    if queries.shape[1] != texts.shape[1]:
        raise MisalignedSamplesError(
            f"the queries have {queries.shape[1]} features, expected the {texts.shape[1]} of the documents"
        )
    step = max(1, BLOCK // len(documents))
    for start in range(0, len(queries), step):
        # not [:, documents], whose rows would not be contiguous
        scores = np.take(queries[start : start + step] @ texts.T, documents, axis=1)
        for query, row in enumerate(scores, start):
            if itself[query] >= 0:
                row[itself[query]] = -np.inf
            yield row


def _rank(scores: NDArray[np.float32], document: int) -> int:
    higher = np.count_nonzero(scores > scores[document])
    equal_and_earlier = np.count_nonzero(scores[:document] == scores[document])
    return 1 + int(higher) + int(equal_and_earlier)


def ranking_metrics(ranks: Ranks, gains: NDArray[np.float64]) -> dict[str, float]:
    """Return every retrieval metric of one query's ranking, 0 .. 1."""
    return {
        "ndcg@10": ndcg(ranks, gains),
        "mrr": reciprocal_rank(ranks),
        "mrr@10": reciprocal_rank(ranks, CUTOFF),
        "recall@10": recall(ranks),
    }


def listed_metrics(outputs: NDArray[np.float64], gold: Sequence[Mapping[int, float]]) -> dict[str, NDArray[np.float64]]:
    """Return what each query scores by every metric that the first documents of a ranking decide, (q,) of 0 .. 1.

    Args:
        outputs: (q, k, 2) as from `closest_documents`, k at least 10 or all documents.
        gold: By query, the relevant documents with their gains.
    """
    scores = []
    for documents, gains in zip(outputs[:, :, 0], gold, strict=True):
        rank = {int(document): i for i, document in enumerate(documents, 1)}
        ranks = np.array([rank.get(document, len(documents) + CUTOFF) for document in gains])
        scores.append(ranking_metrics(ranks, np.array(list(gains.values()))))
    return {metric: np.array([by_metric[metric] for by_metric in scores]) for metric in LISTED_METRICS}


def query_view(task: Any, items: Any) -> ItemView:
    """Return how the queries of `RetrievalItems` are shown: the rank of the first relevant document, and the first."""

    def read(outputs: NDArray[np.float64], threshold: float | None) -> ReadOutputs:
        listed, beyond = outputs[:, :, 0].astype(int).tolist(), outputs.shape[1] + 1
        ranks = [
            next((rank for rank, document in enumerate(ranked, 1) if document in right), beyond)
            for ranked, right in zip(listed, items.gold, strict=True)
        ]
        firsts = (items.documents[ranked[0]] for ranked in listed)
        told = (f"{rank}{'+' * (rank == beyond)}; first: {text}" for rank, text in zip(ranks, firsts, strict=True))
        return ReadOutputs(ranks, 100 * (1 - listed_metrics(outputs, items.gold)["ndcg@10"]), [*told])

    return ItemView(
        form="ranks",
        texts={"Query": items.queries},
        gold=[items.documents[judged[0][0]] for judged in items.relevance],
        output="rank",
        error="100 less nDCG@10 x 100",
        limit=50.0,
        read=read,
        embedded=(items.queries,),
    )


def listed_scores(outputs: NDArray[np.float64], gold: Sequence[Mapping[int, float]]) -> dict[str, float]:
    """Return the means over queries of `listed_metrics`."""
    return {metric: float(values.mean()) for metric, values in listed_metrics(outputs, gold).items()}


def listed_influences(
    outputs: NDArray[np.float64], gold: Sequence[Mapping[int, float]]
) -> dict[str, NDArray[np.float64]]:
    """Return the influences of queries on `listed_scores`, which are means over them."""
    return {metric: mean_influences(values) for metric, values in listed_metrics(outputs, gold).items()}


def listed_floors(items: Any) -> dict[str, Floor]:
    """Return what a random order of the documents scores for `RetrievalItems`, by every metric of retrieval."""
    return ranking_floors([[gain for _, gain in judged] for judged in items.relevance], items.ranked)


def ndcg(ranks: Ranks, gains: NDArray[np.float64], cutoff: int = CUTOFF) -> float:
    """Return the normalised discounted cumulative gain of the first `cutoff` documents, 0 .. 1.

    DCG = sum of gain_i / log2(rank_i + 1) over documents of rank <= cutoff, divided by the highest DCG that an order
    of the same gains can have. The gain is linear, as in trec_eval and BEIR. Ranks are of all documents with a gain.

    Source: Jarvelin and Kekalainen 2002 (ACM TOIS 20), with the discount of Burges et al. 2005.

    Examples:
        >>> round(ndcg(np.array([3, 1]), np.array([1.0, 1.0])), 4)  # (1 + 1/2) / (1 + 1/log2(3))
        0.9197
    """
    # in the order of the ranks, so that a perfect order scores exactly 1
    order = np.argsort(ranks)[:cutoff]
    order = order[ranks[order] <= cutoff]
    ideal = np.sort(gains)[::-1][:cutoff]
    gained, best = gains[order] / np.log2(ranks[order] + 1.0), ideal / np.log2(np.arange(2.0, len(ideal) + 2))
    return float(gained.sum() / best.sum())


def reciprocal_rank(ranks: Ranks, cutoff: int | None = None) -> float:
    """Return 1 / rank of the first relevant document; 0 where it comes after the cutoff.

    Examples:
        >>> reciprocal_rank(np.array([12, 4])), reciprocal_rank(np.array([12]), cutoff=10)
        (0.25, 0.0)
    """
    first = int(ranks.min())
    return 1 / first if cutoff is None or first <= cutoff else 0.0


def recall(ranks: Ranks, cutoff: int = CUTOFF) -> float:
    """Return the share of the relevant documents among the first `cutoff`, 0 .. 1.

    Examples:
        >>> recall(np.array([1, 7, 30, 11]))
        0.5
    """
    return float(np.mean(ranks <= cutoff))
