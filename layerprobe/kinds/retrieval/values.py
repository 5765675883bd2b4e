"""How well the layers of a model find the documents that belong to queries."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.metrics.names import RETRIEVAL_METRICS, check_primary, metric_title, points
from layerprobe.names import short_name
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import Shown, brief, from_layer
from layerprobe.results.table import Column, Table, columns_of, interval_title, layer_columns
from layerprobe.scoring.values import compared_columns, scores_chart
from layerprobe.similarity.values import Difference, Interval
from layerprobe.stats.seeds import best_of
from layerprobe.stats.sentences import best_sentence, score_of_best
from layerprobe.stats.values import AgainstBest

Ranking = Literal["cosine", "dot"]


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
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; values before it repeat its own."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The layers from the first one on, by the primary metric; None in older files."""

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
        return self.first_layer + best_of(self.scores[self.first_layer :])

    def values(self, metric: str) -> tuple[float, ...]:
        """Return the mean of a metric by layer, x 100."""
        return tuple(mean.value for mean in self.means[metric])

    @property
    def table(self) -> Table:
        """A row a layer: its scores by every metric, and how the primary one differs from that of the last layer."""
        layers, title = range(self.model.n_layers), metric_title(self.primary)
        less = columns_of([*from_layer(self.first_layer, self.differences), None])
        return Table(
            columns=(
                Column("model", (self.model.name,) * len(layers), shown=False),
                *layer_columns(layers, self.model.parameters),
                *(column for name in self.means for column in self._columns(name)),
                *compared_columns(self.compared, self.first_layer)[1:],
                less("less_last", attrgetter("value"), title="difference to the last", form="+.2f"),
                less(
                    "less_last_interval",
                    attrgetter("lower", "upper"),
                    title="interval, all layers together",
                    form="+.2f",
                    meaning=f"Of the difference in {title} to the last layer, over queries.",
                    interval=True,
                ),
                Column("flag", tuple(map(self._flag, layers))),
            ),
            charts=(self._chart,),
            marks=tuple("chosen" if (self._flag(layer) or "").startswith("best") else None for layer in layers),
        )

    @property
    def _chart(self) -> Chart:
        chart = scores_chart(self.primary, self.compared, by="model", name="retrieval")
        return replace(chart, lines=(Line(self.primary, interval="interval"),))

    def _flag(self, layer: int) -> str | None:
        if self.compared is not None:
            return self.compared.flag(layer - self.first_layer)
        return "best" if layer == self.best_layer else None

    def _columns(self, metric: str) -> tuple[Column, Column]:
        """Return the mean of a metric and its interval, which screens show of the primary one alone."""
        column, title = columns_of(from_layer(self.first_layer, self.means[metric])), metric_title(metric)
        is_primary = metric == self.primary
        return (
            column(
                metric,
                attrgetter("value"),
                title=title,
                form=".2f",
                meaning="Mean over queries, x 100.",
                quantity=points(metric),
            ),
            column(
                "interval" if is_primary else f"{metric}_interval",
                attrgetter("lower", "upper"),
                title=interval_title(self.means[metric][0].level),
                form=".2f",
                meaning=f"Of {title}, over queries.",
                over="over new queries",
                interval=True,
                shown=is_primary,
            ),
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        by_layer = brief(from_layer(self.first_layer, self.scores))
        return f"{short_name(self.model.name)} on {self.task}: {self.sentence} By layer: {by_layer}"

    @property
    def sentence(self) -> str:
        """Which layer is best, by how much it beats the last one, and which may be as good, in plain words."""
        best, last, compared = self.best_layer, self.model.n_blocks, self.compared
        score = f"{self.scores[best]:.2f}" if compared is None else score_of_best(compared)
        headline = f"{f'The last layer, {last},' if best == last else f'Layer {best}'} has the best "
        headline += f"{metric_title(self.primary)}: {score}"
        if best != last:
            ahead = self.differences[best]
            bounds = f"{interval_title(ahead.level)} for all layers together {ahead.lower:+.2f} to {ahead.upper:+.2f}"
            headline += f", the last {self.scores[last]:.2f} (difference {ahead.value:+.2f}, {bounds})"
        if compared is None:
            return f"{headline}."
        names = [str(layer) for layer in range(self.first_layer, last + 1)]
        return best_sentence(compared, names, headline, metric=self.primary)
