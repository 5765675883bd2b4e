"""Retrieval: the documents that belong to a query, found among all documents; its items and the kind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.kinds.retrieval.metrics import listed_floors, listed_influences, listed_scores
from layerprobe.metrics.names import LISTED_METRICS
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.values import Items

Ranking = Literal["cosine", "dot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalItems(Items):
    """Queries, each an item, and the documents that are ranked for all of them."""

    by_item = ("queries", "relevance", "trained", "own", "ids")
    queries: tuple[str, ...]
    """Their texts."""
    documents: tuple[str, ...]
    """Their texts, the same in all splits; of documents with equal cosines the earlier comes first."""
    relevance: tuple[tuple[tuple[int, float], ...], ...]
    """By query, the numbers of its relevant documents, with the gain above 0 of finding each."""
    trained: tuple[tuple[tuple[int, ...], ...], ...]
    """By query, its examples: the numbers of a positive and of its hard negatives, as many in all."""
    own: tuple[int, ...]
    """By query, the number of the document that is the query itself and is not ranked for it; -1 for none."""
    query_prompt: str | None = None
    """Put before every query; None for what the options or the model say."""
    document_prompt: str | None = None
    """Put before every document; likewise."""
    ids: tuple[str, ...] = field(default=(), metadata=RARE)
    """Of the queries, distinct; empty where only numbers tell them apart."""
    ranking: Ranking = field(default="cosine", metadata=RARE)
    """By what documents are ranked: the cosine or the inner product of their embedding with that of the query."""

    def __post_init__(self) -> None:
        check_choice(self.ranking, Ranking, name="ranking")
        if self.ids and len(set(self.ids)) < len(self):
            raise DataError(f"expected {len(self)} distinct query ids, got {len(set(self.ids))}")
        super(RetrievalItems, self).__post_init__()
        if without := sum(not documents for documents in self.relevance):
            raise DataError(f"expected a relevant document for every query, {without} have none: leave them out")
        numbers = {*chain(*chain(*self.trained)), *(document for document, _ in chain(*self.relevance))}
        if numbers and not (min(numbers) >= 0 and max(numbers) < len(self.documents)):
            raise DataError(
                f"expected numbers of {len(self.documents)} documents, got {min(numbers)} to {max(numbers)}"
            )
        for query, (itself, judged) in enumerate(zip(self.own, self.relevance, strict=True)):
            gains = dict(judged)
            if len(gains) < len(judged):
                raise DataError(f"expected one gain for a query and a document, got several for query {query}")
            if itself in gains:
                raise DataError(f"expected no query that finds itself, got query {query}")
            if not all(math.isfinite(gain) and gain > 0 for gain in gains.values()):
                raise DataError(f"expected gains above 0, got {', '.join(map(str, gains.values()))} for query {query}")
        if len({len(example) for example in chain(*self.trained)}) > 1:
            raise DataError("expected as many hard negatives for each positive, got more for some than for others")

    def __repr__(self) -> str:
        return f"<RetrievalItems: {len(self):,} queries, {len(self.documents):,} documents>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The queries: documents are the same for all."""
        return (self.queries,)

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Relevant documents, which queries of other splits can have too."""
        return "relevant document", tuple(self.documents[number] for number, _ in chain(*self.relevance))

    @property
    def facts(self) -> dict[str, int]:
        """How many documents are ranked."""
        return {"documents": len(self.documents)}

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the queries, or their numbers."""
        return self.ids or tuple(map(str, range(len(self))))

    @property
    def prompts(self) -> tuple[str | None, str | None]:
        """What stands before queries and before documents."""
        return self.query_prompt, self.document_prompt

    @property
    def query_texts(self) -> tuple[str, ...]:
        """The queries as they are embedded."""
        return tuple((self.query_prompt or "") + text for text in self.queries)

    @property
    def document_texts(self) -> tuple[str, ...]:
        """The documents as they are embedded."""
        return tuple((self.document_prompt or "") + text for text in self.documents)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct texts as they are embedded, queries and then documents."""
        return tuple(dict.fromkeys((*self.query_texts, *self.document_texts)))

    @property
    def examples(self) -> tuple[tuple[int, ...], ...]:
        """Training examples: the numbers of a query, a relevant document and hard negatives."""
        return tuple((query, *example) for query, examples in enumerate(self.trained) for example in examples)

    @property
    def gold(self) -> Any:
        """(n,) objects: the relevant documents of every query with their gains."""
        import numpy as np  # which `--help` does without

        gold = np.empty(len(self), dtype=object)
        gold[:] = [dict(judged) for judged in self.relevance]
        return gold

    @property
    def ranked(self) -> tuple[int, ...]:
        """By query, how many documents are ranked for it."""
        return tuple(len(self.documents) - (itself >= 0) for itself in self.own)

    def join(self, other: "RetrievalItems") -> "RetrievalItems":
        """Return these queries and then the others; DataError if their documents or prompts are not the same."""
        if (self.documents, self.prompts) != (other.documents, other.prompts):
            raise DataError("expected queries that are asked of the same documents with the same prompts")
        return super(RetrievalItems, self).join(other)

    def prompted(self, prompt: str) -> "RetrievalItems":
        """Return the items with the prompt before queries, and before documents, that have none of their own."""
        return self.with_prompts(prompt, prompt)

    def with_prompts(self, query: str | None, document: str | None) -> "RetrievalItems":
        """Return the items with these prompts where they have none of their own."""
        return replace(
            self,
            query_prompt=query if self.query_prompt is None else self.query_prompt,
            document_prompt=document if self.document_prompt is None else self.document_prompt,
        )

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless there are two documents to rank, and no text is empty."""
        if len(self.documents) < 2:
            raise DataError(f"expected at least two documents to rank in the {split} split, got {len(self.documents)}")
        self.check_texts(split, "queries", "documents")


def _is_collection(path: Path) -> bool:
    """Return whether a folder is in the layout of BEIR."""
    return path.is_dir() and {"corpus", "queries"} <= {file.stem for file in path.iterdir()}


RETRIEVAL = Kind(
    name="retrieval",
    view="layerprobe.kinds.retrieval.metrics:query_view",
    pairs=True,
    labelled=False,
    metrics=LISTED_METRICS,
    score=listed_scores,
    influences=listed_influences,
    loss="layerprobe.kinds.retrieval.loss:MultipleNegatives",
    zero_shot="own",
    untrained="layerprobe.kinds.retrieval.loss:untrained_retrieval",
    outputs="layerprobe.kinds.retrieval.loss:closest",
    items="layerprobe.kinds.retrieval.kind:RetrievalItems",
    item="query",
    loader="layerprobe.kinds.retrieval.loading:load_retrieval_task",
    prompts=True,
    recognises=_is_collection,
    one_target=True,
    floors=listed_floors,
)
