"""A page as one self-contained HTML file. Knows HTML and files, not what is shown."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, is_unreliable
from layerprobe.files.atomic import write_file
from layerprobe.results.document import document, figure_element, image
from layerprobe.results.draw import drawn
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.parts import commands as block
from layerprobe.results.parts import definitions, folded, listed, section, table_of
from layerprobe.results.shown import PlotlySource, Shown, is_image
from layerprobe.results.table import Table
from layerprobe.results.values import Figure, Page, Part, Section
from layerprobe.versions import __version__


def write_page(page: Page, path: str | Path, *, plotly: PlotlySource = "embedded") -> Path:
    """Write a page as HTML and return its path; a reader sees the old file or the whole new one.

    Args:
        page: What to write.
        path: Where to; named as one of `IMAGES`, it gets the first figure alone.
        plotly: embedded: the page opens offline, in about 2 MB; cdn: it is small, and loads Plotly from `CDN`.

    Raises:
        DataError: If the page has no figure, and the file is that of one.
        MissingPackageError: If kaleido or Chrome, which draw a figure as a file, are not installed.
        LayerProbeError: If the file cannot be written.
    """
    if is_image(path):
        return write_file(Path(path), _image(page, Path(path).suffix.lower()[1:]))
    # A folder name that is no UTF-8 holds lone surrogates; as \udc80 they are right in JSON and legible in text.
    return write_file(Path(path), render(page, plotly=plotly).encode("utf-8", "backslashreplace"))


def _image(page: Page, kind: str) -> bytes:
    if not page.figures:
        raise DataError(
            f"expected a result with a figure to draw as .{kind}, got one without: save it as .html or .csv"
        )
    return image(page.figures[0].plot, kind)


def completed(
    page: Page,
    *,
    command: str,
    warnings: Sequence[str] = (),
    commands: Sequence[str] = (),
) -> Page:
    """Return a page with what its result does not hold: its command, warnings of its data, and what comes next."""
    made = {"Command": element("code", command), "Version": f"layerprobe {__version__}"}
    after = section("next", "What to do next", block(*commands) if commands else None)
    return replace(
        page,
        warnings=tuple(dict.fromkeys((*warnings, *page.warnings))),
        sections=(*page.sections, after),
        provenance=(*page.provenance, definitions(made)),
    )


def page_of(
    result: Shown, *, kind: str, table: Table | None = None, sections: Sequence[Section] = (), **about: Any
) -> Page:
    """Return the page that a result declares: its verdict, the first chart of its table, the table, its other charts.

    Args:
        result: What it is of, with the heading, what its sentence says besides, and the warnings that are not given.
        kind: What kind of result it is, in words; files that are saved from the page are named after it.
        table: Its numbers, where these are not its own table.
        sections: What comes below.
        about: Further fields of a `Page`.
    """
    page_table = result.table if table is None else table
    if "lead" not in about:
        about["lead"] = (result.rest,) if result.rest else ()
    about = {
        "heading": result.heading,
        "warnings": getattr(result, "warnings", ()),
        "stem": f"layerprobe-{re.sub('[^a-z]+', '-', kind.partition(',')[0].lower())}",
        "facts": (),
        "blocks": result.blocks,
    } | about
    about["facts"] = tuple(filter(None, about["facts"]))
    figures = [drawn(page_table, chart) for chart in page_table.charts]
    further = zip(figures[1:], page_table.charts[1:], strict=True)
    about.setdefault("first", figures[0] if figures else None)
    return Page(
        kind=kind,
        sections=(
            section("layers", page_table.title, table_of(page_table), kind="dense"),
            *(section(figure.name, chart.heading, figure) for figure, chart in further),
            *sections,
        ),
        result=result,
        numbers=page_table,
        **about,
    )


def declared_page(result: Any) -> Page:
    """Return the page of a result that declares it: its first figure is the first chart of `first`, or of its table.

    A result says in `page` what is not in its sentences and its table: fields of a `Page`, with `sections` and
    `sources` as plain values. A section is its heading and tables: the charts of each are drawn above it, and the table
    is folded; a part of the result's own table, by its title, is not written again.
    """
    declared = dict(result.page)
    sections, sources = declared.pop("sections", {}), declared.pop("sources", {})
    first, toml = declared.pop("first", result.table), declared.pop("toml", "")
    provenance: list[Part] = [definitions(sources)]
    if toml:
        provenance.append(folded("What was done, as a file", element("pre", element("code", toml))))
    figures = [drawn(first, chart) for chart in first.charts] if first is not None and len(first) else []
    listed = [
        section(
            f"section-{number}", heading, *(part for table in tables for part in _declared(table, result.table.title))
        )
        for number, (heading, tables) in enumerate(sections.items())
    ]
    if len(figures) > 1:
        listed.insert(0, section("figures", first.title, *figures[1:]))
    return page_of(
        result,
        table=replace(result.table, charts=()),
        first=figures[0] if figures else None,
        sections=listed,
        provenance=tuple(provenance),
        **declared,
    )


def _declared(table: Table, written: str) -> Iterator[Part]:
    if len(table):
        yield from (drawn(table, chart) for chart in table.charts)
        yield folded(table.title, table_of(table)) if table.title != written else None


def render(page: Page, *, plotly: PlotlySource = "embedded") -> str:
    """Return a page as HTML with style, scripts, figures and data inside; embedded, it loads nothing at all."""
    sections = [section for section in page.sections if any(part is not None for part in section.parts)]
    main = join(_header(page), *(_section(section) for section in sections))
    folds = [fold for fold in _folds(page) if any(part is not None for part in fold.parts)]
    body = join(main, *(_folded(fold) for fold in folds), _section(_downloads(page)))
    contents = _contents([*sections, *folds])
    about: dict[str, Any] = {"figures": page.figures, "items": page.items, "contents": contents, "plotly": plotly}
    return document(page.title, body, page.result, page.table, **about)


def _contents(sections: Sequence[Section]) -> Markup:
    """Return links to the sections of a long page, for windows with room next to it."""
    links = listed("ul", (element("a", section.heading, href=f"#{section.name}") for section in sections))
    return element("nav", links, aria_label="Contents", class_="contents") if len(sections) > 4 else join()


def _header(page: Page) -> Markup:
    several = len(page.lead) > 1
    lead = element("ul", *(element("li", sentence) for sentence in page.lead), class_="prediction") if several else None
    fatal = listed("ul", dict.fromkeys((*page.fatal, *filter(is_unreliable, page.warnings))))
    overline = " · ".join(filter(None, ("layerprobe", page.kind, page.about)))
    return element(
        "header",
        element("p", overline, class_="overline"),
        element("h1", page.heading),
        lead or join(*(element("p", sentence, class_="prediction") for sentence in page.lead)),
        element("p", " · ".join(page.facts), class_="key") if page.facts else None,
        None if page.blocks is None else page.blocks.svg(),
        element("aside", element("h2", "Warnings"), fatal, class_="warnings") if fatal else None,
        None if page.first is None else figure_element(page.first),
    )


def _folds(page: Page) -> Iterator[Section]:
    """Yield what a reader can open: warnings, how it was decided, where numbers come from."""
    warnings = [warning for warning in dict.fromkeys(page.warnings) if not is_unreliable(warning)]
    yield section("warnings", f"Warnings ({len(warnings)})", listed("ul", warnings))
    yield section("account", "How it was decided", *page.account)
    yield section("provenance", "Where the numbers come from", *page.provenance)


def _section(section: Section) -> Markup:
    return element("section", element("h2", section.heading), *_parts(section), id=section.name, class_=section.kind)


def _folded(section: Section) -> Markup:
    summary = element("summary", element("h2", section.heading))
    return element("section", element("details", summary, *_parts(section)), id=section.name, class_="fold")


def _parts(section: Section) -> list[Markup]:
    return [figure_element(part) if isinstance(part, Figure) else part for part in section.parts if part is not None]


def _downloads(page: Page) -> Section:
    buttons = (
        element("button", label, type="button", data_source=source, data_filename=f"{page.stem}.{end}", data_kind=kind)
        for source, label, end, kind in (
            ("study", "Whole result (JSON)", "json", "application/json"),
            ("table", f"{page.table.title} (CSV)", "csv", "text/csv"),
        )
    )
    return section("data", "Data", element("p", *buttons, class_="downloads"))
