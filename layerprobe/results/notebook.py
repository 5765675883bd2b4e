"""A result in a notebook: the top of its page, with styles inline. Knows HTML, no kind of result."""

import importlib.util
from collections.abc import Iterator

from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.shown import ROWS, Shown
from layerprobe.results.table import Table

COLOURS = {
    Verdict.UNDECIDED: "#b58900",
    Verdict.FAILED: "#c44e00",
}
"""Colours of the frame of a pill, by verdict; others are green."""


def shown(result: Shown) -> Markup:
    """Return the answer, its certainty, four numbers, the first figure, and the first columns of the table."""
    conclusion = result.conclusion
    frame = (
        f"display: inline-block; border: 1.5px solid {COLOURS.get(conclusion.verdict, '#00966f')}; border-radius: 1em"
    )
    pill = f"{frame}; margin-top: 0.3em; padding: 0.1em 0.8em; font-weight: 600"
    row = "display: flex; flex-wrap: wrap; gap: 0.6em; max-width: 60em; margin-bottom: 0.8em"
    box = "flex: 1; min-width: 9em; background: rgba(128, 128, 128, 0.12); border-radius: 8px; padding: 0.5em 0.9em"
    tiles = (
        element("div", element("div", number, style="font-size: 1.5em; font-weight: 650"), what, style=box)
        for number, what in words.tiles(conclusion)
    )
    certainty = words.certainty(conclusion)
    body = join(
        element("div", words.headline(conclusion), style="font-size: 1.9em; font-weight: 700; line-height: 1.3"),
        element("span", certainty, style=pill) if certainty else None,
        element("p", words.sentence(conclusion), style="font-size: 1.1em; max-width: 62ch; margin: 0.7em 0"),
        element("div", *tiles, style=row),
    )
    return join(Markup(words.typeset_text(body)), _figure(result), *_table(result.table))


def _figure(result: Shown) -> Markup | None:
    """Return the first figure, which loads Plotly from the network; None without a figure or without plotly."""
    if not len(result.table) or not result.table.charts or importlib.util.find_spec("plotly") is None:
        return None
    about = {"full_html": False, "include_plotlyjs": "cdn", "default_width": "60em", "default_height": "27em"}
    return Markup(result.plot().to_html(**about))


def _table(table: Table) -> Iterator[Markup]:
    """Yield the first columns, without the middle rows of a long table, and its notes."""
    if not len(table):
        return
    left = range(ROWS // 2, len(table) - ROWS // 2) if len(table) > ROWS else range(0)
    rows = []
    for row, cells in enumerate(zip(*(column.cells for column in table.first), strict=True)):
        is_chosen = bool(table.marks) and table.marks[row] == "chosen"
        look = "font-weight: 700; background: rgba(0, 150, 111, 0.15)" if is_chosen else None
        if row not in left:
            rows.append(element("tr", *(element("td", words.typeset_text(cell)) for cell in cells), style=look))
        elif row == left.start:
            rows.append(element("tr", element("td", f"… {len(left):,} more", colspan=str(len(table.first)))))
    head = element("tr", *(element("th", column.head) for column in table.first))
    yield element("table", element("thead", head), element("tbody", *rows))
    yield from (element("p", note) for note in table.notes)
