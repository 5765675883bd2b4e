"""Scores of strategies and rules on DropBench, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooProvenance
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import CKA, cka_with
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.numbers import confidence
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, percent

LEAST = 0.01
"""Where costs of nothing stand on the axis, which is logarithmic."""
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
    def table(self) -> Table:
        """A row a budget and strategy: its regret and cost."""
        rows = [(scores.budget, strategy) for scores in self.budgets for strategy in scores.strategies]
        whole = strategies_table([strategy for _, strategy in rows], "All strategies and rules")
        return replace(whole, columns=(Column("budget", tuple(budget for budget, _ in rows)), *whole.columns))

    @property
    def heading(self) -> str:
        """What it is of."""
        return "The cost of finding the best layer, and its regret"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `declared_page`."""
        provenance, (first, *further) = self.provenance, [_with_chart(budget) for budget in self.budgets]
        tables = zip(self.budgets, (replace(first, charts=()), *further), strict=True)
        return {
            "kind": "DropBench",
            "lead": tuple(map(_lead, self.budgets)),
            "first": first,
            "account": (f"Families: {', '.join(self.families)}. Intervals: {confidence(self.level)}.",),
            "sections": {
                f"Regret versus cost of each strategy, budget {budget.budget}": (strategies,)
                for budget, strategies in tables
            },
            "sources": {
                "Models made by": provenance.command,
                "Models": "; ".join(provenance.notes),
                "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
                "Created": provenance.created,
            },
        }

    @property
    def summary(self) -> str:
        """The result in one line."""
        budgets = ", ".join(f"{len(budget.truths)} models under {budget.budget}" for budget in self.budgets)
        return f"{len(self.families)} families: {budgets}"


def _lead(budget: BudgetScores) -> str:
    truths = budget.truths.values()
    return (
        f"Budget {budget.budget}: {sum(truth.drop for truth in truths)} of {len(truths)} models drop; on average "
        f"{sum(len(truth.best_layers) for truth in truths) / len(truths):.1f} layers may be the best one."
    )


def _with_chart(budget: BudgetScores) -> Table:
    """Return the strategies that are printed, with their chart of regret against cost."""
    strategies = strategies_table(shown_strategies(budget))
    costs = [max(float(cost), LEAST) for cost in strategies.column("cost").values]  # type: ignore[arg-type]
    about = Quantity("cost of choosing, share of the paper’s sweep", best="lower")
    chart = Chart(
        lines=(Line("regret", interval="regret_interval"),),
        name=f"dropbench-{budget.budget}",
        kind="cost",
        x="axis",
        by="needs",
    )
    axis = Column("axis", costs, title="cost", form=".0%", quantity=about, shown=False)
    return replace(strategies.with_columns(axis), charts=(chart,))


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


def shown_strategies(budget: BudgetScores, *, everything: bool = False) -> list[Row]:
    """Return the strategies that train, and the rules to print beside them."""
    rules = [rule.name for rule in budget.rules]
    hidden = set() if everything else set(rules) - set(worth_printing(rules))
    return [strategy for strategy in budget.strategies if strategy.name not in hidden]


# ---- tables: a row a strategy or rule --------------------------------------------------------------------------------


def strategies_table(strategies: Sequence[Row], title: str = "Strategies") -> Table:
    """Return the regret and cost of strategies."""
    return _scores_table(
        strategies,
        title,
        "strategy:name needs models regret:mean* items:items_error seeds:seeds_error median ninth worst "
        "crossed:regret* cost held:coverage set_size enough:sufficient seen source",
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


def rules_table(rules: Sequence[Row]) -> Table:
    """Return how each rule calls drops."""
    return _scores_table(
        rules,
        "How each rule calls drops",
        "rule:name labels:labelled parameters missing precision* recall* f1* onset:onset_error* regret:mean_regret* "
        "median:median_regret* cost*",
        labels={"meaning": "Reads labels."},
        parameters={"meaning": "Tuned on other families; 0 for a rule that stands as it is."},
        missing={"meaning": "Models without what the rule reads; it calls no drop of them."},
        precision={"meaning": "Of its calls of a drop; none where it makes none."},
        recall={"meaning": "Of the models that drop."},
        f1={"title": "F1"},
        onset={"meaning": "Mean error in layers where there is a drop; a missed one is behind the last layer."},
        cost={"meaning": "Of fine-tuning the layer that is called and the last one."},
    )


def _scores_table(rows: Sequence[Row], title: str, names: str, **about: dict[str, Any]) -> Table:
    """Return a column a name, or `name:number`; of a score with a star the interval has a column beside it."""
    columns = list[Column]()
    for place in names.split():
        name, _, number = place.removesuffix("*").partition(":")
        options = {"title": name.replace("_", " "), **about.get(name, {})}
        cells = list(map(options.pop("of", attrgetter(number or name)), rows))
        values = [cell.value if isinstance(cell, Statistic) else cell for cell in cells]
        form = ".2f" if place.endswith("*") or any(isinstance(value, float) for value in values) else ""
        columns.append(Column(name, values, **{"form": form} | options))
        if place.endswith("*"):
            ends = [cell and cell.interval for cell in cells]
            about_ends: dict[str, Any] = {"title": f"{options['title']} interval", "form": ".2f", "interval": True}
            columns.append(Column(f"{name}_interval", ends, **about_ends))
    return Table(columns=tuple(columns), title=title)
