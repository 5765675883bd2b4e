"""Scores of strategies, rules and curves on DropBench, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooProvenance
from layerprobe.prediction.values import Truth
from layerprobe.readings.registry import CKA, RIVALS, cka_with
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.numbers import confidence
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, columns_of, percent

LEAST = 0.01
"""Where costs of nothing stand on the axis, which is logarithmic."""
WORTH_PRINTING = (
    *("last layer", "fixed fraction of depth", "random layer", "plateau of CKA", "fall of CKA", "fall of InfoNCE"),
    *("fall of effective rank", "best layer by probe", "best layer by LogME", "best layer by H-score"),
    *("best layer by LinMSE", "best layer by kNN", "L3Prune small", "L3Prune large", "TransformerRanker bestlayer"),
    *(f"best layer by {name}" for name in RIVALS),
)
"""The rules that are printed by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """A rule's prediction for a model that it was not tuned on, and its outcome; means for a random rule."""

    model: str
    family: str
    missing: bool
    """Whether the model lacks what the rule reads; it then calls no drop and takes the last layer."""
    drop: bool
    """The truth."""
    called: float
    """Probability that the rule says drop; 0 or 1 but for a random rule."""
    recommended: tuple[int, ...]
    """The recommended layer; several are equally likely."""
    regret: float
    """Test score of the best layer less that of the recommended one, x 100; negative where the rule was luckier."""
    onset_error: float | None
    """Layers between the onsets; None where the model does not drop."""
    cost: float
    """Share of the full sweep's training that it takes to confirm the call, 0 .. 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A statistic over the models, with its bootstrap interval."""

    value: float
    lower: float | None
    """Of the bootstrap interval; None where nothing could be redrawn."""
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleScores:
    """What one rule scores on the models of the other families than it was tuned on."""

    rule: str
    labelled: bool
    """Whether it reads labels."""
    parameters: int
    """Tuned on other families; 0 for a rule that stands as it is."""
    precision: Statistic | None
    """Of its calls of a drop; None where it makes none."""
    recall: Statistic | None
    """Of the models that drop; None where none does."""
    f1: Statistic | None
    """None where no model drops and none is called."""
    onset_error: Statistic | None
    """Mean, in layers, over the models that drop; a missed one counts as an onset behind the last layer."""
    mean_regret: Statistic
    """x 100."""
    median_regret: Statistic
    """x 100."""
    cost: Statistic
    """Mean share of the full sweep's training, 0 .. 1."""
    outcomes: tuple[RuleOutcome, ...]
    """By model."""

    @property
    def missing(self) -> int:
        """How many models lack what the rule reads."""
        return sum(outcome.missing for outcome in self.outcomes)


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
    any are left; at least 0 but for a model of its own."""
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
class StrategyScores:
    """What a strategy scores over the models that have what it needs."""

    strategy: str
    source: str
    """Who proposed it, or what it is a control for."""
    needs: Needs
    fresh: bool
    """Whether it is scored on seeds that it did not look at, with every model."""
    mean: Statistic
    """Of the distances to the best layer on the test items, in points."""
    median: Statistic
    ninth: Statistic
    """Their 90 % quantile."""
    worst: float
    regret: Statistic
    """Mean regret against a layer that other items and seeds choose, in points."""
    items_error: float | None
    """Standard error of the mean distance over test items, at most: as if all models of a task erred alike."""
    seeds_error: float | None
    """The same over seeds, which are the models' own."""
    cost: Statistic
    """Mean share of the paper's sweep, 0 .. 1 and more."""
    coverage: Statistic | None
    """Mean chance that the stated set holds the best layer; None without sets."""
    set_size: float | None
    """Mean layers in it."""
    sufficient: Statistic | None
    """Mean chance that the smallest layer said to be within half a point of the best is so; None if none is said to."""
    outcomes: tuple[StrategyOutcome, ...]
    """By model."""
    letters: str = ""
    """Two rows of a budget that share one do not differ significantly, all pairs at once, see `lettered`; empty for
    rows that lack models, or that stand in the whole table alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorScores:
    """How well the fall of a curve to the last layer tells models that drop from others."""

    detector: str
    needs: Needs
    models: int
    drops: int
    """Of these models."""
    area: Statistic | None
    """Under the ROC curve: how often a model that drops has the larger fall, ties by half; None if all or none do."""
    precision: Statistic | None
    """Where a drop is called above the threshold with the best F1 on the other families; None if none is called."""
    recall: Statistic | None
    effect: float | None
    """Spearman's correlation of the falls with the true effects over models; None for fewer than three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveScores:
    """How alike a curve is to the test scores by layer of the same model."""

    curve: str
    needs: Needs
    models: int
    mean: Statistic
    """Of Spearman's correlation over the layers of a model."""
    median: Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class JointScores:
    """What the model of a scan, cut at a layer, scores on the test items less TMFT at that layer, in points."""

    weighting: Weighting
    models: int
    at_best: Statistic
    """At the layer that is best for TMFT."""
    at_last: Statistic
    overall: Statistic
    """In the mean over the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetScores:
    """The scores of rules, strategies and curves under one budget of fine-tuning, on the same models."""

    budget: str
    clusters: str
    """What the bootstrap redraws: families, or models where families are few, those of one encoder together."""
    truths: dict[str, Truth]
    """By model."""
    rules: tuple[RuleScores, ...]
    """The lowest mean regret first; those without labels before those with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Rules that could not be scored, and why."""
    strategies: tuple[StrategyScores, ...] = ()
    """Ways to choose a layer, the rules among them; the cheapest first."""
    detectors: tuple[DetectorScores, ...] = ()
    """What detects a drop, the best first."""
    curves: tuple[CurveScores, ...] = ()
    """What looks like the test scores, the best first."""
    joint: tuple[JointScores, ...] = ()
    """Models of scans against TMFT."""


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
        """What its page has besides its table, see `layerprobe.results.declared`."""
        provenance, (first, *further) = self.provenance, [_with_chart(budget) for budget in self.budgets]
        sections: dict[str, tuple[Table, ...]] = {}
        for budget, strategies in zip(self.budgets, (replace(first, charts=()), *further), strict=True):
            sections[f"Regret versus cost of each strategy, budget {budget.budget}"] = (strategies,)
            sections[f"What detects a drop, budget {budget.budget}"] = tuple(detection_tables(budget))
        return {
            "kind": "DropBench",
            "lead": tuple(map(_lead, self.budgets)),
            "first": first,
            "account": (f"Families: {', '.join(self.families)}. Intervals: {confidence(self.level)}.",),
            "sections": sections,
            "sources": {
                "Models made by": provenance.command,
                "Models": "; ".join(provenance.notes),
                "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
                "Created": provenance.created,
            },
            "terms": ("Drop", "Cost", "Held", "Within half a point", "Area"),
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
        finding=f"Mean regret versus cost; costs of less than {LEAST:.0%} are drawn there.",
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


def shown_strategies(budget: BudgetScores, *, everything: bool = False) -> list[StrategyScores]:
    """Return the strategies that train, and the rules to print beside them."""
    rules = [rule.rule for rule in budget.rules]
    hidden = set() if everything else set(rules) - set(worth_printing(rules))
    return [strategy for strategy in budget.strategies if strategy.strategy not in hidden]


# ---- tables: a row a strategy, detector, curve, weighting or rule --------------------------------------------------


def strategies_table(strategies: Sequence[StrategyScores], title: str = "Strategies") -> Table:
    """Return the regret and cost of strategies."""
    return _scores_table(
        strategies,
        title,
        "strategy needs models regret:mean* letters items:items_error seeds:seeds_error median ninth worst "
        "crossed:regret* cost held:coverage set_size enough:sufficient seen source",
        models={"of": lambda row: len(row.outcomes), "form": ""},
        regret={
            "meaning": "Points below the best layer on the test items, the mean.",
            "quantity": Quantity("mean regret, points", "test", "lower"),
        },
        letters={"meaning": "Rows that share a letter do not differ significantly."},
        items={"meaning": "Error of the regret over test items."},
        seeds={"meaning": "Error of the regret over seeds."},
        ninth={"title": "90 %"},
        crossed={"meaning": "Against the layer that other seeds and items choose."},
        cost={"form": lambda share: f"{100 * share:.1f} %"},
        held={"form": percent, "meaning": "Sets that hold the best layer."},
        set_size={"title": "in set", "form": ".1f"},
        enough={"form": percent, "meaning": "Within half a point of it."},
        seen={"of": lambda row: not row.fresh, "title": "seen seeds", "meaning": "Scored on seeds it looked at."},
    )


def detection_tables(budget: BudgetScores, most: int | None = None) -> list[Table]:
    """Return what detects a drop, what looks like the test scores, both by so many curves, and scans against TMFT."""
    tables = (
        _scores_table(
            budget.detectors[:most],
            "How well a fall to the last layer detects a drop",
            "curve:detector needs models drops area* precision* recall* effect",
            effect={"title": "with effect", "meaning": "Correlation."},
        ),
        _scores_table(
            budget.curves[:most],
            "Spearman's correlation with the test scores of a model's layers",
            "curve needs models mean* median*",
        ),
        _scores_table(
            budget.joint,
            "Models of scans, cut at a layer, less TMFT there, in points",
            "weighting models best_layer:at_best* last_layer:at_last* all_layers:overall*",
        ),
    )
    return [table for table in tables if len(table)]


def rules_table(rules: Sequence[RuleScores]) -> Table:
    """Return how each rule calls drops."""
    return _scores_table(
        rules,
        "How each rule calls drops",
        "rule labels:labelled parameters missing precision* recall* f1* onset:onset_error* regret:mean_regret* "
        "median:median_regret* cost*",
        labels={"meaning": "Reads labels."},
        missing={"meaning": "Models without what the rule reads."},
        f1={"title": "F1"},
        onset={"meaning": "Mean error in layers where there is a drop."},
        cost={"meaning": "Of the two layers of confirm."},
    )


def _scores_table(rows: Sequence[Any], title: str, names: str, **about: dict[str, Any]) -> Table:
    """Return a column a name, or `name:attribute`; of a score with a star the interval has a column beside it."""
    column, columns = columns_of(rows), list[Column]()
    for place in names.split():
        name, _, attribute = place.removesuffix("*").partition(":")
        options = {"title": name.replace("_", " "), **about.get(name, {})}
        read = options.pop("of", attrgetter(attribute or name))
        values = [read(row) for row in rows]
        form = ".2f" if place.endswith("*") or any(isinstance(value, Statistic | float) for value in values) else ""
        columns.append(column(name, lambda row, read=read: _value(read(row)), **{"form": form} | options))
        if place.endswith("*"):
            columns.append(
                column(
                    f"{name}_interval",
                    lambda row, read=read: _ends(read(row)),
                    title=f"{options['title']} interval",
                    form=".2f",
                    interval=True,
                )
            )
    return Table(columns=tuple(columns), title=title)


def _value(cell: object) -> object:
    return cell.value if isinstance(cell, Statistic) else cell


def _ends(score: Statistic | None) -> tuple[float, float] | None:
    return None if score is None or score.lower is None or score.upper is None else (score.lower, score.upper)
