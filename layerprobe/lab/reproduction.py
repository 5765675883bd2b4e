"""Experiments of the paper with its figures, from `paper/paper.json`, and ours next to them.

Finished runs are loaded, not repeated. The figures are read without torch.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from layerprobe.context import current, part
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_dict
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import counted
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Estimate, Shown
from layerprobe.results.table import Chart, Line, Quantity, Table, columns_of, interval_title
from layerprobe.stats.values import pareto_front, seed_scores
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task, TaskSettings

if TYPE_CHECKING:
    from layerprobe.lab.recipe import Recipe

PAPER = Path(__file__).parent / "paper"
RECIPES = PAPER / "recipes"
"""Folder with one file per experiment, and one for each of its steps before TMFT."""
FILES: dict[Before | None, str] = {None: "", "word similarity": "-words", "domain adaptation": "-adapted"}
NEAR = 2.0
"""Standard deviations of our seeds within which a score counts as equal to the paper's."""
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
    return json.loads((PAPER / "paper.json").read_text("utf-8"))


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
    notes = notes_on(chosen, models)
    runs = sum(job["runs"] for job in jobs)
    missing = dict.fromkeys(score.before for score in scores if score.before and score.before not in sources)
    return Estimate(
        title=f"{chosen.name}: {chosen.title} ({chosen.source} of arXiv 2402.13130)",
        jobs=jobs,
        details=(
            f"\n{counted(runs, 'run')} on {chosen.data}; seeds {', '.join(map(str, seeds))}",
            *(f"Not run: {trained(step)}; add the data with {FIRST_STEPS[step]}." for step in missing),
            *(f"note: {note}" for note in notes),
        ),
        numbers={"experiment": chosen.name, "data": chosen.data, "seeds": seeds, "runs": runs, "notes": notes},
    )


ReproducedScore = dict[str, Any]
"""One metric of one model at one layer, the paper's and ours, x 100: `model`, its hub id, `runs_model`, `layer`,
`before`, `random_init`, `parameters`, `split`, `metric`, `paper`, None without a figure, `ours`, its
`SeedScores`, None if not run, `difference`, ours minus the paper's, and `deviations`, the same in standard
deviations of our seeds."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reproduction(Shown):
    """A reproduced experiment."""

    experiment: str
    source: str
    """Location in the paper."""
    task: str
    primary: str
    scores: tuple[ReproducedScore, ...]
    """Scores in the paper's order."""
    pairs: tuple[Pair, ...]
    """Pairs instead of scores, if the experiment shows CKA."""
    front: dict[Literal["paper", "ours"], tuple[tuple[str, int], ...]]
    """Pareto-optimal models and layers by parameters and primary test score, if the experiment shows them."""
    notes: tuple[str, ...]
    """Our choices and replacements."""
    level: float
    """Confidence level of the intervals."""

    @property
    def conclusion(self) -> Conclusion:
        """How many of our test scores are near the paper's, or how many pairs confirm its claim."""
        tested = [score for score in self.scores if _is_tested(score, self.primary) and score["difference"] is not None]
        judged = [score["deviations"] for score in tested if score["deviations"] is not None]
        right = sum(abs(deviation) <= NEAR for deviation in judged)
        case, n = "scores" if judged else "one seed" if tested else "no figure", len(judged)
        if self.pairs:
            # where the paper's scores drop, our CKA does; CKA alone may drop
            right = sum(bool(pair.drop_layers) or pair.last >= pair.best for pair in self.pairs)
            case, n = "pairs", len(self.pairs)
        verdict = Verdict.UNDECIDED
        if n and right == n:
            verdict = Verdict.DECIDED
        elif 2 * right < n:
            verdict = Verdict.FAILED
        facts = counts(right=right, all=n)
        names: dict[str, object] = {}
        if tested:
            farthest = max(tested, key=lambda score: abs(score["difference"]))
            facts |= {
                "difference": Fact(value=farthest["difference"], split="test"),
                "near": Fact(value=NEAR, unit="tolerance"),
            }
            names = {name: farthest[name] for name in ("model", "layer")} | {"before": farthest["before"] or ""}
        return Conclusion(
            kind="reproduce",
            case=case,
            verdict=verdict,
            subject=(self.experiment, self.task, self.source),
            facts=facts,
            names=names,
            checks=tuple(self._checks()),
        )

    def _checks(self) -> Iterator[Check]:
        """Yield steps that were not run, and Pareto-optimal models."""
        for before in dict.fromkeys(score["before"] for score in self.scores if score["ours"] is None):
            if before:
                yield Check(name="step not run", passed=False, names={"step": before, "option": FIRST_STEPS[before]})
        for whose, best in self.front.items():
            listing = ", ".join(f"{model} at layer {layer}" for model, layer in best) or "nothing"
            yield Check(
                name="front", passed=None, names={"whose": {"paper": "the paper"}.get(whose, whose), "points": listing}
            )

    @property
    def sources(self) -> dict[str, str]:
        """The paper, and our choices or replacements."""
        return {"Paper": f"{self.source} of arXiv 2402.13130", "Task": self.task, "Models": "; ".join(self.notes)}

    @property
    def table(self) -> Table:
        """One row per score by the primary metric, or per pair and layer."""
        return self._pairs_table if self.pairs else self._scores_table

    @property
    def _scores_table(self) -> Table:
        scores = [score for score in self.scores if score["metric"] == self.primary]
        column, ours = columns_of(scores), columns_of(score["ours"] for score in scores)
        one_step, metric = len({score["before"] for score in scores}) == 1, points(self.primary, "test")
        return Table(
            columns=(
                column("model", lambda score: run_name(score["model"], score["runs_model"], score["random_init"])),
                column("layer", itemgetter("layer")),
                column("how", lambda score: trained(score["before"]), more=one_step),
                column("split", itemgetter("split"), more=True),
                column("paper", itemgetter("paper"), form=".2f", quantity=metric),
                ours("ours", lambda ours: ours.mean, form=".2f", quantity=metric),
                ours("std", form=".2f", more=True),
                ours("interval", title=interval_title(self.level), form=".2f", interval=True, more=not one_step),
                column("difference", itemgetter("difference"), form="+.2f"),
                column("deviations", itemgetter("deviations"), title="in std", form="+.1f", more=True),
                ours("by_seed", lambda ours: ours.values, form=".2f", more=True),
                column("state", lambda score: None if score["ours"] else "not run", more=True),
            ),
            title=f"{metric_title(self.primary)} x 100 on {self.task}",
            charts=(
                Chart(
                    lines=(Line("ours", interval="interval"), Line("paper", joined=False, mark="diamond")),
                    name="scores",
                    by="model how",
                    where=(("split", "test"),),
                ),
            ),
        )

    @property
    def _pairs_table(self) -> Table:
        column = columns_of((pair, layer) for pair in self.pairs for layer in range(len(pair.curve)))
        return Table(
            columns=(
                column("pair", lambda row: row[0].names, title="model and reference"),
                column("layer", lambda row: row[1]),
                column("cka", lambda row: row[0].curve[row[1]], title="CKA", form=".4f", quantity=Quantity("CKA")),
                column(
                    "interval",
                    lambda row: (row[0].lower[row[1]], row[0].upper[row[1]]),
                    title=interval_title(self.level),
                    form=".4f",
                    interval=True,
                ),
                column("biased", lambda row: row[0].biased[row[1]], title="biased CKA", form=".4f", more=True),
                column("flag", lambda row: "drop" if row[1] in row[0].drop_layers else None),
                column(
                    "paper",
                    lambda row: {row[0].best_layer: row[0].best, row[0].last_layer: row[0].last}.get(row[1]),
                    title="paper's Spearman",
                    form=".2f",
                ),
            ),
            title=f"CKA on {self.task}",
            charts=(Chart(lines=(Line("cka", interval="interval"),), name="cka", by="pair", band=True),),
        )


