"""A result as one self-contained HTML page. Knows HTML and files, no kind of result."""

import base64
import functools
import gzip
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from layerprobe.checks import check_choice, check_extra
from layerprobe.errors import DataError, MissingPackageError, is_unreliable
from layerprobe.files.atomic import write_file
from layerprobe.files.serialisation import to_json
from layerprobe.names import short_name
from layerprobe.results import draw, words
from layerprobe.results.conclusion import Conclusion, Step, Verdict
from layerprobe.results.draw import Figure
from layerprobe.results.explore import LARGEST, items_of, left_out, packed, section_of
from layerprobe.results.items import Explored
from layerprobe.results.markup import Markup, element, escape, join, script_json
from layerprobe.results.shown import PlotlySource, Shown, is_image
from layerprobe.results.style import DARK
from layerprobe.results.table import Column, Table, chance
from layerprobe.versions import __version__

CDN = "https://cdn.plot.ly"
"""The address from which pages without embedded Plotly load it."""
_PART = r"[^\s/<>\"'&;:,()\\]+"
_PATH = re.compile(
    rf"<pre.*?</pre>|(?<![\w~.:/<-])/(?:{_PART}/)+{_PART}|(?<!\w)[A-Za-z]:[/\\]+(?:{_PART}[/\\]+)+{_PART}", re.DOTALL
)
_TEXT = re.compile(r"<(pre|code)\b.*?</\1>|<[^>]*>|[^<]+", re.DOTALL)


def write_page(
    result: Shown,
    path: str | Path,
    *,
    plotly: PlotlySource = "embedded",
    command: str = "",
    warnings: Sequence[str] = (),
    texts: bool | None = None,
    beside: Shown | Sequence[Shown] = (),
    steps: Sequence[Step] | None = None,
) -> Path:
    """Write the page of a result and return its path; the file is replaced in one step.

    Args:
        result: The result to show.
        path: File to write; with an ending of `IMAGES`, the first figure alone.
        plotly: embedded: the page opens offline and takes about 2 MB; cdn: it is small and loads Plotly from `CDN`.
        command: The command that made it, if any.
        warnings: Further warnings, such as those about the data.
        texts: Whether to show single items with their texts; by default if that adds at most 1.5 MB.
        beside: One or several results whose tables and charts are shown below.
        steps: Next steps, instead of those of the result.

    Raises:
        DataError: If an argument is not a result, or the file is a figure and there is nothing to plot.
        MissingPackageError: If kaleido or Chrome, which draw figures to files, are not installed.
        LayerProbeError: If the file cannot be written.
    """
    if is_image(path):
        return write_file(Path(path), image(result.plot(), Path(path).suffix.lower()[1:]))
    page = render(result, plotly=plotly, command=command, warnings=warnings, texts=texts, beside=beside, steps=steps)
    # A folder name that is not UTF-8 holds lone surrogates; as \udc80 they are valid JSON and legible in text.
    return write_file(Path(path), page.encode("utf-8", "backslashreplace"))


def render(
    result: Shown,
    *,
    plotly: PlotlySource = "embedded",
    command: str = "",
    warnings: Sequence[str] = (),
    texts: bool | None = None,
    beside: Shown | Sequence[Shown] = (),
    steps: Sequence[Step] | None = None,
) -> str:
    """Return the page of a result as HTML with style, scripts, figures and data inside; see `write_page`."""
    beside = (beside,) if isinstance(beside, Shown) else beside
    if not isinstance(beside, Sequence) or not all(isinstance(one, Shown) for one in (result, *beside)):
        raise DataError(f"expected a result, and results to show below it, got {result!r:.60} and {beside!r:.60}")
    conclusion = result.conclusion if steps is None else replace(result.conclusion, steps=tuple(steps))
    warnings = tuple(dict.fromkeys((*warnings, *getattr(result, "warnings", ()))))
    figures: list[Figure] = []
    (table, drawings), *details = _tables(result, figures)
    further = zip((chart.heading or table.title for chart in table.charts[1:]), drawings[1:], strict=False)
    source = None if texts is False else items_of(result)
    explored, items = (None, "") if source is None else _explored(source, texts)
    made = {
        "Versions": f"layerprobe {__version__}",
        **result.sources,
        "Command": element("code", command) if command else None,
    }
    parts = (
        _top(conclusion, [warning for warning in warnings if is_unreliable(warning)]),
        *drawings[:1],
        section("rows", table.title, table_of(table)),
        _trust(conclusion, [warning for warning in warnings if not is_unreliable(warning)]),
        *(_beside(n, one, figures) for n, one in enumerate(beside, start=1)),
        section(
            "more",
            "See more",
            explored,
            *(folded(heading, drawing) for heading, drawing in further),
            *(folded(detail.title, *places, _written(detail)) for detail, places in details),
            folded("Where the numbers come from", definitions(made)),
        ),
        _downloads(table, f"layerprobe-{conclusion.kind}"),
    )
    title = " · ".join((words.headline(conclusion), *conclusion.subject))
    return document(title, join(*parts), result, table, figures=figures, items=items, plotly=plotly)


