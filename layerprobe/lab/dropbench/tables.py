"""The scores of DropBench as tables: a row a strategy, detector, curve, weighting or rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from layerprobe.results.table import Column, Form, Table, percent

if TYPE_CHECKING:
    from layerprobe.lab.dropbench.values import (
        CurveScores,
        DetectorScores,
        JointScores,
        RuleScores,
        Score,
        StrategyScores,
    )


def strategies_table(strategies: Sequence[StrategyScores], title: str = "Strategies") -> Table:
    """Return what strategies lose for what they cost."""
    column, score = _columns_of(strategies)
    return Table(
        columns=(
            column("strategy", lambda row: row.strategy),
            column("needs", lambda row: row.needs),
            column("models", lambda row: len(row.outcomes)),
            *score("regret", lambda row: row.mean, meaning="Points below the best layer on the test items, the mean."),
            column("items", lambda row: row.items_error, form=".2f", meaning="Error of the regret over test items."),
            column("seeds", lambda row: row.seeds_error, form=".2f", meaning="Error of the regret over seeds."),
            column("median", lambda row: row.median.value, form=".2f"),
            column("ninth", lambda row: row.ninth.value, title="90 %", form=".2f"),
            column("worst", lambda row: row.worst, form=".2f"),
            *score("crossed", lambda row: row.regret, meaning="Against the layer that other seeds and items choose."),
            column("cost", lambda row: row.cost.value, form=lambda share: f"{100 * share:.1f} %"),
            column("held", lambda row: _value(row.coverage), form=percent, meaning="Sets that hold the best layer."),
            column("set_size", lambda row: row.set_size, title="in set", form=".1f"),
            column("enough", lambda row: _value(row.sufficient), form=percent, meaning="Within half a point of it."),
            column("seen", lambda row: not row.fresh, title="seen seeds", meaning="Scored on seeds it looked at."),
            column("source", lambda row: row.source),
        ),
        title=title,
    )


def detectors_table(detectors: Sequence[DetectorScores]) -> Table:
    """Return how well the fall of each curve to the last layer tells a drop."""
    column, score = _columns_of(detectors)
    return Table(
        columns=(
            column("curve", lambda row: row.detector),
            column("needs", lambda row: row.needs),
            column("models", lambda row: row.models),
            column("drops", lambda row: row.drops),
            *score("area", lambda row: row.area),
            *score("precision", lambda row: row.precision),
            *score("recall", lambda row: row.recall),
            column("effect", lambda row: row.effect, title="with effect", form=".2f", meaning="Correlation."),
        ),
        title="What tells a drop, by its fall to the last layer",
    )


def curves_table(curves: Sequence[CurveScores]) -> Table:
    """Return how alike curves are to the test scores of a model's layers."""
    column, score = _columns_of(curves)
    return Table(
        columns=(
            column("curve", lambda row: row.curve),
            column("needs", lambda row: row.needs),
            column("models", lambda row: row.models),
            *score("mean", lambda row: row.mean),
            *score("median", lambda row: row.median),
        ),
        title="Spearman's correlation with the test scores of a model's layers",
    )


def joint_table(scans: Sequence[JointScores]) -> Table:
    """Return what models of scans score, cut at a layer, less TMFT there."""
    column, score = _columns_of(scans)
    return Table(
        columns=(
            column("weighting", lambda row: row.weighting),
            column("models", lambda row: row.models),
            *score("best_layer", lambda row: row.at_best),
            *score("last_layer", lambda row: row.at_last),
            *score("all_layers", lambda row: row.overall),
        ),
        title="Models of scans, cut at a layer, less TMFT there, in points",
    )


def rules_table(rules: Sequence[RuleScores]) -> Table:
    """Return how each rule calls drops."""
    column, score = _columns_of(rules)
    return Table(
        columns=(
            column("rule", lambda row: row.rule),
            column("labels", lambda row: row.labelled, meaning="Reads labels."),
            column("parameters", lambda row: row.parameters),
            column("missing", lambda row: row.missing, meaning="Models without what the rule reads."),
            *score("precision", lambda row: row.precision),
            *score("recall", lambda row: row.recall),
            *score("f1", lambda row: row.f1, title="F1"),
            *score("onset", lambda row: row.onset_error, meaning="Mean error in layers where there is a drop."),
            *score("regret", lambda row: row.mean_regret),
            *score("median", lambda row: row.median_regret),
            *score("cost", lambda row: row.cost, meaning="Of the two layers of confirm."),
        ),
        title="How each rule calls drops",
    )


def _columns_of(rows: Iterable[Any]) -> tuple[Callable[..., Column], Callable[..., tuple[Column, Column]]]:
    """Return what makes a column of rows, and what makes those of a score and its interval."""
    rows = tuple(rows)

    def column(name: str, of: Callable[[Any], object], **about: Any) -> Column:
        return Column(name, tuple(map(of, rows)), **about)

    def score(name: str, of: Callable[[Any], Score | None], form: Form = ".2f", **about: Any) -> tuple[Column, Column]:
        title = about.setdefault("title", name.replace("_", " "))
        return (
            column(name, lambda row: _value(of(row)), form=form, **about),
            column(f"{name}_interval", lambda row: _ends(of(row)), title=f"{title} interval", form=form, interval=True),
        )

    return column, score


def _value(score: Score | None) -> float | None:
    return None if score is None else score.value


def _ends(score: Score | None) -> tuple[float, float] | None:
    return None if score is None or score.lower is None or score.upper is None else (score.lower, score.upper)
