"""The paper's experiments and figures, from `paper.json`. Knows what was run, not how.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from layerprobe.errors import DataError
from layerprobe.serialisation import from_json
from layerprobe.tasks.kinds.kind import KINDS

Before = Literal["word similarity", "domain adaptation"]
"""What comes before TMFT in a chain: TMFT on word pairs at the same layer, or masked language modelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """What models are fine-tuned on."""

    name: str
    kind: str
    """Decides loss, head and metrics."""
    hub_id: str | None
    """What `load_task` takes; None where the Hub has no copy that it reads."""
    train: int
    """Training pairs."""
    tokens: int
    """Tokens of the longest of 64 texts, on average: what a text of a batch is padded to."""
    test: int
    """Pairs of the test split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The size of a truncated model."""

    layer: int
    millions: float
    """Without the pooler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """A model of the paper."""

    name: str
    hub_id: str
    parameters: tuple[Parameters, ...]
    """At the layers for which the paper has them, ascending."""
    chosen: str | None = None
    """Why this hub id, where the paper's figures name a model in words only."""

    def millions(self, layer: int) -> float | None:
        """Return the parameters at a layer: the paper's, or on the line through two of them, as blocks are alike."""
        for known in self.parameters:
            if known.layer == layer:
                return known.millions
        if len(self.parameters) < 2:
            return None
        first, last = self.parameters[0], self.parameters[-1]
        block = (last.millions - first.millions) / (last.layer - first.layer)
        return first.millions + (layer - first.layer) * block


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScores:
    """A layer that the paper fine-tunes at, and what it reports."""

    model: str
    """Hub id."""
    layer: int
    validation: dict[str, float]
    """x 100, mean over seeds; empty where the paper gives no figure."""
    test: dict[str, float]
    """x 100, mean over seeds; empty where the paper gives no figure."""
    before: Before | None = None
    """What the model learns before it is fine-tuned."""
    random_init: int | None = None
    """Seed of random weights in place of the trained ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPair:
    """A model whose CKA with a reference is compared with what fine-tuning gave; scores are Spearman x 100 on test."""

    model: str
    """Hub id."""
    reference: str
    """Hub id of a masked language model."""
    best_layer: int
    best: float
    """Fine-tuned at the best layer."""
    last_layer: int
    last: float
    """Fine-tuned at the last layer."""

    @property
    def drops(self) -> bool:
        """Whether the last layer scores lower than the best."""
        return self.last < self.best


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSimilarity:
    """The word pairs that come before."""

    train: int
    """Training pairs."""
    tokens: int
    """Tokens of the longest of a batch, on average."""
    batch_size: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainAdaptation:
    """The masked language modelling that comes before."""

    hours: float
    """GPU hours a model, as the paper has them."""
    hours_of: dict[str, float]
    """Hub ids of models that take others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Befores:
    """What comes before TMFT in a chain."""

    word_similarity: WordSimilarity
    domain_adaptation: DomainAdaptation


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Models, layers and data of a table or figure."""

    name: str
    title: str
    """In words."""
    source: str
    """Where in the paper."""
    data: str
    """Name of the data set."""
    scores: tuple[PaperScores, ...]
    """Model by model."""
    shows: Literal["scores", "front", "similarity"] = "scores"
    """Scores; scores and which of them no smaller model reaches; or CKA of `pairs`."""
    pairs: tuple[PaperPair, ...] = ()
    """What is compared by CKA."""
    same_as: str | None = None
    """Name of the experiment whose runs these are."""
    notes: tuple[str, ...] = ()
    """What was chosen here, and what a reader of the figures should know."""

    @property
    def models(self) -> tuple[str, ...]:
        """Hub ids in the order of the paper."""
        compared = (name for pair in self.pairs for name in (pair.model, pair.reference))
        return tuple(dict.fromkeys((*(score.model for score in self.scores), *compared)))

    @property
    def befores(self) -> tuple[Before, ...]:
        """What comes before TMFT in any of its chains."""
        return tuple(dict.fromkeys(score.before for score in self.scores if score.before))

    def after(self, befores: Collection[Before]) -> Experiment:
        """Return the experiment with TMFT alone and after these steps, and after no others."""
        return replace(
            self, scores=tuple(score for score in self.scores if score.before is None or score.before in befores)
        )

    def of_model(self, model: str) -> tuple[PaperScores, ...]:
        """Return the layers of one model."""
        return tuple(score for score in self.scores if score.model == model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """All of `paper.json`."""

    source: str
    notes: tuple[str, ...]
    """Where figures come from that the paper does not give as they stand here."""
    data_sets: tuple[DataSet, ...]
    models: tuple[PaperModel, ...]
    experiments: tuple[Experiment, ...]
    before: Befores

    def model(self, hub_id: str) -> PaperModel:
        """Return the model of a hub id."""
        return next(model for model in self.models if model.hub_id == hub_id)

    def data_set(self, name: str) -> DataSet:
        """Return the data set of a name."""
        return next(data for data in self.data_sets if data.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model of an experiment, and what is run in its place."""

    hub_id: str
    """The paper's."""
    runs: str
    """Hub id or folder of what is run."""