def reproduce(
    name: str,
    task: TaskSettings,
    *,
    models: Mapping[str, str] | None = None,
    data: FirstSteps | None = None,
    seeds: Sequence[int],
    options: Model = DEFAULTS,
) -> Reproduction:
    """Run the recipes of an experiment and compare its scores with the paper's.

    Models are fine-tuned at its layers by the paper's protocol, or compared by CKA if it shows CKA. All
    are checked before training. Steps before TMFT without data are not run. For `models` see
    `run_models`.
    """
    from layerprobe.lab.recipe import RecipeTask
    from layerprobe.tasks.loading import load_settings

    chosen, data = experiment(name), data or {}
    run = run_models(chosen, models)
    chosen.check_first_steps(data)
    loaded = load_settings(task)
    if loaded.kind != chosen.kind:
        raise DataError(f"expected a task of kind {chosen.kind} for {name}, got {task.source}, which is {loaded.kind}")
    scores: tuple[ReproducedScore, ...] = ()
    pairs: tuple[Pair, ...] = ()
    if chosen.pairs:
        pairs = _compared(chosen, run, loaded, options=options)
    else:
        settings = {"tasks": (RecipeTask(settings=task),), "seeds": tuple(seeds), "options": options}
        steps: dict[Before | None, Sequence[str]] = {None: ()}
        steps |= {before: files for before, files in data.items() if files}
        recipes = {before: _recipe(name, before, run, files, settings) for before, files in steps.items()}
        scores = _fine_tuned(chosen, run, {before: one for before, one in recipes.items() if one}, loaded)
    return Reproduction(
        experiment=name,
        source=chosen.source,
        task=loaded.name,
        primary=loaded.primary,
        scores=scores,
        pairs=pairs,
        front=_front(scores, loaded.primary) if chosen.shows == "front" else {},
        notes=notes_on(chosen, run),
        level=current().level,
    )


