"""The paper's experiments and figures, from `paper.json`. Knows numbers; trains nothing.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_dict
from layerprobe.names import counted
from layerprobe.results.shown import Estimate

Before = Literal["word similarity", "domain adaptation"]
"""Training before TMFT: TMFT on word pairs at the same layer, or masked language modelling."""
FIRST_STEPS: dict[Before, str] = {"word similarity": "--words FOLDER", "domain adaptation": "--corpus FILE"}
"""Options for the data of a step before TMFT."""
FirstSteps = Mapping[Before, Sequence[str]]
"""A folder of scored word pairs, or files of texts, for a step before TMFT; without data the step is not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScores:
    """A layer that the paper fine-tunes, and its reported scores: x 100, mean over seeds, empty without a figure."""

    model: str
    """Hub id."""
    layer: int
    validation: dict[str, float]
    test: dict[str, float]
    before: Before | None = None
    random_init: int | None = None
    """Seed of random weights instead of the trained ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A model and a masked language model: the paper's fine-tuned scores, Spearman x 100 on test, and our CKA."""

    model: str
    """Hub id."""
    reference: str
    """Hub id of a masked language model."""
    best_layer: int
    best: float
    last_layer: int
    last: float
    names: str = ""
    """Both names, with replacements; this and the following fields are empty in the paper."""
    curve: tuple[float, ...] = ()
    """Debiased CKA by layer."""
    lower: tuple[float, ...] = ()
    """Lower ends of the interval, by layer."""
    upper: tuple[float, ...] = ()
    biased: tuple[float, ...] = ()
    """Biased CKA by layer."""
    drop_layers: tuple[int, ...] = ()
    """Layers flagged by the plateau rule on the debiased curve."""

    @property
    def bears_out(self) -> bool:
        """Whether the paper's claim holds: where its scores drop, our CKA does; CKA alone may drop."""
        return bool(self.drop_layers) or self.last >= self.best


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Models, layers and data of one table or figure."""

    name: str
    title: str
    source: str
    """Location in the paper."""
    data: str
    """Name of the data set for fine-tuning."""
    kind: str
    """Kind of that task."""
    data_hub_id: str | None
    """Source for `load_task`; None if the Hub has no readable copy."""
    scores: tuple[PaperScores, ...]
    """Scores, model by model."""
    shows: Literal["scores", "front", "similarity"] = "scores"
    """Scores; scores and their Pareto front by size; or CKA of `pairs`."""
    pairs: tuple[Pair, ...] = ()
    same_as: str | None = None
    """Name of the experiment with the same runs."""
    notes: tuple[str, ...] = ()
    """Our choices, and caveats on the figures."""

    @property
    def models(self) -> tuple[str, ...]:
        """Hub ids in the paper's order."""
        compared = (name for pair in self.pairs for name in (pair.model, pair.reference))
        return tuple(dict.fromkeys((*(score.model for score in self.scores), *compared)))

    def check_first_steps(self, data: FirstSteps) -> None:
        """Raise DataError if there are data for a step before TMFT that the experiment does not have."""
        befores = {score.before for score in self.scores}
        if unused := [before for before, files in data.items() if files and before not in befores]:
            raise DataError(f"expected no data for {' and '.join(unused)}, which {self.name} does not have")


@functools.cache
def _paper() -> dict[str, Any]:
    paper: dict[str, Any] = json.loads((resources.files(__package__) / "paper.json").read_text("utf-8"))
    return paper


def paper_models() -> dict[str, dict[str, Any]]:
    """Return the models of the paper by hub id.

    Each has its `name`, `parameters` (layers with millions without the pooler, ascending) and, if the paper's figures
    only describe it, `chosen`: why this hub id.
    """
    return {model["hub_id"]: model for model in _paper()["models"]}


