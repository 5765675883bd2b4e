"""Retrieval: finding the relevant documents of a query among all documents; its metrics, items and the kind."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice
from layerprobe.files.serialisation import RARE
from layerprobe.metrics.names import RETRIEVAL_METRICS
from layerprobe.metrics.scores import mean_influences
from layerprobe.similarity.checks import finite_matrix, unit_rows
from layerprobe.stats.floors import Floor, ranking_floors
from layerprobe.tasks.explored import ItemView, ReadOutputs
from layerprobe.tasks.kind import Kind, learning_of
from layerprobe.tasks.rows import TaskSource
from layerprobe.tasks.values import Items, Task

BLOCK = 2**24
"""Scores in memory at a time: 64 MB."""
ROWS = 4096
"""Rows normalised at a time."""
CUTOFF = 10
LISTED = 100
"""Documents kept of the ranking for a query."""

Ranks = NDArray[np.int64]


def float32_rows(layer: NDArray[np.float32], rows: NDArray[np.int64], *, units: bool, name: str) -> NDArray[np.float32]:
    """Return rows of a layer in memory, normalised if requested, in blocks since norms use float64."""
    result = np.empty((len(rows), layer.shape[1]), np.float32)
    for start in range(0, len(rows), ROWS):
        block = finite_matrix(layer[rows[start : start + ROWS]], name=name)
        result[start : start + ROWS] = unit_rows(block, name=name) if units else block
    return result


def closest_documents(
    embeddings: NDArray[np.float32],
    queries: NDArray[np.int64],
    documents: NDArray[np.int64],
    itself: NDArray[np.int64],
    *,
    name: str,
    listed: int = LISTED,
    units: bool = True,
) -> NDArray[np.float64]:
    """Return the documents closest to each query by cosine, the top of the ranking.

    Args:
        embeddings: (text, features).
        queries: (q,) rows of the embeddings.
        documents: (n,) rows of the embeddings; of equal cosines the earlier document comes first.
        itself: (q,) the document that is the query itself and not ranked, or -1.
        name: Name of the embeddings, for errors.
        listed: Largest number of documents per query.
        units: Whether to rank by the cosine; otherwise by the inner product.

    Returns:
        (q, k, 2): number of the document and cosine, for the k closest; all but one if `itself` leaves one out and
        there are at most `listed`.

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
    k = min(listed, len(documents) - bool((itself >= 0).any()))
    outputs = np.empty((len(queries), k, 2))
    for query, scores in enumerate(_scores(query_rows, searched, numbers, itself)):
        at_least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= at_least)
        order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
        outputs[query, :, 0], outputs[query, :, 1] = order, scores[order]
    return outputs