def items_alone(result: Shown) -> str:
    """Return a page with the single items of a result, which loads Plotly from `CDN`; DataError if it has none."""
    explored = items_of(result)
    if explored is None:
        raise DataError(
            f"expected a {type(result).__name__} computed in this process from one task whose items can be shown, got "
            "one that was read from a file, has several tasks, or has texts without a task"
        )
    items, heading = packed(explored), f"Explore the {explored.units}"
    body = element("section", element("h1", heading), section_of(explored, len(items)), class_="explore")
    return document(heading, body, result, result.table, items=items, plotly="cdn")


def document(
    title: str,
    body: Markup,
    result: object,
    table: Table,
    *,
    figures: Sequence[Figure] = (),
    items: str = "",
    plotly: PlotlySource,
) -> str:
    """Return HTML with the data of its scripts: the whole result as JSON, a table as CSV, figures and single items."""
    check_choice(plotly, PlotlySource, name="plotly")
    # without white space, which would be half of a matrix with one number per line
    study = json.dumps(json.loads(to_json(result)), ensure_ascii=False, separators=(",", ":"))
    plots = (f'"{figure.name}": {figure.plot.to_json(engine="json")}' for figure in figures)
    scripts = (*(("explore.js",) if items else ()), "page.js")
    return Template(_asset("template.html")).substitute(
        title=without_folders(words.typeset_text(escape(f"{title} · layerprobe"))),
        style=_asset("style.css"),
        body=without_folders(typeset(body)),
        study=script_json(without_folders(study)),
        table=script_json(json.dumps(without_folders(table.csv()))),
        figures=script_json(f"{{{', '.join(plots)}}}"),
        dark=script_json(json.dumps(DARK)),
        items=element("script", Markup(items), type="application/gzip;base64", id="items") if items else "",
        plotly=_from_cdn() if plotly == "cdn" else _carried(),
        origin="" if plotly == "embedded" else f" {CDN}",
        script="\n".join(map(_asset, scripts)),
    )


def image(figure: go.Figure, kind: str) -> bytes:
    """Return the bytes of a figure file: 900 x 560 points, a map 700 x 700, PNG at twice the resolution."""
    check_extra("figures", needed_by=f"a figure as .{kind}")
    width, height = (700, 700) if any(trace.type == "heatmap" for trace in figure.data) else (900, 560)
    try:
        drawing: bytes = figure.to_image(format=kind, width=width, height=height, scale=2 if kind == "png" else 1)
    except (RuntimeError, TimeoutError) as error:  # plotly: there is no browser; kaleido: the browser ended
        raise MissingPackageError(
            f"cannot draw a figure as .{kind}: found no Chrome or Chromium that starts: install one "
            "(plotly_get_chrome), or save the page as .html"
        ) from error
    return drawing


# ---- parts of a page --------------------------------------------------------------------------------------


def _top(conclusion: Conclusion, warnings: Sequence[str]) -> Markup:
    """Return the top of the page: the answer, its certainty, four numbers and the next steps."""
    overline = " · ".join(filter(None, ("layerprobe", words.subject(conclusion), words.cost(conclusion))))
    certainty, sentence = words.certainty(conclusion), words.sentence(conclusion)
    tiles = [element("p", element("b", number), " ", words.typeset(what)) for number, what in words.tiles(conclusion)]
    cards = []
    for step in conclusion.steps:
        name, text = words.step(step, conclusion)
        line = map(shlex.quote, ("layerprobe", *step.command))
        spaced = (part for word in line for part in (element("span", word), " "))
        block = element("pre", element("code", *[*spaced][:-1]), class_="commands")
        cards.append(element("div", element("h2", name), element("p", text), block))
    bad = " bad" if conclusion.verdict is Verdict.FAILED else ""
    return element(
        "header",
        element("p", overline, class_="overline"),
        element("h1", words.headline(conclusion)),
        element("p", certainty, class_=f"pill {conclusion.verdict.name.lower()}") if certainty else None,
        element("p", sentence, class_="sentence") if sentence else None,
        element("aside", element("h2", "Warnings"), listed(warnings), class_="warnings") if warnings else None,
        element("div", *tiles, class_=f"tiles{bad}") if tiles else None,
        element("div", *cards, class_="cards") if cards else None,
    )


