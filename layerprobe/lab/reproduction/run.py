"""Reproduce an experiment of the paper next to its figures; finished runs are loaded, not repeated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from layerprobe.comparison.compare import compare_all
from layerprobe.context import current, part
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.tuning import PAPER_SEEDS
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.lab.recipe import AdaptStep, Recipe, RecipeTask, load_recipe
from layerprobe.lab.reproduction.paper import (
    FIRST_STEPS,
    Before,
    Experiment,
    FirstSteps,
    Pair,
    PaperScores,
    experiment,
    millions,
    notes_on,
    run_models,
    run_name,
    trained,
)
from layerprobe.lab.run import plan_recipe, run_recipe
from layerprobe.metrics.names import metric_title, points
from layerprobe.prediction.rules import plateau_rule
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Line, Quantity, Table, columns_of, interval_title
from layerprobe.similarity.measures import CKA
from layerprobe.stats.values import pareto_front, seed_scores
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_settings
from layerprobe.tasks.values import Task, TaskSettings

RECIPES = Path(__file__).parent / "recipes"
"""Folder with one file per experiment, and one for each of its steps before TMFT."""
FILES: dict[Before | None, str] = {None: "", "word similarity": "-words", "domain adaptation": "-adapted"}
NEAR = 2.0
"""Standard deviations of our seeds within which a score counts as equal to the paper's."""


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
            case, right, n = "pairs", sum(pair.bears_out for pair in self.pairs), len(self.pairs)
        facts = {"right": Fact(value=right, unit="count"), "all": Fact(value=n, unit="count")}
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
            verdict=_verdict(right, n),
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
            yield Check(name="front", passed=None, names={"whose": FRONTS[whose], "points": listing})

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


FRONTS = {"paper": "the paper", "ours": "ours"}


def _verdict(right: int, n: int) -> Verdict:
    """Return whether all of some figures match the paper's; failed if fewer than half do."""
    if not n:
        return Verdict.UNDECIDED
    return Verdict.DECIDED if right == n else Verdict.FAILED if 2 * right < n else Verdict.UNDECIDED


def reproduce(
    name: str,
    task: TaskSettings,
    *,
    models: Mapping[str, str] | None = None,
    data: FirstSteps | None = None,
    seeds: Sequence[int] = PAPER_SEEDS,
    options: Model = DEFAULTS,
) -> Reproduction:
    """Run the recipes of an experiment and compare its scores with the paper's.

    Models are fine-tuned at its layers by the paper's protocol, or compared by CKA if it shows CKA. All
    are checked before training. Steps before TMFT without data are not run. For `models` see
    `run_models`.
    """
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


# ---- scores -------------------------------------------------------------------------------------------


def _recipe(
    name: str, before: Before | None, run: Mapping[str, str], files: Sequence[str], settings: dict[str, Any]
) -> Recipe | None:
    """Return a recipe of an experiment with its data and models; None if it uses none of these models."""
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


# ---- similarity ---------------------------------------------------------------------------------------


def _compared(chosen: Experiment, models: Mapping[str, str], task: Task, *, options: Model) -> tuple[Pair, ...]:
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
