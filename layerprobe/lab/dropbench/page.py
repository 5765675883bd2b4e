"""DropBench as a page. Knows its scores, not how they come about."""

from collections.abc import Iterator

from layerprobe.files.serialisation import to_json
from layerprobe.lab.dropbench.bench import shown_strategies
from layerprobe.lab.dropbench.figures import regret_for_cost
from layerprobe.lab.dropbench.values import Bench, BudgetScores, Score, StrategyScores
from layerprobe.results import numbers
from layerprobe.results.parts import Row, definitions, folded, section, table
from layerprobe.results.table import csv_text
from layerprobe.results.values import Figure, Page, Part, Section

CSV_COLUMNS = ("budget", "strategy", "needs", "model", "family", "layer", "distance", "regret", "cost")


def bench_page(bench: Bench) -> Page:
    """Return the page of DropBench: strategies, what tells a drop, and scans against TMFT, by budget."""
    return Page(
        title="DropBench: what finding the best layer costs",
        overline="layerprobe · DropBench",
        heading="What finding the best layer costs, and what is lost",
        lead=tuple(_leads(bench)),
        remarks=(f"Families: {', '.join(bench.families)}. In brackets: {_level(bench)} intervals.",),
        sections=tuple(part for budget in bench.budgets for part in _sections(bench, budget)),
        provenance=(_sources(bench),),
        terms=(
            "Layer",
            "TMFT",
            "Regret",
            "Cross-fitted regret",
            "Cost",
            "Held",
            "Within half a point",
            "Drop",
            "Area",
            "CKA",
        ),
        data=to_json(bench),
        table=csv_text(CSV_COLUMNS, _choices(bench)),
        table_label="Choices",
        stem="dropbench",
    )


def _leads(bench: Bench) -> Iterator[str]:
    for budget in bench.budgets:
        drops = sum(truth.drop for truth in budget.truths.values())
        sets = [len(truth.best_layers) for truth in budget.truths.values()]
        yield (
            f"Budget {budget.budget}: {drops} of {len(sets)} models drop; in the mean {sum(sets) / len(sets):.1f} "
            "layers cannot be told from the best one."
        )


def _level(bench: Bench) -> str:
    return numbers.percent(bench.level)


def _choices(bench: Bench) -> Iterator[tuple[object, ...]]:
    for budget in bench.budgets:
        for each in budget.strategies:
            for of in each.outcomes:
                for row in zip(of.layers, of.distances, of.regrets, of.costs, strict=True):
                    yield (budget.budget, each.strategy, each.needs, of.model, of.family, *row)


def _sections(bench: Bench, budget: BudgetScores) -> Iterator[Section]:
    name, shown = budget.budget, shown_strategies(budget)
    rest = [each for each in budget.strategies if each not in shown]
    yield section(
        f"strategies-{name}",
        f"What each strategy loses for what it costs, budget {name}",
        Figure(
            f"dropbench-{name}",
            regret_for_cost(shown),
            "Mean regret against cost.",
            f"Bars are {_level(bench)} intervals that redraw {budget.clusters}; lower and further left is better.",
        ),
        table("Strategies", map(_strategy_cells, shown)),
        folded("All other rules", table("Rules", map(_strategy_cells, rest))) if rest else None,
    )
    yield section(f"drops-{name}", f"What tells a drop, budget {name}", *_detection(budget))


def _detection(budget: BudgetScores) -> Iterator[Part]:
    yield table(
        "Falls to the last layer as a sign of a drop",
        (
            (
                ("Curve", each.detector),
                ("Needs", each.needs),
                ("Models", str(each.models)),
                ("Drops", str(each.drops)),
                ("Area", score_text(each.area)),
                ("Precision", score_text(each.precision)),
                ("Recall", score_text(each.recall)),
                ("Correlation with the effect", "" if each.effect is None else numbers.number(each.effect)),
            )
            for each in budget.detectors
        ),
    )
    yield table(
        "Spearman’s correlation with the test scores, within a model",
        (
            (
                ("Curve", each.curve),
                ("Needs", each.needs),
                ("Models", str(each.models)),
                ("Mean", score_text(each.mean)),
                ("Median", score_text(each.median)),
            )
            for each in budget.curves
        ),
    )
    yield table(
        "Models of scans, cut at a layer, against TMFT there, points",
        (
            (
                ("Weighting", each.weighting),
                ("Models", str(each.models)),
                ("At the best layer", score_text(each.at_best)),
                ("At the last layer", score_text(each.at_last)),
                ("All layers", score_text(each.overall)),
            )
            for each in budget.joint
        ),
    )


def _strategy_cells(each: StrategyScores) -> Row:
    errors = [("items", each.items_error), ("seeds", each.seeds_error)]
    said = ", ".join(f"{what} {numbers.number(error)}" for what, error in errors if error is not None)
    return (
        ("Strategy", each.strategy),
        ("Needs", each.needs),
        ("Models", str(len(each.outcomes))),
        ("Mean regret", score_text(each.mean)),
        ("Its errors", said),
        ("Median", numbers.number(each.median.value)),
        ("90 %", numbers.number(each.ninth.value)),
        ("Worst", numbers.number(each.worst)),
        ("Cross-fitted", score_text(each.regret)),
        ("Cost", f"{100 * each.cost.value:.1f} %"),
        ("Held", "" if each.coverage is None else numbers.percent(each.coverage.value)),
        ("Layers in the set", "" if each.set_size is None else numbers.number(each.set_size, 1)),
        ("Within half a point", "" if each.sufficient is None else numbers.percent(each.sufficient.value)),
        ("Source", each.source),
    )


def score_text(score: Score | None, digits: int = 2) -> str:
    """Return a score with its interval; nothing for none."""
    if score is None:
        return ""
    value = numbers.number(score.value, digits)
    if score.lower is None or score.upper is None:
        return value
    return f"{value} [{numbers.number(score.lower, digits)}, {numbers.number(score.upper, digits)}]"


def _sources(bench: Bench) -> Part:
    provenance = bench.provenance
    return definitions(
        {
            "Models made by": provenance.command,
            "Models": "; ".join(provenance.notes),
            "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
            "Created": provenance.created,
        }
    )
