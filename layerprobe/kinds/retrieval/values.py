"""Queries, documents and what belongs together, and how well the layers of a model find it."""

import math
from dataclasses import dataclass, field
from typing import Literal

from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.serialisation import digest
from layerprobe.metrics.names import RETRIEVAL_METRICS, check_primary, metric_title
from layerprobe.metrics.seeds import best_of
from layerprobe.names import short_name
from layerprobe.results.shown import Shown, brief
from layerprobe.results.table import Column, Table
from layerprobe.similarity.values import Difference, Interval

Ranking = Literal["cosine", "dot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalTask:
    """Queries to be answered from documents. It is scored, not trained on."""

    name: str
    """As the user gave it."""
    query_ids: tuple[str, ...]
    """Distinct."""
    queries: tuple[str, ...]
    """The text of every query; each has a relevant document."""
    document_ids: tuple[str, ...]
    """Distinct; they decide which of two documents with one score comes first."""
    documents: tuple[str, ...]
    """The text of every document."""
    relevance: tuple[tuple[int, int, float], ...]
    """Number of the query, number of the document, and the gain above 0 of finding it; other documents have none."""
    notes: tuple[str, ...] = ()
    """How the data was understood, in plain words."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""

    def __post_init__(self) -> None:
        named = {"query": (self.query_ids, self.queries), "document": (self.document_ids, self.documents)}
        for what, (ids, texts) in named.items():
            if len(ids) != len(texts):
                raise DataError(f"expected an id for every {what}, got {len(ids)} for {len(texts)} texts")
            if len(set(ids)) < len(ids):
                raise DataError(f"expected distinct {what} ids, {len(ids) - len(set(ids))} of {len(ids)} are copies")
        if len(self.queries) < 2 or len(self.documents) < 2:
            raise DataError(
                f"expected at least two queries and two documents, got {len(self.queries)} and {len(self.documents)}"
            )
        for query, document, gain in self.relevance:
            if not (0 <= query < len(self.queries) and 0 <= document < len(self.documents)):
                raise DataError(f"expected numbers of queries and documents, got {query} and {document}")
            if not (math.isfinite(gain) and gain > 0):
                raise DataError(f"expected gains above 0, got {gain} for document {self.document_ids[document]!r}")
            if self.query_ids[query] == self.document_ids[document] and same_text(
                self.queries[query], self.documents[document]
            ):
                raise DataError(f"expected no query that finds itself, got {self.query_ids[query]!r}")
        if len({pair[:2] for pair in self.relevance}) < len(self.relevance):
            raise DataError("expected one gain for a query and a document, got several")
        if without := len(self.queries) - len({query for query, *_ in self.relevance}):
            raise DataError(f"expected a relevant document for every query, {without} have none: leave them out")

    @property
    def own(self) -> tuple[int, ...]:
        """By query, the number of the document that is the query itself, which is not ranked for it; -1 for none.

        That is the one with its id whose text has that of the query in it (queries can be whole documents or their
        titles) and that is not judged relevant. An equal id alone says nothing: both can be numbered from 0.
        """
        numbers = {name: number for number, name in enumerate(self.document_ids)}
        judged = {(query, document) for query, document, _ in self.relevance}
        own = []
        for query, (name, text) in enumerate(zip(self.query_ids, self.queries, strict=True)):
            document = numbers.get(name, -1)
            itself = document >= 0 and _words(text) in _words(self.documents[document])
            own.append(document if itself and (query, document) not in judged else -1)
        return tuple(own)

    @property
    def digest(self) -> str:
        """Return a sha256 of all ids, texts and gains."""
        return digest([self.query_ids, self.queries, self.document_ids, self.documents, self.relevance])


def same_text(first: str, second: str) -> bool:
    """Return whether two texts are the same but for white space.

    Examples:
        >>> same_text("two  words", "two words ")
        True
    """
    return _words(first) == _words(second)


def _words(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RetrievalScores(Shown):
    """How well the embeddings of a model find documents, layer by layer."""

    model: ModelDescription
    task: str
    """Its name."""
    task_digest: str
    n_documents: int
    ranking: Ranking
    """By what documents are ranked: the cosine or the inner product with the query."""
    query_ids: tuple[str, ...]
    """In the order of the values."""
    by_query: dict[str, tuple[tuple[float, ...], ...]]
    """By layer and query, x 100."""
    means: dict[str, tuple[Interval, ...]]
    """By layer, over queries, x 100, each with Student's t interval at the level."""
    differences: tuple[Difference, ...]
    """The primary metric of every layer but the last less that of the last, over paired queries, x 100.

    Intervals and p-values hold for all layers together (Bonferroni), so also for the best one, which is chosen on the
    same queries.
    """
    settings: dict[str, str] = field(default_factory=dict)
    """How texts were embedded, where not by default; the prompts among it."""
    warnings: tuple[str, ...] = ()
    """What a reader of the values should know, in plain words."""

    def __post_init__(self) -> None:
        check_primary(self.primary, self.by_query, what="the metrics of retrieval")
        n_layers, n_queries = self.model.n_layers, len(self.query_ids)
        for metric, layers in self.by_query.items():
            if len(layers) != n_layers or any(len(values) != n_queries for values in layers):
                raise DataError(f"expected {metric} of {n_queries} queries at each of {n_layers} layers")
            if (n_means := len(self.means.get(metric, ()))) != n_layers:
                raise DataError(f"expected the mean {metric} of {n_layers} layers, got {n_means}")
        if len(self.differences) != n_layers - 1:
            raise DataError(f"expected the differences of {n_layers - 1} layers, got {len(self.differences)}")

    @property
    def primary(self) -> str:
        """The metric that the differences are of."""
        return RETRIEVAL_METRICS[0]

    @property
    def scores(self) -> tuple[float, ...]:
        """The mean of the primary metric by layer, x 100."""
        return self.values(self.primary)

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier one of equals."""
        return best_of(self.scores)

    def values(self, metric: str) -> tuple[float, ...]:
        """Return the mean of a metric by layer, x 100."""
        return tuple(mean.value for mean in self.means[metric])

    @property
    def table(self) -> Table:
        """A row a layer: its scores by every metric, and how the primary one differs from that of the last layer."""
        layers, means = range(self.model.n_layers), self.means[self.primary]
        own, *others = (
            Column(name, self.values(name), title=metric_title(name), form=".2f", meaning="Mean over queries, x 100.")
            for name in self.means
        )
        less = [*self.differences, None]
        return Table(
            columns=(
                Column("layer", tuple(layers), meaning="Blocks kept."),
                self.model.parameters_column,
                own,
                Column(
                    "interval",
                    tuple((mean.lower, mean.upper) for mean in means),
                    title=f"{100 * means[0].level:g} % interval",
                    form=".2f",
                    meaning=f"Of {own.title}, over queries.",
                    interval=True,
                ),
                *others,
                Column("less_last", tuple(each and each.value for each in less), form="+.2f"),
                Column(
                    "less_last_interval",
                    tuple(each and (each.lower, each.upper) for each in less),
                    title="interval, all layers together",
                    form="+.2f",
                    meaning=f"Of {own.title} less that of the last layer, over queries.",
                    interval=True,
                ),
                Column("flag", tuple("best" if layer == self.best_layer else None for layer in layers)),
            ),
            marks=tuple("chosen" if layer == self.best_layer else None for layer in layers),
        )

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{short_name(self.model.name)} on {self.task}: {self.sentence} By layer: {brief(self.scores)}"

    @property
    def sentence(self) -> str:
        """Which layer is best, and by how much it beats the last one, in plain words."""
        best, last, title = self.best_layer, self.model.n_blocks, metric_title(self.primary)
        if best == last:
            return f"The last layer, {last}, has the best {title}: {self.scores[last]:.2f}."
        each = self.differences[best]
        interval = f"{100 * each.level:g} % interval for all layers together {each.lower:+.2f} to {each.upper:+.2f}"
        return (
            f"Layer {best} has the best {title}: {self.scores[best]:.2f}, the last {self.scores[last]:.2f} "
            f"(difference {each.value:+.2f}, {interval})."
        )
