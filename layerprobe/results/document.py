"""A result as HTML: one self-contained page, and the top of it in a notebook. Knows HTML, no kind of result.

HTML is escaped by construction: `element` escapes all text that is no `Markup`.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import importlib.util
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from layerprobe.checks import check_choice, check_extra
from layerprobe.errors import DataError, MissingPackageError, is_unreliable
from layerprobe.files.atomic import write_file
from layerprobe.files.serialisation import to_json
from layerprobe.names import short_name
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Step, Verdict
from layerprobe.results.explore import LARGEST, Explored, items_of, packed
from layerprobe.results.shown import PlotlySource, Shown
from layerprobe.results.table import Column, Table, importing, probability
from layerprobe.versions import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from layerprobe.results.style import Figure

CDN = "https://cdn.plot.ly"
"""The address from which pages without embedded Plotly load it."""
_PART = r"[^\s/<>\"'&;:,()\\]+"
_PATH = re.compile(
    rf"<pre.*?</pre>|(?<![\w~.:/<-])/(?:{_PART}/)+{_PART}|(?<!\w)[A-Za-z]:[/\\]+(?:{_PART}[/\\]+)+{_PART}", re.DOTALL
)
_TEXT = re.compile(r"<(pre|code)\b.*?</\1>|<[^>]*>|[^<]+", re.DOTALL)


class Markup(str):
    """Text that is already HTML, shown by notebooks; every other string is escaped when it is inserted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Markup of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        return self


def escape(text: str) -> Markup:
    """Return `text` escaped, unless it is HTML already."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def element(tag: str, *children: str | None, **attributes: str | None) -> Markup:
    """Return one HTML element: Markup children unchanged, other text escaped, None left out.

    In names of attributes, `class_` becomes class, and other underscores become hyphens.

    Examples:
        >>> print(element("p", "a < b", class_="note"))
        <p class="note">a &lt; b</p>
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Markup:
    """Return the children, concatenated."""
    return Markup("".join(escape(child) for child in children if child is not None))


def script_json(text: str) -> Markup:
    r"""Return JSON text that is safe inside a script element and parses to the same value.

    `<` occurs only inside JSON strings, where `\u003c` means the same; without it neither `</script>` nor `<!--`
    can end or alter the element.
    """
    return Markup(text.replace("<", "\\u003c"))


# ---- the page -------------------------------------------------------------------------------------------------


def write_page(path: str | Path, page: str) -> Path:
    """Write a page and return its path; the file is replaced in one step.

    Raises:
        LayerProbeError: If the file cannot be written.
    """
    # A folder name that is not UTF-8 holds lone surrogates; as \udc80 they are valid JSON and legible in text.
    return write_file(Path(path), page.encode("utf-8", "backslashreplace"))


def render(
    result: Shown,
    *,
    plotly: PlotlySource = "embedded",
    command: str = "",
    warnings: Sequence[str] = (),
    texts: bool | None = None,
    beside: Sequence[Shown] = (),
    steps: Sequence[Step] | None = None,
) -> str:
    """Return the page of a result as HTML with style, scripts, figures and data inside.

    Args:
        result: The result to show.
        plotly: embedded: the page opens offline and takes about 2 MB; cdn: it is small and loads Plotly from `CDN`.
        command: The command that made it, if any.
        warnings: Further warnings, such as those about the data.
        texts: Whether to show single items with their texts; by default if that adds at most 1.5 MB.
        beside: Results whose tables and charts are shown below.
        steps: Next steps, instead of those of the result.
    """
    conclusion = result.conclusion if steps is None else replace(result.conclusion, steps=tuple(steps))
    warnings = tuple(dict.fromkeys((*warnings, *getattr(result, "warnings", ()))))
    figures: list[Figure] = []
    (table, drawings), *details = _tables(result, figures)
    further = zip((chart.heading or table.title for chart in table.charts[1:]), drawings[1:], strict=False)
    source = None if texts is False else items_of(result)
    explored, items = (None, "") if source is None else _explored(source, texts)
    made = {"Versions": f"layerprobe {__version__}", **result.sources}
    if command:
        made["Command"] = element("code", command)
    origins = (join(element("dt", name), element("dd", fact)) for name, fact in made.items())
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
            folded("Where the numbers come from", element("dl", *origins, class_="facts")),
        ),
        _downloads(table, f"layerprobe-{conclusion.kind}"),
    )
    title = " · ".join((words.headline(conclusion), *conclusion.subject))
    return document(title, join(*parts), result, table, figures=figures, items=items, plotly=plotly)