def _trust(conclusion: Conclusion, warnings: Sequence[str]) -> Markup | None:
    """Return one line per check and warning."""
    lines = [(check.passed, *words.line(check, conclusion)) for check in conclusion.checks]
    signs = {True: ("passed", "✓"), False: ("failed", "✗"), None: ("open", "•")}
    items = []
    for passed, line, rest in lines:
        name, sign = signs[passed]
        mark = element("span", sign, role="img", aria_label=name)
        items.append(
            element("li", mark, " ", element("b", line), element("small", rest) if rest else None, class_=name)
        )
    items += [element("li", element("span", "!", role="img", aria_label="warning"), " ", text) for text in warnings]
    return section("trust", "Can I trust it?", element("ul", *items)) if items else None


def _explored(explored: Explored, texts: bool | None) -> tuple[Markup, str]:
    """Return the fold of single items, and their data; both are left out if they would be too large."""
    items, heading = packed(explored), f"Explore the {explored.units}"
    if not texts and len(items) > LARGEST:
        return folded(heading, left_out(explored, len(items))), ""
    return folded(heading, section_of(explored, len(items)), kind="explore"), items


def _tables(result: Shown, figures: list[Figure]) -> list[tuple[Table, list[Markup]]]:
    """Return the tables of a result, each with its figures, which are renamed and added to those of the page."""
    drawings, tables = iter(draw.figures(result)), []
    for table in (result.table, *result.details):
        places = []
        for figure in itertools.islice(drawings, len(table.charts) if len(table) else 0):
            figures.append(replace(figure, name=f"figure-{len(figures) + 1}"))
            places.append(figure_element(figures[-1]))
        tables.append((table, places))
    return tables


def _written(table: Table) -> Markup | None:
    """Return a table; None for a table of a map, which has one row per cell."""
    return None if any(chart.kind == "map" for chart in table.charts) else table_of(table)


def _beside(number: int, result: Shown, figures: list[Figure]) -> Markup | None:
    """Return the section of a further result, with its figures and tables."""
    (table, places), *details = _tables(result, figures)
    rest = (folded(detail.title, *of_detail, _written(detail)) for detail, of_detail in details)
    return section(f"beside-{number}", words.headline(result.conclusion), *places, table_of(table), *rest)


def figure_element(figure: Figure) -> Markup:
    """Return the element of a figure with its caption and the buttons that save it."""
    finding = words.typeset_text(figure.finding)
    entries = sum(trace.showlegend is not False for trace in figure.plot.data)
    style = figure.style or f"--entries:{entries}"
    plot = element("div", id=f"plot-{figure.name}", class_=figure.kind, role="group", aria_label=finding, style=style)
    buttons = (
        element(
            "button",
            kind.upper(),
            type="button",
            data_plot=figure.name,
            data_kind=kind,
            data_filename=f"layerprobe-{figure.name}",
        )
        for kind in ("svg", "png")
    )
    caption = element("p", finding, " ", element("span", figure.reading, class_="reading"))
    return element("figure", plot, element("figcaption", caption, element("span", *buttons, class_="save")))


def table_of(table: Table) -> Markup | None:
    """Return a table of at most six columns, and a checkbox that shows the others; None without rows."""
    if not len(table):
        return None
    kinds = [
        " ".join(filter(None, ("more" * column.more, "words" * (not numeric), "chance" * (column.form is chance))))
        for column, numeric in zip(table.shown, table.numeric, strict=True)
    ]
    heads = (
        element("th", column.head, scope="col", title=column.meaning or None, class_=kind or None)
        if column.head.strip()
        else element("td")
        for column, kind in zip(table.shown, kinds, strict=True)
    )
    first, *others = zip(table.shown, kinds, strict=True)
    cells = (_cells(table, *first, "th"), *(_cells(table, *other, "td") for other in others))
    marks = table.marks or (None,) * len(table)
    rows = (element("tr", *row, class_=mark) for mark, row in zip(marks, zip(*cells, strict=True), strict=True))
    whole = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    more = ", ".join(column.head for column in table.shown if column.more)
    box = (
        element("label", element("input", type="checkbox"), " More columns: ", more, class_="columns") if more else None
    )
    scroll = element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=table.title)
    return element("div", scroll, box, *(element("p", note, class_="reading") for note in table.notes), class_="table")


