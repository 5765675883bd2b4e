"""Scores of strategies and rules on DropBench, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooProvenance
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import CKA, cka_with
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, percent

CHOSEN_ANEW = "best rule of the other families"
"""The rule that is chosen for each family by the others: its scores are not those of the luckiest of many."""
LEAST = 0.01
"""Where costs of nothing stand on the axis, which is logarithmic."""
SEARCH = 0.2
"""What a search costs at most, as a share of the paper's sweep, to be one of those that are compared with rules."""
WORTH_PRINTING = (
    *("last layer", "fixed fraction of depth", "random layer", "plateau of CKA", "fall of CKA", "fall of InfoNCE"),
    *("fall of effective rank", "best layer by probe", "best layer by LogME"),
    *("best layer by LinMSE", "best layer by kNN", "L3Prune small", "L3Prune large", "TransformerRanker bestlayer"),
    *("best layer by LOES without labels", "best layer by alpha-ReQ", "best layer by subspace displacement"),
    *("best layer by neighbour retention", "best layer by LOES", "best layer by KITE"),
)
"""The rules that are printed by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A statistic over the models, with its bootstrap interval."""

    value: float
    lower: float | None
    """Of the bootstrap interval; None where nothing could be redrawn."""
    upper: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap interval."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)


Needs = Literal["nothing", "readings", "labels", "training"]
"""What a strategy looks at; readings: of embeddings, without labels; labels: readings that need them; training:
fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOutcome:
    """A strategy's choices for one model, all equally likely, with the regret and cost of each."""

    model: str
    family: str
    layers: tuple[int, ...]
    distances: tuple[float, ...]
    """Mean test score of the best layer less that of the chosen one, x 100, on seeds that it did not look at if
    any are left; at least 0."""
    regrets: tuple[float, ...]
    """The same against the layer that other seeds choose on the other half of the test items; can be negative."""
    costs: tuple[float, ...]
    """Of choosing, shares of the paper's sweep: every layer with five seeds."""
    items_error: float | None
    """Of the distance over test items, the mean over choices; None where it is not known."""
    seeds_error: float | None
    """The same over seeds."""
    coverage: float | None
    """Chance that the set it states holds the best layer, by the errors of the test scores; None if it states none."""
    set_size: float | None
    """Layers in it, the mean over choices."""
    sufficient: float | None
    """Chance that the layer which it says is within half a point of the best is so; None if it says so of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rule or strategy, and what it scores over the models: `row.regret`."""

    kind: Literal["rule", "strategy"]
    """A rule is scored on families that it was not tuned on."""
    name: str
    values: dict[str, Any]
    """Scores and more by name, which are attributes of the row: what each means stands at the columns of the tables
    below. Layers and outcomes are by model, and a score is None where it is not defined, such as the precision of no
    calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.values:
            raise AttributeError(f"expected what a {self.kind} has, {', '.join(self.values)}, got {name}")
        return self.values[name]

    def as_plain(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what JSON has: the name under that of the kind, and the values beside it."""
        return {self.kind: self.name, **fields["values"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetScores:
    """The scores of rules and strategies under one budget of fine-tuning, on the same models."""

    budget: str
    clusters: str
    """What the bootstrap redraws: families, or models where families are few, those of one encoder together."""
    truths: dict[str, Truth]
    """By model."""
    rules: tuple[Row, ...]
    """The lowest mean regret first; those without labels before those with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Rules that could not be scored, and why."""
    strategies: tuple[Row, ...] = ()
    """Ways to choose a layer, the rules among them; the cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bench(Shown):
    """What predictors of a drop score on a zoo, evaluated leave-one-family-out."""

    provenance: ZooProvenance
    """Of the zoo."""
    families: tuple[str, ...]
    level: float
    """Confidence level of the intervals."""
    draws: int
    """Of the bootstrap."""
    budgets: tuple[BudgetScores, ...]

    @property
    def conclusion(self) -> Conclusion:
        """How far below the best layer the best rule is, compared with the best of those that look at no model.

        It is under the last budget, which is the longest of those that come with layerprobe; others are checks.
        """
        scores, truths = self.budgets[-1], self.budgets[-1].truths.values()
        counts = {
            "models": len(truths),
            "drops": sum(truth.drop for truth in truths),
            "families": len(self.families),
            "draws": self.draws,
            "left": len(scores.left_out),
        }
        facts = {name: Fact(value=count, unit="count") for name, count in counts.items()}
        answer, *others = map(self._best_of, reversed(self.budgets))
        checks = [Check(name="redrawn", passed=None, names={"clusters": scores.clusters})]
        if scores.left_out:
            checks.append(Check(name="rules left out", passed=None))
        return Conclusion(
            kind="bench",
            case="rules" if answer.facts else "scored",
            verdict={True: Verdict.DECIDED, False: Verdict.FAILED, None: Verdict.UNDECIDED}[answer.passed],
            facts={**answer.facts, **facts},
            names=answer.names,
            checks=(*self._chosen_anew(scores, answer), *others, *checks),
        )

    def _best_of(self, scores: BudgetScores) -> Check:
        """Return whether the best rule under a budget is better than looking at no model, with the best search."""
        rule, control = best_rule(scores), best_control(scores)
        if rule is None or control is None:
            return Check(name="another budget", passed=None, names={"budget": scores.budget})
        facts = {"regret": self._regret(rule), "control": self._regret(control)}
        names = {"budget": scores.budget, "rule": rule.name, "control_name": control.name}
        search = _best([row for row in scores.strategies if row.cost.value <= SEARCH], "training")
        if search is not None:
            facts |= {"search": self._regret(search), "search cost": Fact(value=search.cost.value, unit="share")}
            names["search_name"] = search.name
        return Check(name="another budget", passed=is_better(rule, control), facts=facts, names=names)

    def _chosen_anew(self, scores: BudgetScores, answer: Check) -> Iterator[Check]:
        """Yield whether the rule that is chosen by the other families is better than looking at no model."""
        for row in scores.strategies:
            if row.name == CHOSEN_ANEW and "control" in answer.facts:
                passed = row.mean.value < answer.facts["control"].value
                yield Check(name="chosen anew", passed=passed, facts={"anew": self._regret(row)})

    def _regret(self, row: Row) -> Fact:
        """Return the mean regret of a strategy with its bootstrap interval."""
        return Fact(value=row.mean.value, interval=row.mean.interval, level=self.level, split="test", better="lower")

    @property
    def table(self) -> Table:
        """A row a budget and strategy: its regret and cost, with a chart of those worth printing under each budget."""
        rows = [(scores, strategy) for scores in reversed(self.budgets) for strategy in scores.strategies]
        printed = {scores.budget: {row.name for row in shown_strategies(scores)} for scores in self.budgets}
        whole = strategies_table([strategy for _, strategy in rows])
        budget = Column("budget", [scores.budget for scores, _ in rows], shown=len(self.budgets) > 1, more=True)
        listed = [strategy.name in printed[scores.budget] for scores, strategy in rows]
        axis = Column(
            "axis",
            [max(strategy.cost.value, LEAST) for _, strategy in rows],
            title="cost",
            form=percent,
            quantity=Quantity("cost of choosing, share of the paper’s sweep", best="lower"),
            shown=False,
        )
        charts = (
            Chart(
                lines=(Line("regret", interval="regret_interval"),),
                name=f"dropbench-{scores.budget}",
                heading=f"Regret versus cost, budget {scores.budget}",
                kind="cost",
                x="axis",
                by="needs",
                label="strategy",
                where=(("budget", scores.budget), ("listed", True)),
            )
            for scores in reversed(self.budgets)
        )
        best = best_rule(self.budgets[-1])
        return replace(
            whole,
            columns=(*whole.columns, budget, Column("listed", listed, shown=False), axis),
            marks=tuple("chosen" if strategy is best else None for _, strategy in rows),
            charts=tuple(charts),
        )

    @property
    def details(self) -> tuple[Table, ...]:
        """How rules call drops, and which could not be scored, under each budget."""
        tables = []
        for scores in self.budgets:
            tables.append(rules_table(scores.rules, f"How each rule calls drops, budget {scores.budget}"))
            if scores.left_out:
                columns = Column("rule", list(scores.left_out)), Column("why", list(scores.left_out.values()))
                tables.append(Table(columns=columns, title=f"Left out, budget {scores.budget}"))
        return tuple(tables)

    @property
    def sources(self) -> dict[str, str]:
        """Where the models come from, and what intervals are of."""
        zoo = self.provenance
        return {
            "Models made by": zoo.command,
            "Models": "; ".join(zoo.notes),
            "Families": ", ".join(self.families),
            "Versions": ", ".join(f"{name} {version}" for name, version in zoo.versions.items()),
            "Created": zoo.created,
        }


def best_rule(scores: BudgetScores) -> Row | None:
    """Return that of the rules worth printing that looks at the model and has the lowest mean regret; None without."""
    return _best(shown_strategies(scores), "readings", "labels")


def best_control(scores: BudgetScores) -> Row | None:
    """Return that of the rules worth printing that looks at no model and has the lowest mean regret; None without."""
    return _best(shown_strategies(scores), "nothing")


def _best(strategies: Sequence[Row], *needs: Needs) -> Row | None:
    return min((row for row in strategies if row.needs in needs), key=lambda row: row.mean.value, default=None)


def is_better(rule: Row, control: Row) -> bool | None:
    """Return whether a rule is better than looking at no model; None where their intervals overlap."""
    if rule.mean.value >= control.mean.value:
        return False
    if rule.mean.interval is None or control.mean.interval is None:
        return None
    return True if rule.mean.upper < control.mean.lower else None


def worth_printing(names: Iterable[str]) -> list[str]:
    """Return the rules to print beside strategies by default: controls, one of each kind, and published rivals.

    Of rules on CKA with several references that with the MLM model of another seed, or with the first.
    """
    names, printed = list(names), []
    for pattern in WORTH_PRINTING:
        references = [name for name in names if name.startswith(cka_with("").replace(CKA, pattern))]
        matching = [name for name in names if name == pattern]
        matching += sorted(references, key=lambda name: not name.endswith(OTHER_SEED)) if pattern.endswith(CKA) else []
        printed += matching[:1]
    return printed


def shown_strategies(budget: BudgetScores) -> list[Row]:
    """Return the strategies that train, and the rules to print beside them."""
    rules = [rule.name for rule in budget.rules]
    hidden = set(rules) - set(worth_printing(rules))
    return [strategy for strategy in budget.strategies if strategy.name not in hidden]


# ---- tables: a row a strategy or rule --------------------------------------------------------------------------------


def strategies_table(strategies: Sequence[Row]) -> Table:
    """Return the regret and cost of strategies."""
    return _scores_table(
        strategies,
        "Strategies",
        "strategy:name needs regret:mean* cost models items:items_error seeds:seeds_error median ninth worst "
        "crossed:regret* held:coverage set_size enough:sufficient seen source",
        models={"of": lambda row: len(row.outcomes), "form": ""},
        regret={
            "meaning": "Points below the best layer on the test items, the mean.",
            "quantity": Quantity("mean regret, points", "test", "lower"),
        },
        items={"meaning": "Error of the regret over test items, at most: as if all models of a task erred alike."},
        seeds={"meaning": "Error of the regret over seeds, which are the models' own."},
        ninth={"title": "90 %", "meaning": "The 90 % quantile of the regret."},
        crossed={"meaning": "Against the layer that other seeds and items choose."},
        cost={"form": lambda share: f"{100 * share:.1f} %", "meaning": "Mean share of the paper's sweep."},
        held={"form": percent, "meaning": "Sets that hold the best layer, the mean chance; none without sets."},
        set_size={"title": "in set", "form": ".1f", "meaning": "Mean layers in the sets."},
        enough={"form": percent, "meaning": "Mean chance that the layer said to be within half a point of it is so."},
        seen={"of": lambda row: not row.fresh, "title": "seen seeds", "meaning": "Scored on seeds it looked at."},
        source={"meaning": "Who proposed it, or what it is a control for."},
    )


def rules_table(rules: Sequence[Row], title: str) -> Table:
    """Return how each rule calls drops."""
    return _scores_table(
        rules,
        title,
        "rule:name precision* recall* onset:onset_error* f1* regret:mean_regret* median:median_regret* cost* "
        "labels:labelled parameters missing",
        labels={"meaning": "Reads labels."},
        parameters={"meaning": "Tuned on other families; 0 for a rule that stands as it is."},
        missing={"meaning": "Models without what the rule reads; it calls no drop of them."},
        precision={"meaning": "Of its calls of a drop; none where it makes none."},
        recall={"meaning": "Of the models that drop."},
        f1={"title": "F1"},
        onset={"meaning": "Mean error in layers where there is a drop; a missed one is behind the last layer."},
        cost={"meaning": "Of fine-tuning the layer that is called and the last one.", "more": True},
    )


FIRST = ("strategy", "needs", "models", "regret", "regret_interval", "cost", "rule", "precision", "recall", "onset")
"""Columns that screens show unless all are asked for."""


def _scores_table(rows: Sequence[Row], title: str, names: str, **about: dict[str, Any]) -> Table:
    """Return a column a name, or `name:number`; of a score with a star the interval has a column beside it."""
    columns = list[Column]()
    for place in names.split():
        name, _, number = place.removesuffix("*").partition(":")
        options = {"title": name.replace("_", " "), "more": name not in FIRST, **about.get(name, {})}
        cells = list(map(options.pop("of", attrgetter(number or name)), rows))
        values = [cell.value if isinstance(cell, Statistic) else cell for cell in cells]
        form = ".2f" if place.endswith("*") or any(isinstance(value, float) for value in values) else ""
        columns.append(Column(name, values, **{"form": form} | options))
        if place.endswith("*"):
            ends = [cell and cell.interval for cell in cells]
            about_ends: dict[str, Any] = {"title": f"{options['title']} interval", "form": ".2f", "interval": True}
            columns.append(Column(f"{name}_interval", ends, more=f"{name}_interval" not in FIRST, **about_ends))
    return Table(columns=tuple(columns), title=title)
