"""The scores of DropBench as tables: a row a strategy, detector, curve, weighting or rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from layerprobe.results.charts import Quantity
from layerprobe.results.table import Column, Table, columns_of, percent

if TYPE_CHECKING:
    from layerprobe.lab.dropbench.values import (
        BudgetScores,
        CurveScores,
        DetectorScores,
        JointScores,
        RuleScores,
        Score,
        StrategyScores,
    )


def strategies_table(strategies: Sequence[StrategyScores], title: str = "Strategies") -> Table:
    """Return the regret and cost of strategies."""
    column, score = columns_of(strategies), _scores_of(strategies)
    return Table(
        columns=(
            column("strategy"),
            column("needs"),
            column("models", lambda row: len(row.outcomes)),
            *score(
                "regret",
                lambda row: row.mean,
                meaning="Points below the best layer on the test items, the mean.",
                quantity=Quantity("mean regret, points", "test", "lower"),
            ),
            column("letters", meaning="Rows that share a letter do not differ significantly."),
            column("items", lambda row: row.items_error, form=".2f", meaning="Error of the regret over test items."),
            column("seeds", lambda row: row.seeds_error, form=".2f", meaning="Error of the regret over seeds."),
            column("median", lambda row: row.median.value, form=".2f"),
            column("ninth", lambda row: row.ninth.value, title="90 %", form=".2f"),
            column("worst", form=".2f"),
            *score("crossed", lambda row: row.regret, meaning="Against the layer that other seeds and items choose."),
            column("cost", lambda row: row.cost.value, form=lambda share: f"{100 * share:.1f} %"),
            column("held", lambda row: _value(row.coverage), form=percent, meaning="Sets that hold the best layer."),
            column("set_size", title="in set", form=".1f"),
            column("enough", lambda row: _value(row.sufficient), form=percent, meaning="Within half a point of it."),
            column("seen", lambda row: not row.fresh, title="seen seeds", meaning="Scored on seeds it looked at."),
            column("source"),
        ),
        title=title,
    )


def detection_tables(budget: BudgetScores, most: int | None = None) -> list[Table]:
    """Return what detects a drop, what looks like the test scores, both by so many curves, and scans against TMFT."""
    tables = detectors_table(budget.detectors[:most]), curves_table(budget.curves[:most]), joint_table(budget.joint)
    return [table for table in tables if len(table)]


def detectors_table(detectors: Sequence[DetectorScores]) -> Table:
    """Return how well the fall of each curve to the last layer detects a drop."""
    column, score = columns_of(detectors), _scores_of(detectors)
    return Table(
        columns=(
            column("curve", lambda row: row.detector),
            column("needs"),
            column("models"),
            column("drops"),
            *score("area"),
            *score("precision"),
            *score("recall"),
            column("effect", title="with effect", form=".2f", meaning="Correlation."),
        ),
        title="How well a fall to the last layer detects a drop",
    )


def curves_table(curves: Sequence[CurveScores]) -> Table:
    """Return how alike curves are to the test scores of a model's layers."""
    column, score = columns_of(curves), _scores_of(curves)
    return Table(
        columns=(
            column("curve"),
            column("needs"),
            column("models"),
            *score("mean"),
            *score("median"),
        ),
        title="Spearman's correlation with the test scores of a model's layers",
    )


def joint_table(scans: Sequence[JointScores]) -> Table:
    """Return what models of scans score, cut at a layer, less TMFT there."""
    column, score = columns_of(scans), _scores_of(scans)
    return Table(
        columns=(
            column("weighting"),
            column("models"),
            *score("best_layer", lambda row: row.at_best),
            *score("last_layer", lambda row: row.at_last),
            *score("all_layers", lambda row: row.overall),
        ),
        title="Models of scans, cut at a layer, less TMFT there, in points",
    )


def rules_table(rules: Sequence[RuleScores]) -> Table:
    """Return how each rule calls drops."""
    column, score = columns_of(rules), _scores_of(rules)
    return Table(
        columns=(
            column("rule"),
            column("labels", lambda row: row.labelled, meaning="Reads labels."),
            column("parameters"),
            column("missing", meaning="Models without what the rule reads."),
            *score("precision"),
            *score("recall"),
            *score("f1", title="F1"),
            *score("onset", lambda row: row.onset_error, meaning="Mean error in layers where there is a drop."),
            *score("regret", lambda row: row.mean_regret),
            *score("median", lambda row: row.median_regret),
            *score("cost", meaning="Of the two layers of confirm."),
        ),
        title="How each rule calls drops",
    )


def _scores_of(rows: Sequence[Any]) -> Callable[..., tuple[Column, Column]]:
    """Return what makes the columns of a score of rows and of its interval."""
    column = columns_of(rows)

    def score(name: str, of: Callable[[Any], Score | None] | None = None, **about: Any) -> tuple[Column, Column]:
        read, title = of or attrgetter(name), about.setdefault("title", name.replace("_", " "))
        ends = column(
            f"{name}_interval", lambda row: _ends(read(row)), title=f"{title} interval", form=".2f", interval=True
        )
        return column(name, lambda row: _value(read(row)), form=".2f", **about), ends

    return score


def _value(score: Score | None) -> float | None:
    return None if score is None else score.value


def _ends(score: Score | None) -> tuple[float, float] | None:
    return None if score is None or score.lower is None or score.upper is None else (score.lower, score.upper)