def _cells(table: Table, column: Column, kind: str, tag: str) -> list[Markup]:
    """Return the cells of a column: chances with a bar, inferred numbers marked."""
    line = table.charts[0].lines[0] if table.charts else None
    is_drawn = line is not None and line.run and column.name in (line.column, line.interval)
    runs = table.column(line.run).values if line is not None and is_drawn else [True] * len(table)
    cells = []
    for value, text, run in zip(column.values, column.cells, runs, strict=True):
        written = text if "words" in kind or tag == "th" else words.typeset(text)
        about = {"style": f"--share:{value:.3f}"} if "chance" in kind and value is not None else {}
        if not run and text and line is not None and column.name == line.column:
            written = f"≈ {written}"
        scope = "row" if tag == "th" else None
        name = " ".join(filter(None, (kind, "" if run else "inferred"))) or None
        cells.append(element(tag, written, scope=scope, class_=name, **about))
    return cells


def section(name: str, heading: str, *parts: str | None, kind: str | None = None) -> Markup | None:
    """Return a section of a page with its heading; None without content."""
    if not any(parts):
        return None
    return element("section", element("h2", heading), *parts, id=name, class_=kind)


def folded(summary: str, *parts: str | None, kind: str | None = None) -> Markup:
    """Return an element that a reader can open and close."""
    return element("details", element("summary", summary), *parts, class_=kind)


def listed(items: Iterable[str]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", item) for item in items))


def definitions(facts: Mapping[str, str | None]) -> Markup:
    """Return terms with their definitions; terms with None are left out."""
    pairs = (join(element("dt", name), element("dd", fact)) for name, fact in facts.items() if fact is not None)
    return element("dl", *pairs, class_="facts")


def _downloads(table: Table, stem: str) -> Markup:
    buttons = (
        element("button", label, type="button", data_source=source, data_filename=f"{stem}.{end}", data_kind=kind)
        for source, label, end, kind in (
            ("study", "Full result (JSON)", "json", "application/json"),
            ("table", f"{table.title} (CSV)", "csv", "text/csv"),
        )
    )
    return element("section", element("p", *buttons, class_="downloads"), id="data")


# ---- text, and scripts of a page --------------------------------------------------------------------------


def typeset(body: str) -> str:
    """Return HTML with consistent minus signs and numbers in its text, except in code."""
    return _TEXT.sub(lambda match: match[0] if match[0].startswith("<") else words.typeset_text(match[0]), body)


def without_folders(text: str) -> str:
    r"""Return text in which paths of this machine are cut to their last name, except in commands to copy.

    Examples:
        >>> without_folders("<td>/home/me/bert</td> <pre>score /home/me/bert</pre> (/data/pairs.csv) https://a.b/c/d")
        '<td>bert</td> <pre>score /home/me/bert</pre> (pairs.csv) https://a.b/c/d'
        >>> without_folders(r'C:\Users\me\bert "D:\\data\\pairs.csv" C:/Users/me/bert')
        'bert "pairs.csv" bert'
    """
    return _PATH.sub(
        lambda match: match[0] if match[0].startswith("<") else short_name(match[0].replace("\\\\", "/")), text
    )


@functools.cache
def _carried() -> Markup:
    """Return Plotly as base64 of gzip: two fifths of its size, and every current browser unpacks it."""
    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    return element("script", Markup(packed), type="application/gzip;base64", id="plotly")


@functools.cache
def _from_cdn() -> Markup:
    """Return the script element that loads the same Plotly from `CDN`; the browser verifies its hash."""
    digest = base64.b64encode(hashlib.sha256(get_plotlyjs().encode()).digest()).decode()
    return element(
        "script",
        id="plotly",
        src=f"{CDN}/plotly-{get_plotlyjs_version()}.min.js",
        integrity=f"sha256-{digest}",
        crossorigin="anonymous",
        charset="utf-8",
    )


def _asset(name: str) -> str:
    return (files("layerprobe.results") / "assets" / name).read_text(encoding="utf-8")