@functools.cache
def read_paper() -> Paper:
    """Return the paper's figures."""
    return from_json(Paper, (resources.files(__package__) / "paper.json").read_text("utf-8"))


def experiment_names() -> tuple[str, ...]:
    """Return what can be reproduced.

    Example:
        >>> experiment_names()
        ('table2', 'figure2a', 'mrpc', 'sick', 'table1', 'figure3', 'ko', 'de', 'es', 'random', 'pareto')
    """
    return tuple(each.name for each in read_paper().experiments)


def experiment(name: str) -> Experiment:
    """Return an experiment.

    Raises:
        DataError: If there is none of that name.
    """
    for each in read_paper().experiments:
        if each.name == name:
            return each if each.same_as is None else replace(each, scores=experiment(each.same_as).scores)
    raise DataError(f"expected an experiment, one of {', '.join(experiment_names())}, got {name!r}")


def planned_models(chosen: Experiment, models: Mapping[str, str] | None = None) -> tuple[PlannedModel, ...]:
    """Return the models of an experiment in its order, each with what is run in its place.

    Args:
        chosen: The experiment.
        models: Hub ids of the paper to what is run instead, itself or another; those left out are not run. All,
            as they are, by default.

    Raises:
        DataError: If the experiment has no such model.
    """
    if not models:
        return tuple(PlannedModel(hub_id=model, runs=model) for model in chosen.models)
    if unknown := [model for model in models if model not in chosen.models]:
        raise DataError(f"expected models of {chosen.name}: {', '.join(chosen.models)}, got {', '.join(unknown)}")
    return tuple(PlannedModel(hub_id=model, runs=models[model]) for model in chosen.models if model in models)


def compared_metrics(chosen: Experiment) -> tuple[str, ...]:
    """Return the primary metric and others for which the paper has figures."""
    metrics = KINDS[read_paper().data_set(chosen.data).kind].metrics
    reported = {metric for score in chosen.scores for metric in (*score.validation, *score.test)}
    return tuple(metric for metric in metrics if metric in reported or metric == metrics[0])


def notes_on(chosen: Experiment, models: tuple[PlannedModel, ...]) -> tuple[str, ...]:
    """Return what a reader of the figures should know: the experiment's notes, and which hub ids were chosen here."""
    known = [(model, read_paper().model(model.hub_id).chosen) for model in models]
    return (
        *chosen.notes,
        *(f"{model.hub_id} is chosen here: {why}" for model, why in known if why and model.runs == model.hub_id),
        *(f"{model.runs} was run in place of {model.hub_id}" for model, _ in known if model.runs != model.hub_id),
    )