def _recipe(
    name: str, before: Before | None, run: Mapping[str, str], files: Sequence[str], settings: dict[str, Any]
) -> Recipe | None:
    """Return a recipe of an experiment with its data and models; None if it uses none of these models."""
    from layerprobe.lab.recipe import AdaptStep, RecipeTask, load_recipe

    recipe = load_recipe(RECIPES / f"{name}{FILES[before]}.toml")
    models = tuple(
        replace(model, model=replace(model.model, name=run[model.model.name]))
        for model in recipe.models
        if model.model is not None and model.model.name in run
    )
    steps = tuple(
        replace(step, texts=tuple(files))
        if isinstance(step, AdaptStep)
        else replace(step, task=RecipeTask(settings=replace(step.task.settings, source=files[0])))
        for step in recipe.before
    )
    return replace(recipe, models=models, steps=steps, **settings) if models else None


def _fine_tuned(
    chosen: Experiment, run: Mapping[str, str], recipes: Mapping[Before | None, Recipe], task: Task
) -> tuple[ReproducedScore, ...]:
    from layerprobe.lab.run import plan_recipe, run_recipe

    for recipe in recipes.values():
        plan_recipe(recipe)  # reports errors before any training
    ours: dict[tuple[Before | None, str, int | None, int], LayerOutcome] = {}
    for number, (before, recipe) in enumerate(recipes.items()):
        with part(start=number, share=1, whole=len(recipes)):
            result = run_recipe(recipe)
        specs = {model.name: model.model for model in recipe.models if model.model is not None}
        for row in (row for rows in result.last for row in rows):
            spec = specs[row.model]
            ours[before, spec.name, spec.random_init, row.outcome.layer] = row.outcome
    scores = [score for score in chosen.scores if score.model in run]
    reported = {task.primary, *(metric for score in scores for metric in (*score.validation, *score.test))}
    splits: tuple[Literal["validation", "test"], ...] = ("validation", "test")
    return tuple(
        reproduced_score(
            score,
            run[score.model],
            ours.get((score.before, run[score.model], score.random_init, score.layer)),
            split,
            metric,
        )
        for score in scores
        for split in splits
        for metric in KINDS[task.kind].metrics
        if metric in reported
    )


def reproduced_score(
    paper: PaperScores, run: str, outcome: LayerOutcome | None, split: Literal["validation", "test"], metric: str
) -> ReproducedScore:
    """Compare our runs at a layer with the paper's figure; an outcome of None was not run."""
    figure = getattr(paper, split).get(metric)
    ours = None if outcome is None else seed_scores(getattr(outcome, split)[metric], current().level, metric=metric)
    difference = None if ours is None or figure is None else ours.mean - figure
    return {
        "model": paper.model,
        "runs_model": run,
        "layer": paper.layer,
        "before": paper.before,
        "random_init": paper.random_init,
        "parameters": None if outcome is None else outcome.parameters,
        "split": split,
        "metric": metric,
        "paper": figure,
        "ours": ours,
        "difference": difference,
        "deviations": None if difference is None or ours is None or not ours.std else difference / ours.std,
    }


def _front(
    scores: Sequence[ReproducedScore], metric: str
) -> dict[Literal["paper", "ours"], tuple[tuple[str, int], ...]]:
    tested = [score for score in scores if _is_tested(score, metric) and score["ours"] is not None]
    papers = [(millions(score["model"], score["layer"]), score["paper"], score) for score in tested]
    ours = [(score["parameters"], score["ours"].mean, score) for score in tested]

    def front(points: list[tuple[Any, Any, ReproducedScore]]) -> tuple[tuple[str, int], ...]:
        points = [point for point in points if None not in point]
        best = pareto_front(points, itemgetter(0), itemgetter(1))
        return tuple((score["model"], score["layer"]) for _, _, score in best)

    return {"paper": front(papers), "ours": front(ours)}


def _is_tested(score: ReproducedScore, metric: str) -> bool:
    return (score["split"], score["metric"]) == ("test", metric)


def _compared(chosen: Experiment, models: Mapping[str, str], task: Task, *, options: Model) -> tuple[Pair, ...]:
    from layerprobe.comparison.compare import compare_all
    from layerprobe.extraction.embeddings import extract
    from layerprobe.prediction.rules import plateau_rule
    from layerprobe.similarity.measures import CKA

    pairs = [pair for pair in chosen.pairs if {pair.model, pair.reference} <= models.keys()]
    if not pairs:
        raise DataError(
            f"expected a model and its reference for {chosen.name}, such as {chosen.pairs[0].model} and "
            f"{chosen.pairs[0].reference}, got {', '.join(models)}"
        )
    done = []
    for pair in pairs:
        model, reference = (
            extract(Model.of(models[name], options), task.test.texts).complete for name in (pair.model, pair.reference)
        )
        measures = CKA(), CKA(estimator="biased")
        compared = (compare_all(model, [reference], measure=cka, device=options.device) for cka in measures)
        curve, biased = (comparison.comparisons[0].curve for comparison in compared)
        errors = curve.uncertainty
        assert errors is not None  # debiased CKA has intervals
        names = (run_name(name, models[name]) for name in (pair.model, pair.reference))
        done.append(
            replace(
                pair,
                names=" with ".join(names),
                curve=curve.values,
                lower=errors.lower,
                upper=errors.upper,
                biased=biased.values,
                drop_layers=plateau_rule(curve).drop_layers,
            )
        )
    return tuple(done)
