"""What sections are built of. Knows the page's elements, no result."""

from collections.abc import Iterable, Mapping, Sequence

from layerprobe.results.markup import Markup, element, join
from layerprobe.results.numbers import typeset
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Part, Section

LONGEST = 16
"""Characters of the first column that a phone keeps on a line, at most."""


def section(name: str, heading: str, *parts: Part | str, kind: str | None = None) -> Section:
    """Return a section with a heading; text becomes a paragraph."""
    paragraphs = (
        element("p", part) if isinstance(part, str) and not isinstance(part, Markup) else part for part in parts
    )
    return Section(name=name, heading=heading, parts=tuple(paragraphs), kind=kind)


def commands(*lines: str) -> Markup:
    """Return command lines in a block that the page's script makes copyable."""
    return element("pre", element("code", "\n".join(lines)), class_="commands", tabindex="0")


def table_of(table: Table) -> Markup | None:
    """Return a result's table; None without rows. Its first column names the row."""
    if not len(table):
        return None
    columns, marks = table.shown, table.marks or (None,) * len(table)
    heads = (
        element("th", column.head, scope="col", title=column.meaning or None) if column.head.strip() else element("td")
        for column in columns
    )
    header = element("tr", *heads)
    body = (
        element("tr", element("th", name, scope="row"), *(element("td", typeset(cell)) for cell in cells), class_=mark)
        for (name, *cells), mark in zip(table.lines, marks, strict=True)
    )
    longest = min(max(len(name) for name in columns[0].cells), LONGEST)
    whole = element("table", element("thead", header), element("tbody", *body), style=f"--first:{longest}ch")
    scroll = element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=table.title)
    return join(scroll, *(element("p", note) for note in table.notes))


def folded(summary: str, *children: str | None) -> Markup:
    """Return what a reader can open and close."""
    return element("details", element("summary", summary), *children)


def listed(tag: str, items: Iterable[str]) -> Markup | None:
    """Return a list, ordered (ol) or not (ul); None without items."""
    elements = [element("li", item) for item in items]
    return element(tag, *elements) if elements else None


def definitions(facts: Mapping[str, str | None]) -> Markup:
    """Return terms and what they mean; those of None are left out."""
    pairs = (join(element("dt", name), element("dd", fact)) for name, fact in facts.items() if fact is not None)
    return element("dl", *pairs, class_="facts")


def facts_table(caption: str, names: Sequence[str], facts: Sequence[Mapping[str, str]]) -> Markup:
    """Return the same facts of several things side by side, one a column."""
    named = enumerate(zip(names, facts, strict=True), start=1)
    columns = (Column(f"thing_{i}", [values[fact] for fact in facts[0]], name) for i, (name, values) in named)
    table = Table(columns=(Column("fact", tuple(facts[0]), " "), *columns), title=caption)
    return element("div", table_of(table), class_="models")
