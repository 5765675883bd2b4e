"""Scores of strategies and rules on DropBench, and their tables."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooProvenance
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import CKA, cka_with
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, percent

CHOSEN_ANEW = "best rule of the other families"
"""The rule selected for each family by the other families: its scores are not those of the luckiest of many rules."""
LEAST = 0.01
"""Position of zero costs on the logarithmic axis."""
SEARCH = 0.2
"""Highest cost of searches that are compared with rules, as a share of the paper's sweep."""
WORTH_PRINTING = (
    *("last layer", "fixed fraction of depth", "random layer", "plateau of CKA", "fall of CKA", "fall of InfoNCE"),
    *("fall of effective rank", "best layer by probe", "best layer by LogME"),
    *("best layer by LinMSE", "best layer by kNN", "L3Prune small", "L3Prune large", "TransformerRanker bestlayer"),
    *("best layer by LOES without labels", "best layer by alpha-ReQ", "best layer by subspace displacement"),
    *("best layer by neighbour retention", "best layer by LOES", "best layer by KITE"),
)
"""Rules that are printed by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A statistic over the models, with its bootstrap interval."""

    value: float
    lower: float | None
    """Lower end of the bootstrap interval; None if nothing could be resampled."""
    upper: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap interval."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)


Needs = Literal["nothing", "readings", "labels", "training"]
"""Input of a strategy; readings: of embeddings, without labels; labels: readings that need them; training:
fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOutcome:
    """A strategy's choices for one model, all equally likely, with the regret and cost of each."""

    model: str
    family: str
    layers: tuple[int, ...]
    distances: tuple[float, ...]
    """Mean test score of the best layer minus that of the chosen one, x 100, on unread seeds if
    any are left; at least 0."""
    regrets: tuple[float, ...]
    """The same against the layer chosen by other seeds on the other half of the test items; can be negative."""
    costs: tuple[float, ...]
    """Cost of choosing, as a share of the paper's sweep: every layer with five seeds."""
    items_error: float | None
    """Standard error of the distance over test items, mean over choices; None if unknown."""
    seeds_error: float | None
    """Standard error of the distance over seeds."""
    coverage: float | None
    """Chance that its stated set contains the best layer, by the errors of the test scores; None without a set."""
    set_size: float | None
    """Number of layers in the set, mean over choices."""
    sufficient: float | None
    """Chance that the layer stated to be within half a point of the best is so; None without a statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A rule or strategy with its scores over the models, such as `row.regret`."""

    kind: Literal["rule", "strategy"]
    """A rule is scored on families that it was not tuned on."""
    name: str
    values: dict[str, Any]
    """Scores and other values by name, which become attributes of the row; the columns of the tables below explain
    them. Layers and outcomes are by model, and an undefined score is None, such as the precision without
    predictions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.values:
            raise AttributeError(f"expected what a {self.kind} has, {', '.join(self.values)}, got {name}")
        return self.values[name]

    def as_plain(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the form in JSON: the name under that of the kind, and the values beside it."""
        return {self.kind: self.name, **fields["values"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetScores:
    """The scores of rules and strategies under one budget of fine-tuning, on the same models."""

    budget: str
    clusters: str
    """Unit of the bootstrap: families, or encoders if families are few."""
    truths: dict[str, Truth]
    """Truth of each model, by name."""
    rules: tuple[Contestant, ...]
    """Rules, by ascending mean regret; those without labels first."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Rules that could not be scored, with the reason."""
    strategies: tuple[Contestant, ...] = ()
    """Strategies, including rules; the cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bench(Shown):
    """Scores of drop predictors on a zoo, leave-one-family-out."""

    provenance: ZooProvenance
    """Provenance of the zoo."""
    families: tuple[str, ...]
    level: float
    """Confidence level of the intervals."""
    draws: int
    """Number of bootstrap draws."""
    budgets: tuple[BudgetScores, ...]

    @property
    def conclusion(self) -> Conclusion:
        """How far the best rule is from the best layer, compared with the best rule that reads no model.

        It uses the last budget, which is the longest in layerprobe's zoos; the others are checks.
        """
        scores, truths = self.budgets[-1], self.budgets[-1].truths.values()
        facts = counts(models=len(truths), drops=sum(truth.drop for truth in truths), families=len(self.families))
        facts |= counts(draws=self.draws, left=len(scores.left_out))
        answer, *others = map(self._check_best, reversed(self.budgets))
        checks = [Check(name="redrawn", passed=None, names={"clusters": scores.clusters})]
        if scores.left_out:
            checks.append(Check(name="rules left out", passed=None))
        return Conclusion(
            kind="bench",
            case="rules" if answer.facts else "scored",
            verdict={True: Verdict.DECIDED, False: Verdict.FAILED, None: Verdict.UNDECIDED}[answer.passed],
            facts={**answer.facts, **facts},
            names=answer.names,
            checks=(*self._check_reselected(scores, answer), *others, *checks),
        )

    def _check_best(self, scores: BudgetScores) -> Check:
        """Return whether the best rule under a budget beats rules that read no model, with the best search."""
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

    def _check_reselected(self, scores: BudgetScores, answer: Check) -> Iterator[Check]:
        """Yield whether the rule selected by the other families beats rules that read no model."""
        for row in scores.strategies:
            if row.name == CHOSEN_ANEW and "control" in answer.facts:
                passed = row.mean.value < answer.facts["control"].value
                yield Check(name="chosen anew", passed=passed, facts={"anew": self._regret(row)})

    def _regret(self, row: Contestant) -> Fact:
        """Return the mean regret of a strategy with its bootstrap interval."""
        return Fact(value=row.mean.value, interval=row.mean.interval, level=self.level, split="test", better="lower")

    @property
    def table(self) -> Table:
        """One row per budget and strategy with regret and cost, and a chart of the printed ones under each budget."""
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
        """Drop predictions of rules, and rules that could not be scored, under each budget."""
        tables = []
        for scores in self.budgets:
            tables.append(rules_table(scores.rules, f"How each rule calls drops, budget {scores.budget}"))
            if scores.left_out:
                columns = Column("rule", list(scores.left_out)), Column("why", list(scores.left_out.values()))
                tables.append(Table(columns=columns, title=f"Left out, budget {scores.budget}"))
        return tuple(tables)

    @property
    def sources(self) -> dict[str, str]:
        """Origin of the models, and the unit of the bootstrap."""
        zoo = self.provenance
        return {
            "Models made by": zoo.command,
            "Models": "; ".join(zoo.notes),
            "Families": ", ".join(self.families),
            "Versions": ", ".join(f"{name} {version}" for name, version in zoo.versions.items()),
            "Created": zoo.created,
        }


def best_rule(scores: BudgetScores) -> Contestant | None:
    """Return the printed rule that reads the model and has the lowest mean regret; None without one."""
    return _best(shown_strategies(scores), "readings", "labels")


def best_control(scores: BudgetScores) -> Contestant | None:
    """Return the printed rule that reads no model and has the lowest mean regret; None without one."""
    return _best(shown_strategies(scores), "nothing")


def _best(strategies: Sequence[Contestant], *needs: Needs) -> Contestant | None:
    return min((row for row in strategies if row.needs in needs), key=lambda row: row.mean.value, default=None)


def is_better(rule: Contestant, control: Contestant) -> bool | None:
    """Return whether a rule beats reading no model; None if their intervals overlap."""
    if rule.mean.value >= control.mean.value:
        return False
    if rule.mean.interval is None or control.mean.interval is None:
        return None
    return True if rule.mean.upper < control.mean.lower else None


def worth_printing(names: Iterable[str]) -> list[str]:
    """Return the rules to print with strategies by default: controls, one of each kind, and published rivals.

    Among rules on CKA with several references, it is the one with the MLM model of another seed, or the first.
    """
    names, printed = list(names), []
    for pattern in WORTH_PRINTING:
        references = [name for name in names if name.startswith(cka_with("").replace(CKA, pattern))]
        matching = [name for name in names if name == pattern]
        matching += sorted(references, key=lambda name: not name.endswith(OTHER_SEED)) if pattern.endswith(CKA) else []
        printed += matching[:1]
    return printed


def shown_strategies(budget: BudgetScores) -> list[Contestant]:
    """Return the strategies that train, and the rules to print with them."""
    rules = [rule.name for rule in budget.rules]
    hidden = set(rules) - set(worth_printing(rules))
    return [strategy for strategy in budget.strategies if strategy.name not in hidden]


def strategies_table(strategies: Sequence[Contestant]) -> Table:
    """Return the regret and cost of strategies."""
    return _scores_table(
        strategies,
        "Strategies",
        "strategy:name needs regret:mean* cost models items:items_error seeds:seeds_error median ninth worst "
        "crossed:regret* held:coverage set_size enough:sufficient seen source",
        models={"of": lambda row: len(row.outcomes), "form": ""},
        regret={
            "meaning": "Mean points below the best layer on the test items.",
            "quantity": Quantity("mean regret, points", "test", "lower"),
        },
        items={"meaning": "Upper limit of the regret's error over test items, for equal errors within a task."},
        seeds={"meaning": "Error of the regret over seeds, which differ between models."},
        ninth={"title": "90 %", "meaning": "The 90 % quantile of the regret."},
        crossed={"meaning": "Regret against the layer that other seeds and items choose."},
        cost={"form": lambda share: f"{100 * share:.1f} %", "meaning": "Mean share of the paper's sweep."},
        held={"form": percent, "meaning": "Mean chance that the set contains the best layer; empty without sets."},
        set_size={"title": "in set", "form": ".1f", "meaning": "Mean number of layers in the sets."},
        enough={"form": percent, "meaning": "Mean chance that the layer stated to be within half a point is so."},
        seen={"of": lambda row: not row.fresh, "title": "seen seeds", "meaning": "Scored on seeds that it read."},
        source={"meaning": "Author, or purpose of a control."},
    )


def rules_table(rules: Sequence[Contestant], title: str) -> Table:
    """Return the drop predictions of each rule."""
    return _scores_table(
        rules,
        title,
        "rule:name precision* recall* onset:onset_error* f1* regret:mean_regret* median:median_regret* cost* "
        "labels:labelled parameters missing",
        labels={"meaning": "Reads labels."},
        parameters={"meaning": "Parameters tuned on other families; 0 for a rule without any."},
        missing={"meaning": "Models without the rule's readings; it predicts no drop for them."},
        precision={"meaning": "Precision of its drop predictions; empty without any."},
        recall={"meaning": "Recall over the models that drop."},
        f1={"title": "F1"},
        onset={"meaning": "Mean error in layers if there is a drop; a missed one counts as after the last layer."},
        cost={"meaning": "Cost of fine-tuning the predicted layer and the last one.", "more": True},
    )


FIRST = ("strategy", "needs", "models", "regret", "regret_interval", "cost", "rule", "precision", "recall", "onset")
"""Columns that screens show by default."""


def _scores_table(rows: Sequence[Contestant], title: str, names: str, **about: dict[str, Any]) -> Table:
    """Return one column per name, or `name:number`; a score with a star gets a column with its interval."""
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