def items_alone(result: Shown) -> Markup:
    """Return a frame with the single items of a result, which loads Plotly from `CDN`; DataError if it has none."""
    explored = items_of(result)
    if explored is None:
        raise DataError(
            f"expected a {type(result).__name__} computed in this process from one task whose items can be shown, got "
            "one that was read from a file, has several tasks, or has texts without a task"
        )
    items = _packed(explored)
    heading = f"Explore the {explored.units}"
    body = element("section", element("h1", heading), items_section(explored, len(items)), class_="explore")
    page = document(heading, body, result, result.table, items=items, plotly="cdn")
    look = "width: 100%; height: 60rem; border: 0"
    return element("iframe", srcdoc=page, sandbox="allow-scripts allow-downloads", style=look)


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
    from layerprobe.results.style import DARK

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


def write_figure(path: str | Path, figure: go.Figure) -> Path:
    """Write a figure of 900 x 560 points, a map of 700 x 700, PNG at twice the resolution, and return the path.

    Raises:
        MissingPackageError: If kaleido or Chrome, which draw figures to files, are not installed.
        LayerProbeError: If the file cannot be written.
    """
    kind = Path(path).suffix.lower()[1:]
    check_extra("figures", needed_by=f"a figure as .{kind}")
    width, height = (700, 700) if any(trace.type == "heatmap" for trace in figure.data) else (900, 560)
    try:
        drawing: bytes = figure.to_image(format=kind, width=width, height=height, scale=2 if kind == "png" else 1)
    except (RuntimeError, TimeoutError) as error:  # plotly: there is no browser; kaleido: the browser ended
        raise MissingPackageError(
            f"cannot draw a figure as .{kind}: found no Chrome or Chromium that starts: install one "
            "(plotly_get_chrome), or save the page as .html"
        ) from error
    return write_file(Path(path), drawing)


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
    unreliable = element("ul", *(element("li", warning) for warning in warnings))
    return element(
        "header",
        element("p", overline, class_="overline"),
        element("h1", words.headline(conclusion)),
        element("p", certainty, class_=f"pill {conclusion.verdict.name.lower()}") if certainty else None,
        element("p", sentence, class_="sentence") if sentence else None,
        element("aside", element("h2", "Warnings"), unreliable, class_="warnings") if warnings else None,
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
    items = _packed(explored)
    heading = f"Explore the {explored.units}"
    if not texts and len(items) > LARGEST:
        about = f"The {explored.units} are left out: they would add {_bytes(len(items))} to this page."
        return folded(heading, element("p", f"{about} To show them, use --with-texts.", class_="missing")), ""
    return folded(heading, items_section(explored, len(items)), kind="explore"), items


def _tables(result: Shown, figures: list[Figure]) -> list[tuple[Table, list[Markup]]]:
    """Return the tables of a result, each with its figures, which are renamed and added to those of the page."""
    with importing():
        from layerprobe.results import draw

    drawings = iter(draw.figures(result))
    tables = []
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
    kinds = []
    for column, is_numeric in zip(table.shown, table.numeric, strict=True):
        classes = {"more": column.more, "words": not is_numeric, "chance": column.form is probability}
        kinds.append(" ".join(name for name, applies in classes.items() if applies))
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


def _downloads(table: Table, stem: str) -> Markup:
    buttons = (
        element("button", label, type="button", data_source=source, data_filename=f"{stem}.{end}", data_kind=kind)
        for source, label, end, kind in (
            ("study", "Full result (JSON)", "json", "application/json"),
            ("table", f"{table.title} (CSV)", "csv", "text/csv"),
        )
    )
    return element("section", element("p", *buttons, class_="downloads"), id="data")


# ---- single items ---------------------------------------------------------------------------------------------


def items_section(explored: Explored, size: int) -> Markup:
    """Return the section to compare two layers item by item; `size` is that of the items, in bytes."""
    about = f"{explored.counted}: {_bytes(size)} of this page. To leave them out, use --no-texts."
    wrong = f"Error: {explored.error}. More than {explored.limit:g} counts as wrong."
    maps = (_plot(f"map-{side}", "Map of the texts") for side in "ab")
    mapped = element("div", element("div", *maps, class_="pair"), element("p", _MAP, class_="reading"), id="maps")
    return join(
        element("p", about, class_="reading"),
        element("div", *(_side(explored, side) for side in ("A", "B")), class_="sides"),
        element("div", *(_plot(f"items-{side}", "Outputs") for side in "ab"), class_="pair"),
        mapped if any(group.places for group in explored.groups) else None,
        element("div", *_filters(explored), class_="filters"),
        element("p", "", id="items-found", role="status"),
        element("div", "", id="items-table", role="group", aria_label=explored.units),
        element("button", "Show more", type="button", id="items-more"),
        element("p", wrong, class_="reading"),
        element("noscript", element("p", "Single items need JavaScript.", class_="missing")),
    )


_MAP = (
    "The maps show the first two principal components of each layer's embeddings, rotated to match the layer before. "
    "Where their share of the variance is small, texts that look close can be far apart."
)


def _packed(explored: Explored) -> str:
    """Return the items as base64 of compressed JSON, with the style of their figures."""
    with importing():
        from layerprobe.results.style import empty

    return packed(explored, empty().to_plotly_json())


def _bytes(size: int) -> str:
    return words.text(Fact(value=size, unit="bytes"))


def _side(explored: Explored, side: str) -> Markup:
    """Return the controls that choose one of the two layers to compare."""
    low = side.lower()
    names = [group.name for group in explored.groups]
    options = (element("option", name, value=str(place)) for place, name in enumerate(names))
    chosen = element("select", *options, id=f"group-{low}", aria_label=f"{side}: model")
    one = len(names) == 1
    slider = element(
        "input", type="range", min="0", max="0", step="1", value="0", id=f"layer-{low}", aria_label=f"{side}: layer"
    )
    output = element("output", "", id=f"chosen-{low}", for_=f"layer-{low}")
    return element("div", element("strong", side), None if one else chosen, slider, output, class_=f"side {low}")


def _plot(name: str, label: str) -> Markup:
    plot = element("div", id=f"plot-{name}", class_="plot", role="group", aria_label=label)
    return element("figure", plot, element("figcaption", "", id=f"said-{name}"))


def _filters(explored: Explored) -> tuple[Markup, ...]:
    choices = {
        "a": "A wrong, B right",
        "b": "B wrong, A right",
        "both": "both wrong",
        "neither": "both right",
        "all": f"all {explored.units}",
    }
    options = join(*(element("option", label, value=value) for value, label in choices.items()))
    search = element("input", type="search", id="items-words", aria_label="containing", autocomplete="off")
    return (
        element("label", "Show ", element("select", options, id="items-shown")),
        element("label", "containing ", search),
    )


# ---- a notebook -----------------------------------------------------------------------------------------------


ROWS = 40
"""Rows of a table in a notebook; longer tables lose their middle."""
COLOURS = {
    Verdict.UNDECIDED: "#b58900",
    Verdict.FAILED: "#c44e00",
}
"""Colours of the frame of a pill, by verdict; others are green."""


def in_notebook(result: Shown) -> Markup:
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
    figure = None
    if len(result.table) and result.table.charts and importlib.util.find_spec("plotly") is not None:
        about = {"full_html": False, "include_plotlyjs": "cdn", "default_width": "60em", "default_height": "27em"}
        figure = Markup(result.plot().to_html(**about))  # loads Plotly from the network
    return join(Markup(words.typeset_text(body)), figure, *_first_columns(result.table))


def _first_columns(table: Table) -> Iterator[Markup]:
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
    from plotly.offline import get_plotlyjs

    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    return element("script", Markup(packed), type="application/gzip;base64", id="plotly")


@functools.cache
def _from_cdn() -> Markup:
    """Return the script element that loads the same Plotly from `CDN`; the browser verifies its hash."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

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
