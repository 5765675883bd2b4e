"""What sections are built of. Knows the page's elements, not studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from layerprobe.pages.markup import Markup, element, join

CONFIRM_COMMAND = "layerprobe run MODEL -r REFERENCE -t TASK"
"""Fine-tunes the layers that decide."""
ZERO_SHOT_COMMAND = "layerprobe run MODEL -r REFERENCE -t stsb"
"""Compares on a task whose pairs have scores."""


def section(name: str, heading: str, *children: str | None) -> Markup:
    """Return a part of the page under its own heading."""
    return element("section", element("h2", heading), *children, id=name)


def figure(name: str, finding: str, reading: str, style: str | None = None, kind: str = "plot") -> Markup:
    """Return the place of a figure; those who cannot see it are told the finding.

    Args:
        name: The figure's, by which the script finds the place.
        finding: What the figure shows.
        reading: How to read it.
        style: CSS of the place.
        kind: Its CSS class.
    """
    plot = element("div", id=f"plot-{name}", class_=kind, role="img", aria_label=finding, style=style)
    caption = element("figcaption", finding, " ", element("span", reading, class_="reading"))
    return element("figure", plot, caption)


def missing(what: str, command: str) -> Markup:
    """Return a paragraph that says what is not there, and what brings it."""
    return element("p", *fill(what, command), class_="missing")


def fill(what: str, command: str) -> tuple[str, ...]:
    """Return a sentence that says what is not there, and what brings it."""
    return f"{what}: ", element("code", command), " fills this in."


def table(caption: str, head: Iterable[str], rows: Iterable[Markup]) -> Markup:
    """Return a table that scrolls by itself, also by keyboard."""
    header = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    whole = element("table", header, element("tbody", *rows))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def row(name: str, cells: Iterable[str], kind: str | None = None) -> Markup:
    """Return a row of a table: its name and its cells."""
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells), class_=kind)


def folded(summary: str, *children: str | None, opened: bool = False) -> Markup:
    """Return what a reader can open and close."""
    return element("details", element("summary", summary), *children, open="" if opened else None)


def definitions(facts: Mapping[str, str]) -> Markup:
    """Return terms and what they mean."""
    return element("dl", *(join(element("dt", k), element("dd", v)) for k, v in facts.items()), class_="facts")


def downloads(name: str, *, table: str, whole: str = "Everything") -> Markup:
    """Return the section whose buttons save the page's data.

    Args:
        name: Of the files, without ending.
        table: What the CSV is.
        whole: What the JSON is.
    """
    buttons = (
        element("button", label, type="button", data_source=source, data_filename=f"{name}.{end}", data_kind=kind)
        for source, label, end, kind in (
            ("study", f"{whole} (JSON)", "json", "application/json"),
            ("table", f"{table} (CSV)", "csv", "text/csv"),
        )
    )
    return section("data", "Data", element("p", *buttons, class_="downloads"))