def millions(model: str, layer: int) -> float | None:
    """Return the parameters at a layer in millions: the paper's, or interpolated, because blocks are equal."""
    parameters: dict[int, float] = dict(paper_models()[model]["parameters"])
    if layer in parameters or len(parameters) < 2:
        return parameters.get(layer)
    first, last = min(parameters), max(parameters)
    return parameters[first] + (layer - first) * (parameters[last] - parameters[first]) / (last - first)


@functools.cache
def experiments() -> dict[str, Experiment]:
    """Return the experiments that can be reproduced, by name.

    Examples:
        >>> *experiments(),
        ('table2', 'figure2a', 'mrpc', 'sick', 'table1', 'figure3', 'ko', 'de', 'es', 'random', 'pareto')
    """
    read = {entry["name"]: from_dict(Experiment, entry) for entry in _paper()["experiments"]}
    return {name: replace(one, scores=read[one.same_as or name].scores) for name, one in read.items()}


def experiment(name: str) -> Experiment:
    """Return an experiment; raise DataError for an unknown name."""
    if name not in experiments():
        raise DataError(f"expected an experiment, one of {', '.join(experiments())}, got {name!r}")
    return experiments()[name]


def run_models(chosen: Experiment, models: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the model to run for each of the paper's, in order; by default the paper's own."""
    models = models or {model: model for model in chosen.models}
    if unknown := [model for model in models if model not in chosen.models]:
        raise DataError(f"expected models of {chosen.name}: {', '.join(chosen.models)}, got {', '.join(unknown)}")
    return {model: models[model] for model in chosen.models if model in models}


def notes_on(chosen: Experiment, models: Mapping[str, str]) -> tuple[str, ...]:
    """Return the notes of an experiment, and the chosen or replaced hub ids."""
    why = {model: paper_models()[model].get("chosen") for model in models}
    return (
        *chosen.notes,
        *(f"{model} is our choice: {why[model]}" for model, run in models.items() if why[model] and run == model),
        *(f"{run} was run instead of {model}" for model, run in models.items() if run != model),
    )


def not_run(steps: Iterable[Before | None]) -> Iterator[str]:
    """Yield a line for each step before TMFT that has no data."""
    for step in dict.fromkeys(steps):
        if step:
            yield f"Not run: {trained(step)}; add the data with {FIRST_STEPS[step]}."


def trained(before: Before | None) -> str:
    """Describe the training at a layer."""
    return f"{before}, then TMFT" if before else "TMFT"


def run_name(model: str, run: str, random_init: int | None = None) -> str:
    """Return a model of the paper with its replacement."""
    random = "" if random_init is None else f" (random init {random_init})"
    return (model if model == run else f"{model} = {run}") + random


def plan_experiment(
    chosen: Experiment, models: Mapping[str, str], *, seeds: tuple[int, ...], data: FirstSteps
) -> Estimate:
    """Count the runs of an experiment, without a model or the network; CKA alone needs no run."""
    chosen.check_first_steps(data)
    scores = [score for score in chosen.scores if score.model in models]
    sources = [None, *(before for before, files in data.items() if files)]
    jobs: tuple[dict[str, Any], ...] = tuple(
        {
            "model": run_name(score.model, models[score.model], score.random_init),
            "layer": score.layer,
            "how": trained(score.before),
            "parameters": millions(score.model, score.layer),
            "runs": (score.before in sources) * len(seeds) * (1 + (score.before == "word similarity")),
        }
        for score in scores
    ) or tuple({"model": model, "layer": None, "how": "embed", "parameters": None, "runs": 0} for model in models)
    notes, runs = notes_on(chosen, models), sum(job["runs"] for job in jobs)
    return Estimate(
        title=f"{chosen.name}: {chosen.title} ({chosen.source} of arXiv 2402.13130)",
        jobs=jobs,
        details=(
            f"\n{counted(runs, 'run')} on {chosen.data}; seeds {', '.join(map(str, seeds))}",
            *not_run(score.before for score in scores if score.before not in sources),
            *(f"note: {note}" for note in notes),
        ),
        numbers={"experiment": chosen.name, "data": chosen.data, "seeds": seeds, "runs": runs, "notes": notes},
    )
