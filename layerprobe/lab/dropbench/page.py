"""DropBench as a page. Knows its scores, not how they come about."""

from collections.abc import Iterator

from layerprobe.lab.dropbench.bench import shown_strategies
from layerprobe.lab.dropbench.figures import regret_for_cost
from layerprobe.lab.dropbench.tables import detection_tables, strategies_table
from layerprobe.lab.dropbench.values import Bench, BudgetScores
from layerprobe.results import numbers
from layerprobe.results.markup import element
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.values import Figure, Page, Part, Section


def bench_page(bench: Bench) -> Page:
    """Return the page of DropBench: strategies, what detects a drop, and scans against TMFT, by budget."""
    return Page(
        title="DropBench: what finding the best layer costs",
        overline="layerprobe · DropBench",
        heading="The cost of finding the best layer, and its regret",
        lead=tuple(_leads(bench)),
        remarks=(f"Families: {', '.join(bench.families)}. Intervals: {_level(bench)}.",),
        sections=(
            *(part for budget in bench.budgets for part in _sections(bench, budget)),
            section("all", bench.table.title, folded("Show all", table_of(bench.table))),
        ),
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
        result=bench,
        stem="dropbench",
    )


def _leads(bench: Bench) -> Iterator[str]:
    for budget in bench.budgets:
        drops = sum(truth.drop for truth in budget.truths.values())
        sets = [len(truth.best_layers) for truth in budget.truths.values()]
        yield (
            f"Budget {budget.budget}: {drops} of {len(sets)} models drop; on average {sum(sets) / len(sets):.1f} "
            "layers may be the best one."
        )


def _level(bench: Bench) -> str:
    return numbers.confidence(bench.level)


def _sections(bench: Bench, budget: BudgetScores) -> Iterator[Section]:
    name, shown = budget.budget, shown_strategies(budget)
    yield section(
        f"strategies-{name}",
        f"Regret versus cost of each strategy, budget {name}",
        Figure(
            f"dropbench-{name}",
            regret_for_cost(shown),
            "Mean regret versus cost.",
            f"Bars are {_level(bench)} bootstrap intervals over {budget.clusters}; lower and further left is better.",
        ),
        table_of(strategies_table(shown)),
    )
    titled = (part for each in detection_tables(budget) for part in (element("p", each.title), table_of(each)))
    yield section(f"drops-{name}", f"What detects a drop, budget {name}", *titled)


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
