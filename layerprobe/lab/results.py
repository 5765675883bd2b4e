"""What a recipe gave: a row for each model, step, task and layer, what was added and moved, and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from layerprobe.finetuning.values import LayerOutcome, best_by_validation
from layerprobe.interval import Interval
from layerprobe.lab.dropbench.truth import ObjectiveEffect, effects_table, truth
from layerprobe.lab.dropbench.zoo import Zoo
from layerprobe.lab.pretraining.values import Adaptation, Pretraining
from layerprobe.lab.recipe import AdaptStep, Recipe
from layerprobe.metrics.names import bounded, metric_title, points
from layerprobe.names import counted, in_percent, listed, short_name
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, clauses
from layerprobe.results.table import Column, Table, columns_of, interval_title, millions
from layerprobe.stats.sentences import drawn_anew, drawn_anew_in_all, drop_sentence, gain_in_brackets

LISTED = 4
"""A sentence names so many layers one by one, and counts more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """What a step left of one model at one layer."""

    model: str
    step: str
    """In a few words."""
    alone: bool
    """Whether it was done straight from the start, without the steps before it."""
    task: str
    budget: str
    """Name of the protocol; empty of a step before the tasks."""
    outcome: LayerOutcome
    added: Interval | None = None
    """Its test score less that of the same step alone, over paired seeds of fine-tuning, all of which follow one
    adaptation; None where there is no such run, or one seed whose outputs are not known."""

    @property
    def place(self) -> tuple[str, str, bool, str, str]:
        """What rows that differ in the layer alone have in common."""
        return self.model, self.step, self.alone, self.task, self.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCKA:
    """CKA of one layer of a model, before or after a training, with a layer of another one."""

    model: str
    after: str = ""
    """The training, in a few words; empty before any."""
    kept: int | None = None
    """Blocks kept by it; None for a whole model."""
    seed: int | None = None
    """Of the training; None before any."""
    other: str | None = None
    """The reference; None: the model before any training."""
    layer: int
    other_layer: int
    value: float
    """Debiased, so that it can be negative."""
    interval: tuple[float, float] | None
    """Pointwise, over new texts; None where there are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedMember:
    """A candidate of an average."""

    label: str
    layer: int
    parameters: int
    """Of the truncated model, without the pooler."""
    weight: float
    """In the average, 0 .. 1; 0 where it takes no part."""
    validation: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""
    test: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A weighted average of the outputs of runs of one task, compared with the best single one."""

    model: str
    """What was averaged: a model, or all of them."""
    task: str
    budget: str
    primary: str
    """The metric that chose the weights and the single one."""
    choice: str
    """How the weights were chosen on the validation split."""
    members: tuple[AveragedMember, ...]
    """All that were given, those of weight 0 too."""
    best: int
    """Number of the member with the highest mean validation score, which the average is compared with."""
    validation: dict[str, tuple[float, ...]]
    """Of the average by metric and seed, x 100."""
    test: dict[str, tuple[float, ...]]
    """Of the average by metric and seed, x 100."""
    thresholds: tuple[float | None, ...]
    """By seed: chosen on the validation split, where the kind has one."""
    gain: Interval | None
    """Test score of the average less that of the best single one; None where nothing is known of its error."""
    parameters: int
    """Of every member's model, and of layers of one scan only the deepest."""
    blocks: int
    """Blocks that a text goes through."""

    @property
    def single(self) -> AveragedMember:
        """The best single member by validation."""
        return self.members[self.best]

    @property
    def used(self) -> tuple[AveragedMember, ...]:
        """Members with a positive weight, the highest first."""
        return tuple(sorted((member for member in self.members if member.weight), key=lambda chosen: -chosen.weight))

    @property
    def sentence(self) -> str:
        """The gain of the average with its interval and cost, as a sentence."""
        title, single = metric_title(self.primary), self.single
        alone = fmean(single.test)
        if len(self.used) == 1:
            return (
                f"{self.model}: on the validation split nothing scores higher than {self.used[0].label} alone, "
                f"{alone:.2f} on test ({title} x 100)."
            )
        members = ", ".join(f"{member.label} ({member.weight:.2f})" for member in self.used)
        score = fmean(self.test[self.primary])
        return (
            f"{self.model}: the average of {members} scores {score:.2f} on test, {score - alone:+.2f} {title} x 100 "
            f"compared with {single.label}, the best single one by validation {gain_in_brackets(self.gain)} It runs "
            f"{self.blocks} blocks and has {self.parameters / 1e6:.1f} M parameters, against {single.layer} and "
            f"{single.parameters / 1e6:.1f} M."
        )

    @property
    def table(self) -> Table:
        """One row per member, and one for the average."""
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
    """By step, model, task, budget and layer."""
    cka: tuple[RecipeCKA, ...]
    """Before and after, where the recipe measures it."""
    averages: tuple[Average, ...]
    adaptations: dict[str, tuple[Adaptation, ...]]
    """By model, one a step."""
    pretrainings: dict[str, Pretraining]
    """By model: its metrics meanwhile."""
    zoo: Zoo | None
    """Every model whose objective is known, with its readings and scores; None without such models."""
    effects: tuple[ObjectiveEffect, ...]
    """What each objective of the pretraining changes."""
    failures: tuple[dict[str, str], ...]
    """What is left out, each as its `model`, or run, and the `reason` in one line."""
    computed_on: str
    """Kind of device and precision."""
    versions: dict[str, str]
    """Of the libraries that the numbers depend on."""
    created: str
    """ISO 8601, UTC."""
    notes: tuple[str, ...] = ()
    """How the tasks were understood."""
    warnings: tuple[str, ...] = ()
    """What a reader of the numbers should know, in plain words."""

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

    @property
    def table(self) -> Table:
        """A row a model, step, task, budget and layer: test scores over seeds, and what the steps before add."""
        rows, moved = self.rows, {(one.model, one.kept): one for one in self.cka if one.kept and one.other is None}
        best = {place: best_by_validation([row.outcome for row in of]).layer for place, of in self.curves.items()}
        column, outcome = columns_of(rows), columns_of(row.outcome for row in rows)
        added = columns_of(row.added for row in rows)
        cut = columns_of(moved.get((row.model, row.outcome.layer)) if not row.alone else None for row in rows)
        metrics = {row.outcome.primary for row in rows}
        one = points(min(metrics), "test") if len(metrics) == 1 else Quantity("score × 100", "test", "higher")
        ends = interval_title(self.level)
        columns = [
            column("model"),
            column("step", lambda row: row.step + (", without the steps before it" if row.alone else "")),
            column("task", shown=False),
            column("budget"),
            outcome("layer", meaning="Blocks kept."),
            outcome("parameters", form=millions),
            outcome("metric", lambda outcome: outcome.primary, form=metric_title),
            outcome("test", lambda o: o.mean, form=".2f", meaning="Mean over seeds, x 100.", quantity=one),
            outcome("std", form=".2f", meaning="Standard deviation over seeds."),
            outcome(
                "interval",
                title=ends,
                form=".2f",
                interval=True,
                over=drawn_anew_in_all(row.outcome.error for row in rows if row.outcome.error) or "over new seeds",
            ),
            outcome("seeds", lambda outcome: len(outcome.seeds), meaning="Runs."),
            outcome("seed_numbers", lambda outcome: outcome.seeds, shown=False),
            outcome("scores", title="by seed", form=".2f"),
            outcome("validation", lambda outcome: outcome.validation[outcome.primary], shown=False),
        ]
        if any(row.added for row in rows):
            columns.append(added("added", lambda effect: effect.value, form="+.2f", meaning="By the steps before."))
            columns.append(added("added_interval", lambda e: e.interval, title=ends, form="+.2f", interval=True))
        if moved:
            columns.append(cut("cka", lambda one: one.value, title="CKA with before", form=".3f"))
        return Table(
            columns=tuple(columns),
            title="Scores by layer",
            marks=tuple("chosen" if row.outcome.layer == best[row.place] else None for row in rows),
            charts=tuple(
                Chart(
                    lines=(Line("test", interval="interval", seeds="scores"),),
                    name=f"recipe-{number}",
                    by="model step",
                    where=(("task", task), ("budget", budget)),
                    chosen="best by validation",
                )
                for number, (task, budget) in enumerate(dict.fromkeys((row.task, row.budget) for row in rows))
            ),
        )

    # ---- sentences -------------------------------------------------------------------------------------------------

    @property
    def sentences(self) -> tuple[str, ...]:
        """What objectives change, what the first steps add, how far layers moved, and what averages gain."""
        several = len(self.recipe.tasks) > 1
        drops = [effect for effect in self.effects if not effect.size]
        return (
            *(
                drop_sentence(
                    f"{effect.family}, {effect.budget}{f', {effect.task}' if several else ''}",
                    effect.mean,
                    effect.interval,
                    self.level,
                    pairs=len(effect.values),
                )
                for effect in drops
            ),
            *(adaptation.sentence for done in self.adaptations.values() for adaptation in done),
            *filter(None, map(self.added_sentence, self.last)),
            *filter(None, (self.cka_sentence(model.name) for model in self.recipe.everything)),
            *(average.sentence for average in self.averages),
        )

    def added_sentence(self, rows: Sequence[RecipeRow]) -> str:
        """Return what the steps before the task add to one model, in words; empty where that is not known.

        A few layers are named one by one with the interval of each; of more only those whose joint interval (Bonferroni
        over the layers) excludes 0, with that.
        """
        effects = [(row, row.added) for row in rows if row.added is not None]
        if not effects:
            return ""
        first, primary = effects[0][0], effects[0][0].outcome.primary
        steps = ", then ".join(
            step.label if isinstance(step, AdaptStep) else step.task.step for step in self.recipe.before
        )
        what = f"{short_name(first.model)}: {steps} first adds"
        unit = f"{metric_title(primary)} x 100 on {first.task}"
        joint = 1 - (1 - self.level) / len(effects)
        alone = len(effects) <= LISTED
        stated = [(row, effect if alone else _jointly(effect, joint, primary)) for row, effect in effects]
        named = [(row, effect) for row, effect in stated if alone or effect.sign]
        if not named:
            return f"{what} nothing significant at any of {len(effects)} layers ({unit})."
        texts = [f"{effect.value:+.2f} {_ends(effect.interval)} at layer {row.outcome.layer}" for row, effect in named]
        seeds = counted(len(first.outcome.seeds), "seed")
        seeds += " after one adaptation" if self.recipe.of(AdaptStep) else ""
        together = "" if len(effects) <= LISTED else f" for all {len(effects)} layers together"
        about = f"{in_percent(self.level)} intervals{together} {drawn_anew(effects[0][1])}"
        return f"{what} {', '.join(texts)} ({unit}, {about}, {seeds})."

    def cka_sentence(self, model: str) -> str:
        """Return how far the last layer kept of a model is from what it was, in words; empty without CKA."""
        of = [one for one in self.cka if one.model == model and one.after and one.other is None]
        last = {(one.after, one.kept): one for one in of}  # the last one of each training is its last layer
        texts = [
            f"{one.value:.2f}{f' {_ends(one.interval)}' if one.interval else ''} at layer {one.layer} after {one.after}"
            for one in last.values()
        ]
        if len(texts) > LISTED:
            values = dict(zip((one.value for one in last.values()), texts, strict=True))
            texts = [f"from {values[min(values)]}", f"to {values[max(values)]}"]
        return f"{short_name(model)}: CKA of the last layer kept with before: {', '.join(texts)}." if texts else ""

    @property
    def heading(self) -> str:
        """The first sentence in a few words, or which layer is best."""
        if self.sentences:
            return clauses(self.sentences[0])[0]
        best = [(rows[0].model, best_by_validation([row.outcome for row in rows]).layer) for rows in self.last]
        return f"Best by validation: {listed([f'layer {layer} of {short_name(model)}' for model, layer in best])}"

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """What a terminal shows: sentences, the table, averages, and what failed."""
        failed = (f"failed: {failure['model']}: {failure['reason']}" for failure in self.failures)
        tables = (part for average in self.averages for part in ("", average.table.titled))
        said = (*self.sentences, "") if self.sentences else ()
        return (*said, self.table, *tables, *failed)

    @property
    def summary(self) -> str:
        """The result in one line."""
        runs = sum(len(row.outcome.seeds) for row in self.rows)
        return f"{self.recipe.name}: {counted(runs, 'run')} of {counted(len(self.recipe.everything), 'model')}"

    # ---- page ------------------------------------------------------------------------------------------------------

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `declared_page`."""
        recipe, effects = self.recipe, self.effects
        best = [(rows[0], best_by_validation([row.outcome for row in rows])) for rows in self.last]
        return {
            "kind": "recipe",
            "about": recipe.name,
            "lead": self.sentences,
            "facts": (
                counted(len(recipe.everything), "model"),
                *(
                    f"{short_name(row.model)} on {row.task}: {numbers.number(of.mean)} at layer {of.layer}"
                    for row, of in best[:LISTED]
                ),
            ),
            "fatal": tuple(f"{failure['model']} is left out: {failure['reason']}" for failure in self.failures),
            "account": self.notes,
            "sections": {
                "Does the last layer drop?": () if self.zoo is None else (drops_table(self.zoo),),
                "What the objective changes": (effects_table(effects, self.level),) if effects else (),
                "CKA before and after": (self.cka_table,) if self.cka else (),
                "Averages": tuple(average.table for average in self.averages),
                "Adaptation": tuple(one.table for done in self.adaptations.values() for one in done),
                "Pretraining": (pretrainings_table(self.pretrainings),) if self.pretrainings else (),
            },
            "sources": {
                "Budgets": "; ".join(
                    f"{name}: {counted(how.epochs, 'epoch')}, peak learning rate {how.learning_rate:g},"
                    f" batches of {how.batch_size}"
                    for name, how in recipe.budgets.items()
                ),
                "Computed on": self.computed_on,
                "Versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
                "Created": self.created,
            },
        }

    @property
    def cka_table(self) -> Table:
        """A row a model, training and layer: its CKA with the layer before, or with that of a reference."""
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


def _ends(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def _after(one: RecipeCKA) -> str:
    if not one.after:
        return "before"
    return f"after {one.after}" if one.kept is None else f"kept to layer {one.kept}"


def drops_table(zoo: Zoo) -> Table:
    """Return whether the last layer scores below the best one, a row a model, task and budget."""
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
        title="Drops",
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
    """Return what each pretraining took, and the losses of its last evaluation."""
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
        title="What was measured",
    )


def _jointly(effect: Interval, level: float, metric: str) -> Interval:
    """Return a difference of scores at another level of confidence, inside what it can be."""
    wider = effect.at(level)
    return replace(wider, interval=bounded(metric, wider.interval, difference=True))
