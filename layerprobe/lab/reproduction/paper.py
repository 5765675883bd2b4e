"""The paper's experiments and figures, from `paper.json`. Knows numbers; trains nothing.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json
from layerprobe.names import counted
from layerprobe.results.estimate import Estimate

Before = Literal["word similarity", "domain adaptation"]
"""What comes before TMFT: TMFT on word pairs at the same layer, or masked language modelling."""
FIRST_STEPS: dict[Before, str] = {"word similarity": "--words FOLDER", "domain adaptation": "--corpus FILE"}
"""Options that give the data of a step before TMFT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """A model of the paper."""

    name: str
    hub_id: str
    parameters: tuple[tuple[int, float], ...]
    """Layer and millions without the pooler, at the layers for which the paper has them, ascending."""
    chosen: str | None = None
    """Why this hub id, where the paper's figures name a model in words only."""

    def millions(self, layer: int) -> float | None:
        """Return the parameters at a layer: the paper's, or on the line through two of them, as blocks are alike."""
        if (millions := dict(self.parameters).get(layer)) is not None or len(self.parameters) < 2:
            return millions
        (first_layer, first), *_, (last_layer, last) = self.parameters
        return first + (layer - first_layer) * (last - first) / (last_layer - first_layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScores:
    """A layer that the paper fine-tunes at, and what it reports: x 100, mean over seeds, empty without a figure."""

    model: str
    """Hub id."""
    layer: int
    validation: dict[str, float]
    test: dict[str, float]
    before: Before | None = None
    random_init: int | None = None
    """Seed of random weights in place of the trained ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPair:
    """A model whose CKA with a reference is set next to fine-tuned scores, Spearman x 100 on test."""

    model: str
    """Hub id."""
    reference: str
    """Hub id of a masked language model."""
    best_layer: int
    best: float
    last_layer: int
    last: float

    @property
    def drops(self) -> bool:
        """Whether the last layer scores lower than the best."""
        return self.last < self.best

    @property
    def scores(self) -> dict[int, float]:
        """The two by layer."""
        return {self.best_layer: self.best, self.last_layer: self.last}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Models, layers and data of a table or figure."""

    name: str
    title: str
    source: str
    """Where in the paper."""
    data: str
    """Name of the data set that models are fine-tuned on."""
    kind: str
    """Of that task."""
    data_hub_id: str | None
    """What `load_task` takes; None where the Hub has no copy that it reads."""
    scores: tuple[PaperScores, ...]
    """Model by model."""
    shows: Literal["scores", "front", "similarity"] = "scores"
    """Scores; scores and which of them no smaller model reaches; or CKA of `pairs`."""
    pairs: tuple[PaperPair, ...] = ()
    same_as: str | None = None
    """Name of the experiment whose runs these are."""
    notes: tuple[str, ...] = ()
    """What was chosen here, and what a reader of the figures should know."""

    @property
    def models(self) -> tuple[str, ...]:
        """Hub ids in the order of the paper."""
        compared = (name for pair in self.pairs for name in (pair.model, pair.reference))
        return tuple(dict.fromkeys((*(score.model for score in self.scores), *compared)))

    def check_first_steps(self, data: Mapping[Before, object]) -> None:
        """Raise DataError if there are data for a step before TMFT that the experiment does not have."""
        befores = {score.before for score in self.scores}
        if unused := [before for before, value in data.items() if value and before not in befores]:
            raise DataError(f"expected no data for {' and '.join(unused)}, which {self.name} does not have")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """All of `paper.json`."""

    source: str
    notes: tuple[str, ...]
    """Where figures come from that the paper does not give as they stand here."""
    models: tuple[PaperModel, ...]
    experiments: tuple[Experiment, ...]

    def model(self, hub_id: str) -> PaperModel:
        """Return the model of a hub id."""
        return next(model for model in self.models if model.hub_id == hub_id)


@functools.cache
def read_paper() -> Paper:
    """Return the paper's figures."""
    return from_json(Paper, (resources.files(__package__) / "paper.json").read_text("utf-8"))


def experiment_names() -> tuple[str, ...]:
    """Return the names of the experiments that can be reproduced.

    Examples:
        >>> experiment_names()
        ('table2', 'figure2a', 'mrpc', 'sick', 'table1', 'figure3', 'ko', 'de', 'es', 'random', 'pareto')
    """
    return tuple(experiment.name for experiment in read_paper().experiments)


def experiment(name: str) -> Experiment:
    """Return an experiment; raise DataError if there is none of that name."""
    for entry in read_paper().experiments:
        if entry.name == name:
            return entry if entry.same_as is None else replace(entry, scores=experiment(entry.same_as).scores)
    raise DataError(f"expected an experiment, one of {', '.join(experiment_names())}, got {name!r}")


def run_models(chosen: Experiment, models: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the model that stands for each of the paper's, in order; by default the paper's own."""
    models = models or {model: model for model in chosen.models}
    if unknown := [model for model in models if model not in chosen.models]:
        raise DataError(f"expected models of {chosen.name}: {', '.join(chosen.models)}, got {', '.join(unknown)}")
    return {model: models[model] for model in chosen.models if model in models}


def notes_on(chosen: Experiment, models: Mapping[str, str]) -> tuple[str, ...]:
    """Return the notes of an experiment, and which hub ids were chosen or replaced here."""
    why = {model: read_paper().model(model).chosen for model in models}
    return (
        *chosen.notes,
        *(f"{model} is chosen here: {why[model]}" for model, run in models.items() if why[model] and run == model),
        *(f"{run} was run in place of {model}" for model, run in models.items() if run != model),
    )


def not_run(steps: Iterable[Before | None]) -> Iterator[str]:
    """Yield a line for each step before TMFT that has no data."""
    for step in dict.fromkeys(steps):
        if step:
            yield f"Not run: {trained(step)}; give the data with {FIRST_STEPS[step]}."


def trained(before: Before | None) -> str:
    """Describe the training at a layer."""
    return f"{before}, then TMFT" if before else "TMFT"


def run_name(model: str, run: str, random_init: int | None = None) -> str:
    """Return a model of the paper with what is run in its place."""
    random = "" if random_init is None else f" (random init {random_init})"
    return (model if model == run else f"{model} = {run}") + random


def plan_experiment(
    chosen: Experiment, models: Mapping[str, str], *, seeds: tuple[int, ...], given: Collection[Before] = ()
) -> Estimate:
    """Count the runs of an experiment, without a model or the network.

    What has no data for the step before TMFT, which are `given`, is not run; CKA alone takes no run.
    """
    scores = [score for score in chosen.scores if score.model in models]
    jobs: tuple[dict[str, Any], ...] = tuple(
        {
            "model": run_name(score.model, models[score.model], score.random_init),
            "layer": score.layer,
            "how": trained(score.before),
            "parameters": read_paper().model(score.model).millions(score.layer),
            "runs": len(seeds) * (1 + (score.before == "word similarity"))
            if score.before is None or score.before in given
            else 0,
        }
        for score in scores
    ) or tuple({"model": model, "layer": None, "how": "embed", "parameters": None, "runs": 0} for model in models)
    notes, runs = notes_on(chosen, models), sum(job["runs"] for job in jobs)
    return Estimate(
        title=f"{chosen.name}: {chosen.title} ({chosen.source} of arXiv 2402.13130)",
        jobs=jobs,
        details=(
            f"\n{counted(runs, 'run')} on {chosen.data}; seeds {', '.join(map(str, seeds))}",
            *not_run(score.before for score in scores if score.before not in (None, *given)),
            *(f"note: {note}" for note in notes),
        ),
        numbers={"experiment": chosen.name, "data": chosen.data, "seeds": seeds, "runs": runs, "notes": notes},
    )
