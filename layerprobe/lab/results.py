"""Results of a recipe: one row per model, step, task and layer, with gains and CKA."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from layerprobe.finetuning.values import LayerOutcome, best_by_validation
from layerprobe.interval import Interval
from layerprobe.lab.dropbench.zoo import ObjectiveEffect, Zoo, effects_table, truth
from layerprobe.lab.pretraining.values import Adaptation, Pretraining
from layerprobe.lab.recipe import AdaptStep, Recipe
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import counted, short_name
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, columns_of, interval_title, millions
from layerprobe.stats.values import joint_error_sources

PASSED = {1: True, -1: False, 0: None}
"""Result of a check by the sign of a significant difference; None if it is not significant."""
VERDICTS = {True: Verdict.DECIDED, False: Verdict.FAILED, None: Verdict.UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """Result of a step for one model at one layer."""

    model: str
    step: str
    """Short description."""
    alone: bool
    """Whether the step was done directly from the start, without the earlier steps."""
    task: str
    budget: str
    """Name of the protocol; empty for a step before the tasks."""
    outcome: LayerOutcome
    added: Interval | None = None
    """Test score minus that of the same step alone, over paired seeds of fine-tuning, which share one
    adaptation; None without such a run, or for one seed without outputs."""

    @property
    def place(self) -> tuple[str, str, bool, str, str]:
        """Key shared by rows that differ only in the layer."""
        return self.model, self.step, self.alone, self.task, self.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCKA:
    """CKA of one layer of a model, before or after a training, with a layer of another model."""

    model: str
    after: str = ""
    """Short description of the training; empty before any."""
    kept: int | None = None
    """Number of blocks kept by it; None for a whole model."""
    seed: int | None = None
    """Seed of the training; None before any."""
    other: str | None = None
    """Name of the reference; None: the model before any training."""
    layer: int
    other_layer: int
    value: float
    """Debiased CKA, which can be negative."""
    interval: tuple[float, float] | None
    """Pointwise interval, over new texts; None if there are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedMember:
    """A candidate of an average."""

    label: str
    layer: int
    parameters: int
    """Number of parameters of the truncated model, without the pooler."""
    weight: float
    """Weight in the average, 0 .. 1; 0 for unused members."""
    validation: tuple[float, ...]
    """Primary metric of this member alone by seed, x 100, on validation."""
    test: tuple[float, ...]
    """Primary metric of this member alone by seed, x 100, on test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A weighted average of the outputs of runs of one task, compared with the best single member."""

    model: str
    """Averaged model, or all of them."""
    task: str
    budget: str
    primary: str
    """Metric that chose the weights and the single member."""
    choice: str
    """How the weights were chosen on the validation split."""
    members: tuple[AveragedMember, ...]
    """All given members, including those of weight 0."""
    best: int
    """Index of the member with the highest mean validation score, the reference of the gain."""
    validation: dict[str, tuple[float, ...]]
    """Validation scores of the average by metric and seed, x 100."""
    test: dict[str, tuple[float, ...]]
    """Test scores of the average by metric and seed, x 100."""
    thresholds: tuple[float | None, ...]
    """Thresholds by seed, chosen on the validation split, if the kind has one."""
    gain: Interval | None
    """Test score of the average minus that of the best single member; None if its error is unknown."""
    parameters: int
    """Number of parameters of all members' models; for layers of one scan only of the deepest."""
    blocks: int
    """Number of blocks that a text passes."""

    @property
    def single(self) -> AveragedMember:
        """The best single member by validation."""
        return self.members[self.best]

    @property
    def used(self) -> tuple[AveragedMember, ...]:
        """Members with a positive weight, the highest first."""
        return tuple(sorted((member for member in self.members if member.weight), key=lambda chosen: -chosen.weight))

    @property
    def check(self) -> Check:
        """Whether it beats the best single member, on test."""
        names = {
            "model": self.model,
            "task": self.task,
            "metric": metric_title(self.primary),
            "single": self.single.label,
        }
        if len(self.used) == 1:
            return Check(name="not averaged", passed=None, names=names)
        gain = Fact(value=fmean(self.test[self.primary]) - fmean(self.single.test), split="test")
        passed = None
        if self.gain is not None:
            gain, passed = Fact.of(self.gain, split="test"), PASSED[self.gain.sign]
        facts = {
            "average": gain,
            "score": Fact(value=fmean(self.test[self.primary]), unit="score", split="test"),
            **counts(blocks=self.blocks, of_single=self.single.layer),
        }
        return Check(name="average", passed=passed, facts=facts, names=names)

    @property
    def table(self) -> Table:
        """One row per member, then the average."""
        members, title = self.members, metric_title(self.primary)
        test = [*(member.test for member in members), self.test[self.primary]]
        validation = [*(member.validation for member in members), self.validation[self.primary]]
        best = [*(number == self.best for number in range(len(members))), False]
        return Table(
            columns=(
                Column("member", (*(member.label for member in members), "average"), title="what"),
                Column("weight", (*(member.weight for member in members), 1.0), form=".2f"),
                Column("parameters", (*(member.parameters for member in members), self.parameters), form=millions),
                Column("validation", tuple(map(fmean, validation)), title=f"validation {title}", form=".2f"),
                Column("test", tuple(map(fmean, test)), title=f"test {title}", form=".2f"),
                Column("scores", tuple(test), title="by seed", form=".2f"),
                Column("flag", tuple("best alone" if it else None for it in best)),
            ),
            title=f"Average of {self.model} on {self.task}, budget {self.budget}",
            marks=tuple("chosen" if it else None for it in best),
            notes=(f"Weights: {self.choice}.",),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecipeResult(Shown):
    """The results of a recipe."""

    recipe: Recipe
    level: float
    """Confidence level of all intervals."""
    rows: tuple[RecipeRow, ...]
    """Rows by step, model, task, budget and layer."""
    cka: tuple[RecipeCKA, ...]
    """CKA before and after, if the recipe measures it."""
    averages: tuple[Average, ...]
    adaptations: dict[str, tuple[Adaptation, ...]]
    """Adaptations by model, one per step."""
    pretrainings: dict[str, Pretraining]
    """Pretrainings by model, with their metrics."""
    zoo: Zoo | None
    """Every model with a known objective, with its readings and scores; None without such models."""
    effects: tuple[ObjectiveEffect, ...]
    """Effects of the pretraining objectives."""
    failures: tuple[dict[str, str], ...]
    """Failures, each with its `model`, or run, and the `reason` on one line."""
    computed_on: str
    """Kind of device and precision."""
    versions: dict[str, str]
    """Versions of the libraries that affect the numbers."""
    created: str
    """ISO 8601, UTC."""
    notes: tuple[str, ...] = ()
    """Interpretation of the tasks."""
    warnings: tuple[str, ...] = ()
    """Warnings about the numbers, in plain words."""

    @property
    def curves(self) -> dict[tuple[str, str, bool, str, str], list[RecipeRow]]:
        """The rows of each model, step, task and budget, by layer."""
        curves: dict[tuple[str, str, bool, str, str], list[RecipeRow]] = {}
        for row in self.rows:
            curves.setdefault(row.place, []).append(row)
        return curves

    @property
    def last(self) -> list[list[RecipeRow]]:
        """The curves on the tasks, after all steps."""
        return [rows for rows in self.curves.values() if rows[0].budget and not rows[0].alone]

    def _latest(self, of: ObjectiveEffect | list[RecipeRow]) -> int:
        """Return the sort key that puts the last budget, shown in the first figure, first."""
        budget = of.budget if isinstance(of, ObjectiveEffect) else of[0].budget
        return -list(self.recipe.budgets).index(budget)

    @property
    def table(self) -> Table:
        """One row per model, step, task, budget and layer: test scores over seeds, and gains from earlier steps."""
        rows, moved = self.rows, {(one.model, one.kept): one for one in self.cka if one.kept and one.other is None}
        best = {place: best_by_validation([row.outcome for row in of]).layer for place, of in self.curves.items()}
        column, outcome = columns_of(rows), columns_of(row.outcome for row in rows)
        added = columns_of(row.added for row in rows)
        cut = columns_of(moved.get((row.model, row.outcome.layer)) if not row.alone else None for row in rows)
        metrics = {row.outcome.primary for row in rows}
        one = points(min(metrics), "test") if len(metrics) == 1 else Quantity("score × 100", "test", "higher")
        ends, several = interval_title(self.level), len({row.model for row in rows}) > 1
        places = dict.fromkeys((row.task, row.budget) for row in rows)
        by = {"model": several, "step": len({(row.step, row.alone) for row in rows}) > 1}
        columns = [
            column("model", more=not several),
            column(
                "step",
                lambda row: row.step + (", without the steps before it" if row.alone else ""),
                more=not by["step"],
            ),
            column("task", shown=False),
            column("budget", more=all(by.values()) or len(self.recipe.budgets) == 1),
            outcome("layer", meaning="Number of blocks kept."),
            outcome("parameters", form=millions, more=True),
            outcome("metric", lambda outcome: outcome.primary, form=metric_title, more=True),
            outcome("test", lambda o: o.mean, form=".2f", meaning="Mean over seeds, x 100.", quantity=one),
            outcome("std", form=".2f", meaning="Standard deviation over seeds.", more=True),
            outcome(
                "interval",
                title=ends,
                form=".2f",
                interval=True,
                over=joint_error_sources(row.outcome.error for row in rows if row.outcome.error) or "over new seeds",
            ),
            outcome("seeds", lambda outcome: len(outcome.seeds), meaning="Runs.", more=True),
            outcome("seed_numbers", lambda outcome: outcome.seeds, shown=False),
            outcome("scores", title="by seed", form=".2f", more=True),
            outcome("validation", lambda outcome: outcome.validation[outcome.primary], shown=False),
            added("added", lambda effect: effect.value, form="+.2f", meaning="Gain from the steps before."),
            added(
                "added_interval", lambda e: e.interval, title=f"added, {ends}", form="+.2f", interval=True, more=True
            ),
            cut("cka", lambda one: one.value, title="CKA with before", form=".3f", more=True),
        ]
        return Table(
            columns=tuple(columns),
            title="Scores by layer",
            marks=tuple("chosen" if row.outcome.layer == best[row.place] else None for row in rows),
            charts=tuple(
                Chart(
                    lines=(Line("test", interval="interval", seeds="scores"),),
                    name=f"recipe-{number}",
                    heading=f"Scores on {task}, budget {budget}" if budget else f"Scores on {task}, before the tasks",
                    by=" ".join(name for name, differs in by.items() if differs),
                    where=(("task", task), ("budget", budget)),
                    chosen="best by validation",
                )
                for number, (task, budget) in enumerate(reversed(places))
            ),
        )

    @property
    def conclusion(self) -> Conclusion:
        """The effect of an objective, the gain from earlier steps, or the gain of an average; else the best layer."""
        answers = [*self._effects(), *self._added(), *(average.check for average in self.averages)]
        runs = sum(len(row.outcome.seeds) for row in self.rows)
        facts = counts(runs=runs, models=len(self.recipe.everything), curves=len(self.last))
        case, verdict = "several", Verdict.DECIDED if self.last else Verdict.FAILED
        names: dict[str, object] = {}
        if answers:
            first = answers.pop(0)
            case, verdict = first.name, VERDICTS[first.passed]
            facts, names = {**first.facts, **facts}, {**first.names}
        elif len(self.last) == 1:
            best = best_by_validation([row.outcome for row in self.last[0]])
            case, names = "best", {"layer": best.layer, "metric": f"{metric_title(best.primary)} x 100"}
            score = Fact(value=best.mean, unit="score", split="test")
            facts = {"score": score if best.error is None else Fact.of(best.error, "score", "test"), **facts}
        failed = (Check(name="model failed", passed=False, names=failure) for failure in self.failures)
        return Conclusion(
            kind="recipe",
            case=case,
            verdict=verdict,
            subject=(self.recipe.name,),
            facts=facts,
            names=names,
            checks=(*failed, *answers, *self._moved(), *self._adapted()),
        )

    def _effects(self) -> Iterator[Check]:
        """Yield the difference between each objective's drop and that of masked language modelling, over all sizes."""
        for effect in sorted(self.effects, key=self._latest):
            if not effect.size:
                ends = effect.interval
                difference = Fact(value=effect.mean, interval=ends, level=None if ends is None else self.level)
                facts = {
                    "difference": difference,
                    "drop": Fact(value=fmean(effect.values)),
                    "twin": Fact(value=fmean(effect.twins)),
                    "pairs": Fact(value=len(effect.values), unit="count"),
                }
                decided = effect.difference is not None and effect.difference.sign != 0
                names = {"objective": effect.family, "task": effect.task, "budget": effect.budget}
                yield Check(name="objective", passed=True if decided else None, facts=facts, names=names)

    def _added(self) -> Iterator[Check]:
        """Yield the gain of each model from the steps before a task, at the layer that is best by validation."""
        labels = [step.label if isinstance(step, AdaptStep) else step.task.step for step in self.recipe.before]
        for rows in sorted(self.last, key=self._latest):
            layer = best_by_validation([row.outcome for row in rows]).layer
            row = next(row for row in rows if row.outcome.layer == layer)
            if row.added is None:
                continue
            facts = {
                "added": Fact.of(row.added, split="test"),
                "score": Fact(value=row.outcome.mean, unit="score", split="test"),
                "alone": Fact(value=row.outcome.mean - row.added.value, unit="score", split="test"),
            }
            names = {
                "before": ", then ".join(labels),
                "model": short_name(row.model),
                "task": row.task,
                "layer": layer,
                "metric": f"{metric_title(row.outcome.primary)} x 100",
            }
            yield Check(name="added", passed=PASSED[row.added.sign], facts=facts, names=names)

    def _moved(self) -> Iterator[Check]:
        """Yield the similarity of each model's last kept layer to itself before training, where it changed most."""
        last = {(one.model, one.after, one.kept): one for one in self.cka if one.after and one.other is None}
        for model in dict.fromkeys(one.model for one in last.values()):
            one = min((one for one in last.values() if one.model == model), key=lambda one: one.value)
            level = None if one.interval is None else self.level
            cka = Fact(value=one.value, unit="similarity", interval=one.interval, level=level)
            names = {"model": short_name(model), "layer": one.layer, "after": one.after}
            yield Check(name="moved", passed=None, facts={"cka": cka}, names=names)

    def _adapted(self) -> Iterator[Check]:
        """Yield the held-out losses of each adaptation."""
        for model, done in self.adaptations.items():
            for one in done:
                conclusion = one.conclusion
                passed = conclusion.verdict is Verdict.DECIDED
                yield Check(name="adapted", passed=passed, facts=conclusion.facts, names={"model": short_name(model)})

    @property
    def details(self) -> tuple[Table, ...]:
        """Drops and effects of objectives, CKA, averages, adaptations and pretrainings, as available."""
        return (
            *(() if self.zoo is None else (drops_table(self.zoo),)),
            *((effects_table(self.effects, self.level),) if self.effects else ()),
            *((self.cka_table,) if self.cka else ()),
            *(average.table for average in self.averages),
            *(one.table for done in self.adaptations.values() for one in done),
            *((pretrainings_table(self.pretrainings),) if self.pretrainings else ()),
        )

    @property
    def sources(self) -> dict[str, str]:
        """Protocols and tasks of the fine-tuning, and versions."""
        budgets = "; ".join(
            f"{name}: {counted(how.epochs, 'epoch')}, peak learning rate {how.learning_rate:g}, batches of "
            f"{how.batch_size}"
            for name, how in self.recipe.budgets.items()
        )
        return {
            "Tasks": "; ".join(self.notes),
            "Budgets": budgets,
            "Computed on": self.computed_on,
            "Versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "Created": self.created,
        }

    @property
    def cka_table(self) -> Table:
        """One row per model, training and layer: CKA with the layer before training, or with that of a reference."""
        column = columns_of(self.cka)
        names = dict.fromkeys((one.model, one.other or "before") for one in self.cka)
        return Table(
            columns=(
                column("model"),
                column("after", _after, title="training"),
                column("with", lambda one: one.other or "before"),
                column("layer"),
                column("cka", lambda one: one.value, title="CKA", form=".3f", quantity=Quantity("CKA", best="higher")),
                column("interval", title=interval_title(self.level), form=".3f", interval=True, over="over new texts"),
            ),
            title="CKA by layer",
            charts=tuple(
                Chart(
                    lines=(Line("cka", interval="interval"),),
                    name=f"cka-{number}",
                    by="after",
                    band=True,
                    where=(("model", model), ("with", other)),
                )
                for number, (model, other) in enumerate(names)
            ),
        )


def _after(one: RecipeCKA) -> str:
    if not one.after:
        return "before"
    return f"after {one.after}" if one.kept is None else f"kept to layer {one.kept}"


def drops_table(zoo: Zoo) -> Table:
    """Return whether the last layer scores below the best one, one row per model, task and budget."""
    rows = [(entry, budget, truth(tuned)) for entry in zoo.entries for budget, tuned in entry.budgets.items()]
    entry, true = columns_of(entry for entry, _, _ in rows), columns_of(true for _, _, true in rows)
    return Table(
        columns=(
            entry("model", lambda entry: entry.name),
            entry("objective", lambda entry: entry.family),
            entry("size"),
            entry("task"),
            Column("budget", tuple(budget for _, budget, _ in rows)),
            true("best_layer"),
            true(
                "difference",
                lambda truth: truth.effect,
                form="+.2f",
                quantity=Quantity("points, best layer less last layer", "test", "lower"),
            ),
            true("drop"),
        ),
        title="Does the last layer drop?",
        marks=tuple("drop" if true.drop else None for _, _, true in rows),
        charts=tuple(_drop_charts(rows)),
    )


def _drop_charts(rows: Sequence[tuple[Any, str, Any]]) -> Iterator[Chart]:
    places = dict.fromkeys((entry.task, budget) for entry, budget, _ in rows)
    for number, (task, budget) in enumerate(places):
        yield Chart(
            lines=(Line("difference"),),
            name=f"drops-{number}",
            x="objective",
            by="size",
            where=(("task", task), ("budget", budget)),
            drops="models that drop",
        )


def pretrainings_table(pretrainings: dict[str, Pretraining]) -> Table:
    """Return the time of each pretraining, and the losses of its last evaluation."""
    column = columns_of(pretrainings.values())
    last = [done.metrics[-1].held_out if done.metrics else {} for done in pretrainings.values()]
    names = dict.fromkeys(name for losses in last for name in losses)
    return Table(
        columns=(
            Column("model", tuple(pretrainings)),
            column("steps", lambda done: done.protocol.steps if done.metrics else 0, form=","),
            column("tokens", lambda done: done.n_tokens, form=","),
            column("seconds", form=".0f"),
            *(Column(name, tuple(losses.get(name) for losses in last), form=".3f") for name in names),
        ),
        title="Pretraining",
    )