def _scores(
    queries: NDArray[np.float32], texts: NDArray[np.float32], documents: NDArray[np.int64], itself: NDArray[np.int64]
) -> Iterator[NDArray[np.float32]]:
    """Yield each query's inner products with all documents; -inf for the query itself."""
    step = max(1, BLOCK // len(documents))
    for start in range(0, len(queries), step):
        # not [:, documents], whose rows would not be contiguous
        scores = np.take(queries[start : start + step] @ texts.T, documents, axis=1)
        for query, row in enumerate(scores, start):
            if itself[query] >= 0:
                row[itself[query]] = -np.inf
            yield row


def listed_metrics(outputs: NDArray[np.float64], gold: Sequence[Mapping[int, float]]) -> dict[str, NDArray[np.float64]]:
    """Return the (q,) scores of the queries, 0 .. 1, by every metric that the top documents decide.

    Args:
        outputs: (q, k, 2) outputs of `closest_documents`, k at least 10 or all documents.
        gold: Relevant documents with their gains, by query.
    """
    scores = []
    for documents, gains in zip(outputs[:, :, 0], gold, strict=True):
        rank = {int(document): i for i, document in enumerate(documents, 1)}
        ranks = np.array([rank.get(document, len(documents) + CUTOFF) for document in gains])
        scores.append((ndcg(ranks, np.array(list(gains.values()))), reciprocal_rank(ranks), recall(ranks)))
    return dict(zip(RETRIEVAL_METRICS, np.array(scores).T, strict=True))


def query_view(task: Any, items: Any) -> ItemView:
    """Return the view of queries: the rank of the first relevant document, and the first document."""

    def read(outputs: NDArray[np.float64], threshold: float | None) -> ReadOutputs:
        listed = outputs[:, :, 0].astype(int).tolist()
        beyond = outputs.shape[1] + 1
        ranks = [
            next((rank for rank, document in enumerate(ranked, 1) if document in right), beyond)
            for ranked, right in zip(listed, items.gold, strict=True)
        ]
        words = []
        for rank, ranked in zip(ranks, listed, strict=True):
            name = f"{rank}+" if rank == beyond else str(rank)
            words.append(f"{name}; first: {items.documents[ranked[0]]}")
        return ReadOutputs(ranks, 100 * (1 - listed_metrics(outputs, items.gold)["ndcg@10"]), words)

    return ItemView(
        form="ranks",
        texts={"Query": items.queries},
        gold=[items.documents[judged[0][0]] for judged in items.relevance],
        output="rank",
        error="100 minus nDCG@10 x 100",
        limit=50.0,
        read=read,
        embedded=(items.queries,),
    )


def listed_scores(outputs: NDArray[np.float64], gold: Sequence[Mapping[int, float]]) -> dict[str, float]:
    """Return the means over queries of `listed_metrics`."""
    by_query = listed_metrics(outputs, gold)  # means do not depend on the order of queries
    return {metric: math.fsum(values) / len(values) for metric, values in by_query.items()}


def ndcg(ranks: Ranks, gains: NDArray[np.float64], cutoff: int = CUTOFF) -> float:
    """Return the normalised discounted cumulative gain of the first `cutoff` documents, 0 .. 1.

    DCG = sum of gain_i / log2(rank_i + 1) over documents of rank <= cutoff, divided by the highest DCG of any order of
    the same gains. The gain is linear, as in trec_eval and BEIR. Ranks are those of all documents with a gain.

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


def reciprocal_rank(ranks: Ranks, cutoff: int = CUTOFF) -> float:
    """Return 1 / rank of the first relevant document; 0 after the cutoff.

    Examples:
        >>> reciprocal_rank(np.array([12, 4])), reciprocal_rank(np.array([12]))
        (0.25, 0.0)
    """
    first = int(ranks.min())
    return 1 / first if first <= cutoff else 0.0


def recall(ranks: Ranks, cutoff: int = CUTOFF) -> float:
    """Return the share of the relevant documents among the first `cutoff`, 0 .. 1.

    Examples:
        >>> recall(np.array([1, 7, 30, 11]))
        0.5
    """
    return float(np.mean(ranks <= cutoff))


Ranking = Literal["cosine", "dot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalItems(Items):
    """Queries, each an item, and the documents to rank for all of them."""

    by_item = ("queries", "relevance", "trained", "own", "ids")
    queries: tuple[str, ...]
    """Texts of the queries."""
    documents: tuple[str, ...]
    """Texts of the documents, the same in all splits; of equal cosines the earlier document comes first."""
    relevance: tuple[tuple[tuple[int, float], ...], ...]
    """Numbers of the relevant documents with their gains above 0, by query."""
    trained: tuple[tuple[tuple[int, ...], ...], ...]
    """Training examples by query: the numbers of a positive and of its hard negatives, equally many in all."""
    own: tuple[int, ...]
    """Number of the document that is the query itself and not ranked, by query; -1 for none."""
    query_prompt: str | None = None
    """Prompt before every query; None: that of the options or the model."""
    document_prompt: str | None = None
    """Prompt before every document; likewise."""
    ids: tuple[str, ...] = field(default=(), metadata=RARE)
    """Distinct ids of the queries; empty if they only have numbers."""
    ranking: Ranking = field(default="cosine", metadata=RARE)
    """Ranking score: the cosine or the inner product of the embeddings of document and query."""

    def __post_init__(self) -> None:
        check_choice(self.ranking, Ranking, name="ranking")
        super(RetrievalItems, self).__post_init__()

    def __repr__(self) -> str:
        return f"<RetrievalItems: {len(self):,} queries, {len(self.documents):,} documents>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The queries; documents are common to all."""
        return (self.queries,)

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Relevant documents, which queries of other splits can share."""
        return "relevant document", tuple(self.documents[number] for number, _ in chain(*self.relevance))

    @property
    def facts(self) -> dict[str, int]:
        """The number of documents."""
        return {"documents": len(self.documents)}

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the queries, or their numbers."""
        return self.ids or tuple(map(str, range(len(self))))

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """Prompts before queries and before documents."""
        return self.query_prompt, self.document_prompt

    @property
    def query_texts(self) -> tuple[str, ...]:
        """The queries with their prompt."""
        return tuple((self.query_prompt or "") + text for text in self.queries)

    @property
    def document_texts(self) -> tuple[str, ...]:
        """The documents with their prompt."""
        return tuple((self.document_prompt or "") + text for text in self.documents)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct texts to embed, queries before documents."""
        return tuple(dict.fromkeys((*self.query_texts, *self.document_texts)))

    @property
    def examples(self) -> tuple[tuple[int, ...], ...]:
        """Training examples: the numbers of a query, a relevant document and hard negatives."""
        return tuple((query, *example) for query, examples in enumerate(self.trained) for example in examples)

    @property
    def gold(self) -> Any:
        """(n,) objects: the relevant documents of every query with their gains."""
        gold = np.empty(len(self), dtype=object)
        gold[:] = [dict(judged) for judged in self.relevance]
        return gold

    def prompted(self, prompt: str) -> "RetrievalItems":
        """Return the items with the prompt before queries and documents that have none."""
        return self.with_prompts(prompt, prompt)

    def with_prompts(self, query: str | None, document: str | None) -> "RetrievalItems":
        """Return the items with these prompts if they have none."""
        return replace(
            self,
            query_prompt=query if self.query_prompt is None else self.query_prompt,
            document_prompt=document if self.document_prompt is None else self.document_prompt,
        )


def _load(source: TaskSource) -> Task:
    from layerprobe.kinds.retrieval_loading import load_retrieval_task

    return load_retrieval_task(source)


def _floors(items: RetrievalItems) -> dict[str, Floor]:
    gains = [[gain for _, gain in judged] for judged in items.relevance]
    n_ranked = [len(items.documents) - (document >= 0) for document in items.own]
    return ranking_floors(gains, n_ranked)


RETRIEVAL = Kind(
    name="retrieval",
    view=query_view,
    pairs=True,
    labelled=False,
    metrics=RETRIEVAL_METRICS,
    score=listed_scores,
    influences=lambda *outputs: {name: mean_influences(values) for name, values in listed_metrics(*outputs).items()},
    learning=learning_of("retrieval"),
    zero_shot="own",
    items=RetrievalItems,
    item="query",
    loader=_load,
    prompts=True,
    # a folder in the layout of BEIR
    recognises=lambda path: path.is_dir() and {"corpus", "queries"} <= {file.stem for file in path.iterdir()},
    one_target=True,
    floors=_floors,
)
