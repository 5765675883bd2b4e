"""DropBench as a page. Knows its scores, not how they come about."""

from collections.abc import Iterator

from layerprobe.lab.dropbench.bench import shown_strategies
from layerprobe.lab.dropbench.results import Bench, BudgetScores, detection_tables, strategies_table
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.draw import drawn
from layerprobe.results.markup import element
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.table import Column
from layerprobe.results.values import Page, Part, Section

LEAST = 0.01
"""Where costs of nothing stand on the axis, which is logarithmic."""
TERMS = ("Drop", "Cost", "Held", "Within half a point", "Area")


def bench_page(bench: Bench) -> Page:
    """Return the page of DropBench: strategies, what detects a drop, and scans against TMFT, by budget."""
    strategies, *further = (part for budget in bench.budgets for part in _sections(bench, budget))
    return page_of(
        bench,
        heading="The cost of finding the best layer, and its regret",
        kind="DropBench",
        lead=tuple(_leads(bench)),
        first=strategies.parts[0],
        account=(f"Families: {', '.join(bench.families)}. Intervals: {_level(bench)}.",),
        sections=(section(strategies.name, strategies.heading, *strategies.parts[1:]), *further),
        provenance=(_sources(bench),),
        terms=TERMS,
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
    name, strategies = budget.budget, strategies_table(shown_strategies(budget))
    costs = [max(float(cost), LEAST) for cost in strategies.column("cost").values]  # type: ignore[arg-type]
    about = Quantity("cost of choosing, share of the paper’s sweep", best="lower")
    table = strategies.with_columns(Column("axis", costs, title="cost", form=".0%", quantity=about))
    regret = Line("regret", interval="regret_interval")
    chart = Chart(
        lines=(regret,),
        name=f"dropbench-{name}",
        kind="cost",
        x="axis",
        by="needs",
        finding=f"Mean regret versus cost; costs of less than {LEAST:.0%} are drawn there.",
    )
    heading = f"Regret versus cost of each strategy, budget {name}"
    yield section(f"strategies-{name}", heading, drawn(table, chart), table_of(strategies))
    titled = (part for table in detection_tables(budget) for part in (element("p", table.title), table_of(table)))
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
