"""A smaller model as a page: which blocks go, what each costs, and what the smaller model loses. Knows its results."""

from layerprobe.report.facts import about
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import section, table_of
from layerprobe.results.table import Table
from layerprobe.results.values import Page, Section
from layerprobe.shrinking.values import Shrunk
from layerprobe.stats.sentences import at_most


def shrunk_page(result: Shrunk) -> Page:
    """Return the page of a model made smaller."""
    small, loss, whole = result.smaller, result.smaller.loss, result.model
    lost = "" if loss is None else f"loss {numbers.number(loss.value)}, {at_most(loss.most, loss.margin)} (95 %)"
    fewer = numbers.percent(round(1 - small.parameters / whole.parameters[-1], 2))
    tables = [*([result.ways] if result.front else []), *([result.order] if result.removals else [])]
    return page_of(
        result,
        kind="a smaller model",
        about=about(whole.name, result.task or result.texts),
        facts=(lost, f"{numbers.millions(small.parameters)} parameters, {fewer} fewer", small.faster),
        sections=tuple(map(_with_charts, tables)),
        account=(result.account,),
    )


def _with_charts(table: Table) -> Section:
    charts = [drawn(table, chart) for chart in table.charts]
    return section(charts[0].name, table.title, *charts, table_of(table))
