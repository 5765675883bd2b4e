"""Summaries from frozen sentence embeddings, next to the first sentences and the oracle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from layerprobe.encoders.model import ModelDescription
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import in_percent, short_name
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, layer_columns
from layerprobe.stats.values import CrossedInterval

Centrality = Literal["degree", "centroid"]
"""Of a sentence in its document: the mean cosine with the others, or the cosine with the mean of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryMethod:
    """One way to choose the sentences of a summary, by every layer."""

    name: str
    """degree or centroid, without labels; probe: logistic regression on a sentence's frozen embedding."""
    validation: tuple[float, ...]
    """The primary metric by layer, x 100."""
    test: dict[str, tuple[float, ...]]
    """By metric and layer, x 100."""
    gains: tuple[CrossedInterval | None, ...]
    """By layer: the primary metric on test less that of the first sentences, over documents; None where nothing is
    known of its error."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SummaryScores(Shown):
    """Extractive summaries from frozen sentence embeddings, next to the first sentences and the oracle."""

    model: ModelDescription
    task: str
    """As the user gave it."""
    primary: str
    """The metric that chooses layer and method."""
    documents: int
    """Of the test split."""
    keep: int
    """Sentences that are chosen of each."""
    first_layer: int
    """The first layer that is not left out."""
    lead: dict[str, float]
    """Of the first sentences on test by metric, x 100."""
    oracle: dict[str, float]
    """Of the sentences that a greedy search with the summary known chooses, x 100."""
    methods: tuple[SummaryMethod, ...]

    @property
    def best(self) -> tuple[SummaryMethod, int]:
        """The method and layer with the highest primary metric on the validation split, the earlier of equals."""
        layers = range(self.first_layer, len(self.methods[0].validation))
        return max(
            ((method, layer) for method in self.methods for layer in layers),
            key=lambda row: row[0].validation[row[1]],
        )

    @property
    def table(self) -> Table:
        """One row per layer: test scores of each method and their gain over the first sentences."""
        layers = range(self.first_layer, self.model.n_layers)
        best, best_layer = self.best
        return Table(
            columns=(
                *layer_columns(layers),
                *(column for method in self.methods for column in self._columns(method, layers)),
                Column(
                    "lead", (self.lead[self.primary],) * len(layers), shown=False, meaning="By the first sentences."
                ),
                Column("flag", tuple(f"best: {best.name}" if layer == best_layer else None for layer in layers)),
            ),
            charts=(
                Chart(
                    lines=tuple(
                        Line(f"{each.name}_{self.primary}", name=each.name)
                        for each in sorted(self.methods, key=lambda method: method is not best)
                    ),
                    name="summaries",
                    floor="lead",
                ),
            ),
            marks=tuple("chosen" if layer == best_layer else None for layer in layers),
        )

    def _columns(self, method: SummaryMethod, layers: range) -> Iterator[Column]:
        """Yield the scores of a method by every metric, on screens by the primary one, and its gain."""
        lead, gains = self.lead[self.primary], [method.gains[layer] for layer in layers]
        for metric, scores in method.test.items():
            yield Column(
                f"{method.name}_{metric}",
                tuple(scores[layer] for layer in layers),
                title=f"{method.name}: {metric_title(metric)}",
                form=".2f",
                meaning=f"On {self.documents:,} test documents, x 100.",
                quantity=points(metric, "test"),
                shown=metric == self.primary,
            )
        more = tuple(method.test[self.primary][layer] - lead for layer in layers)
        yield Column(f"{method.name}_gain", more, title="gain", form="+.2f", meaning="Over the first sentences.")
        bounds = tuple(None if gain is None else gain.interval for gain in gains)
        yield Column(f"{method.name}_interval", bounds, title="interval", form="+.2f", interval=True)

    @property
    def baselines(self) -> Table:
        """Test scores of the first sentences, the best method and the oracle, by every metric."""
        method, layer = self.best
        chosen = {metric: scores[layer] for metric, scores in method.test.items()}
        rows = {"first sentences": self.lead, f"{method.name}, layer {layer}": chosen, "oracle": self.oracle}
        return Table(
            columns=(
                Column("what", tuple(rows)),
                *(
                    Column(metric, tuple(row[metric] for row in rows.values()), title=metric_title(metric), form=".2f")
                    for metric in self.lead
                ),
            ),
            title="First sentences and oracle",
        )

    @property
    def sentence(self) -> str:
        """The best method by validation compared with the first sentences and the oracle, as a sentence."""
        (method, layer), title = self.best, metric_title(self.primary)
        score, lead = method.test[self.primary][layer], self.lead[self.primary]
        gain, spread, verdict = method.gains[layer], "no interval", "whether that differs is not known"
        if gain is not None:
            low, high = gain.interval
            spread = f"{in_percent(gain.level)} interval {low:+.2f} to {high:+.2f} over new documents"
            verdict = "better" if low > 0 else "worse" if high < 0 else "no significant difference"
        first = "first sentence" if self.keep == 1 else f"first {self.keep} sentences"
        return (
            f"By validation {method.name} at layer {layer} is best: {title} {score:.2f} on test, {score - lead:+.2f} "
            f"compared with the {first} ({spread}): {verdict}. The oracle has {self.oracle[self.primary]:.2f}."
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{short_name(self.model.name)} on {self.task}: {self.sentence}"
