"""Which layer of which model to keep, by one search of several models. Knows findings; computes no chances."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from layerprobe.files.serialisation import RARE
from layerprobe.names import distinct_names
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, millions, stacked
from layerprobe.scoring.values import LayerOfModel
from layerprobe.search.values import SearchSettings
from layerprobe.stats.sentences import (
    best_of_models_sentence,
    layers_of_models,
    smallest_of_models_sentence,
    spent_on_models_sentence,
)
from layerprobe.stats.values import pareto_front
from layerprobe.study.tables import expected_charts
from layerprobe.study.values import Finding

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FoundModels(Shown):
    """The model and layer to keep, and the search results of every model."""

    models: tuple[str, ...]
    """Their names."""
    task: str
    """As the user gave it."""
    findings: tuple[Finding, ...]
    """One a model, whose layers are compared with each other."""
    best_model: int
    """Which of the models, from 0, has the highest expected score."""
    chances: tuple[tuple[float, ...], ...]
    """By model and layer: to be the best of all layers of all models."""
    within: tuple[tuple[float, ...], ...]
    """By model and layer: to be no worse than the best of all by more than the tolerance."""
    candidates: tuple[tuple[int, int], ...]
    """The smallest set of layers, each with its model, that holds the best of all with at least the level."""
    behind: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """By model and layer: points that the best of all is ahead at most, at the level; empty in files of before."""
    share: float
    """Cost as a share of what the full sweeps of all models cost together, by the parameters of their blocks."""
    failures: tuple[str, ...] = ()
    """Runs, layers and models that gave no score, and why."""

    @property
    def item_source(self) -> Any:
        """Whence its page has single test items, an `ItemSource`; None where it was read from a file."""
        from layerprobe.tasks.explored import joined  # imports numpy, which `--help` does without

        sources = {name: finding.item_source for name, finding in zip(self.labels, self.findings, strict=True)}
        return joined(sources, self.labels[self.best_model]) if all(sources.values()) else None

    @property
    def labels(self) -> tuple[str, ...]:
        """What the models are called in tables and plots."""
        return tuple(distinct_names(self.models))

    @property
    def best(self) -> Finding:
        """Of the model to keep."""
        return self.findings[self.best_model]

    @property
    def settings(self) -> SearchSettings:
        """What was requested."""
        return self.best.answer.settings

    @property
    def primary(self) -> str:
        """The metric of all scores."""
        return self.best.primary

    @property
    def layers(self) -> tuple[LayerOfModel, ...]:
        """By model and layer, without those that are left out, with the expected score."""
        return tuple(
            LayerOfModel(
                model=i,
                layer=belief.layer,
                score=belief.mean,
                interval=belief.interval,
                parameters=finding.parameters[belief.layer],
            )
            for i, finding in enumerate(self.findings)
            for belief in finding.answer.layers[finding.answer.first_layer :]
        )

    def of_model(self, model: int) -> tuple[LayerOfModel, ...]:
        """Return the layers of a model."""
        return tuple(layer for layer in self.layers if layer.model == model)

    def front(self, cost: Literal["parameters", "milliseconds"] = "parameters") -> tuple[LayerOfModel, ...]:
        """Return the layers that no other beats in both expected score and parameters; by milliseconds, none."""
        if cost == "milliseconds":
            return ()
        return pareto_front(self.layers, lambda layer: layer.parameters, lambda layer: layer.score)

    @property
    def smallest_sufficient(self) -> LayerOfModel | None:
        """The smallest that is within the tolerance of the best of all, at the level; None where there is none."""
        enough = (layer for layer in self.layers if self.within[layer.model][layer.layer] >= self.settings.level)
        return None if self.best.answer.spoilt else min(enough, key=lambda layer: layer.parameters, default=None)

    def name(self, layer: LayerOfModel) -> str:
        """Return what a layer is called in a sentence."""
        return f"{self.labels[layer.model]} at layer {layer.layer}"

    def flag(self, layer: LayerOfModel) -> str:
        """Return what follows for a layer: keep, will do, may be best or best of its model; empty for the others."""
        best_of_its_model = layer.layer == self.findings[layer.model].best_layer
        if best_of_its_model and layer.model == self.best_model:
            return "" if self.best.answer.spoilt else "keep"
        if layer == self.smallest_sufficient:
            return "will do"
        if (layer.model, layer.layer) in self.candidates and not self.best.answer.spoilt:
            return "may be best"
        return "best of its model" if best_of_its_model else ""

    @property
    def kept(self) -> str:
        """Which layer of which model to keep, what it scores and what it saves."""
        n_blocks, layer, label = len(self.best.parameters) - 1, self.best.best_layer, self.labels[self.best_model]
        if self.best.answer.spoilt:
            return f"{label} at layer {layer} of {n_blocks} scores highest: {self.best.promise}."
        what = f"all {n_blocks} layers of {label}" if layer == n_blocks else f"{label} at layer {layer} of {n_blocks}"
        return f"Keep {what}: {self.best.promise}."

    @property
    def certainty(self) -> str:
        """Which layers may be the best, which model has it with what chance, and which small one will do."""
        if self.best.answer.spoilt:
            return self.best.certainty
        labels, settings, smallest = self.labels, self.settings, self.smallest_sufficient
        beliefs = [self.findings[i].answer.layers[layer] for i, layer in self.candidates]
        best = best_of_models_sentence(
            layers_of_models(labels, self.candidates),
            level=settings.level,
            candidates=len(beliefs),
            bare=sum(not belief.runs and not belief.failed for belief in beliefs),
            failed=sum(not belief.runs and belief.failed > 0 for belief in beliefs),
            chances={label: sum(of_layers) for label, of_layers in zip(labels, self.chances, strict=True)},
        )
        name, size = ("", "") if smallest is None else (self.name(smallest), millions(smallest.parameters))
        behind = self.behind[self.best_model][self.best.best_layer] if self.behind else None
        enough = smallest_of_models_sentence(
            name, size, behind=behind, tolerance=settings.tolerance, level=settings.level
        )
        return f"{best} {enough}"

    @property
    def spent(self) -> str:
        """What the runs cost, and why there are no more, as a sentence."""
        return spent_on_models_sentence(
            self.share,
            seeds=self.settings.seeds,
            seconds=sum(finding.seconds for finding in self.findings),
            runs={name: len(finding.fine_tuned) + len(finding.scans) for finding, name in self._named()},
            why=self.best.answer.decision.why,
        )

    @property
    def grounds(self) -> tuple[str, ...]:
        """The proof, whether the model to keep drops, and the cost of the search of all: a line each."""
        label = self.labels[self.best_model]
        return *(f"{label}: {line}" for line in self.best.grounds[:-1]), self.spent

    def _named(self) -> Sequence[tuple[Finding, str]]:
        return tuple(zip(self.findings, self.labels, strict=True))

    @property
    def sentence(self) -> str:
        """The answer in plain words."""
        return f"{self.summary} {self.spent}"

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.kept} {self.certainty}"

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """The answer, the table of models and layers, and the evidence."""
        return f"{self.kept} {self.certainty}\n", self.table, "", *self.grounds

    @property
    def table(self) -> Table:
        """One row per model and layer, with chances among the layers of all models."""
        tables, settings = [finding.table.named(model=name) for finding, name in self._named()], self.settings
        together = stacked(tables)
        rows, front = {(layer.model, layer.layer): layer for layer in self.layers}, self.front()
        places = [(i, layer) for i, finding in enumerate(self.findings) for layer in range(len(finding.parameters))]
        best = (self.best_model, self.best.best_layer)

        claimed = not self.best.answer.spoilt

        def among_all(by_model: Sequence[Sequence[T]]) -> list[T | None]:
            return [by_model[i][layer] if claimed and (i, layer) in rows else None for i, layer in places]

        values: dict[str, list[object]] = {
            "chance_best": [*among_all(self.chances)],
            "chance_within": [*among_all(self.within)],
            "behind": [*among_all(self.behind)] if self.behind else [None] * len(places),
            "candidate": [place in self.candidates if claimed else None for place in places],
            "kept": [place == best for place in places],
            "flag": [self.flag(rows[place]) or None if place in rows else None for place in places],
        }
        columns = [replace(column, values=values.get(column.name, column.values)) for column in together.columns]
        on_front = ["size" if rows.get(place) in front else None for place in places]
        columns.insert(-1, Column("front", on_front, meaning="No other is both smaller and better."))
        return Table(
            columns=tuple(columns),
            title="Table of models and layers",
            notes=(
                *together.notes,
                f"chance best and within {settings.tolerance:g} are among all layers of all models.",
            ),
            marks=tuple("chosen" if place == best else None for place in places),
            charts=expected_charts(by="model"),
        )
