"""A smaller model as a page: which blocks go, what each costs, and what the smaller model loses. Knows its results."""

from typing import Any

from layerprobe.names import plural, told_apart
from layerprobe.report.facts import about
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import section, table_of
from layerprobe.results.table import Table
from layerprobe.results.values import Page, Section
from layerprobe.shrinking.equal import EqualSize
from layerprobe.shrinking.values import Shrunk


def shrunk_page(result: Shrunk) -> Page:
    """Return the page of a model made smaller."""
    small, loss, whole = result.smaller, result.smaller.loss, result.model
    blocks, facts = f"{len(small.blocks)} of {whole.n_blocks} blocks", []
    headings = {"within": "lose at most", "not shown": "may lose up to", "worse": "lose more than"}
    heading = f"{blocks} agree with the whole model by {small.agreement[0]:.0f} of 100"
    if loss is not None:
        end = result.within if loss.verdict == "worse" else float(told_apart(loss.most, loss.margin, 1))
        heading = f"{blocks} {headings[loss.verdict]} {end:g} {plural('point') if end != 1 else 'point'}"
        facts.append(f"loss {numbers.number(loss.value)}, at most {told_apart(loss.most, loss.margin, 2)} (95 %)")
    fewer = numbers.percent(round(1 - small.parameters / whole.parameters[-1], 2))
    facts += [f"{numbers.millions(small.parameters)} parameters, {fewer} fewer", *filter(None, [small.faster])]
    tables = [table for table, there in ((result.order, result.removals), (result.ways, result.front)) if there]
    return page_of(
        result,
        heading=heading,
        kind="a smaller model",
        about=about(whole.name, result.task or result.texts),
        lead=(result.sentence,),
        facts=tuple(facts),
        sections=tuple(map(_with_charts, tables)),
        warnings=result.warnings,
        account=(result.account,),
    )


def _with_charts(table: Table) -> Section:
    charts = [drawn(table, chart) for chart in table.charts]
    return section(charts[0].name, table.title, *charts, table_of(table))


def equal_page(result: EqualSize) -> Page:
    """Return the page of the first blocks and others of the same number, fine-tuned alike."""
    ending = f"Of {len(result.keep.blocks)} blocks, keep {', '.join(map(str, result.keep.blocks))}"
    verdict: dict[str, Any] = {"heading": ending, "lead": (result.summary.removesuffix(f"{ending}."),)}
    return page_of(
        result,
        kind="blocks of equal size",
        **{} if result.spoilt else verdict,
    )
