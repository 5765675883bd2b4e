"""Charts of tables as Plotly figures. Knows what a chart declares, no result."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import plotly.graph_objects as go

from layerprobe.names import in_percent
from layerprobe.results import numbers, style
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Choice
from layerprobe.results.shown import Shown, has_conclusion
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Figure

Bounds = tuple[float, float]
CROWD = 26
"""More points than these are small."""
MANY = 8
"""More seeds than these get smaller dots, more room, and are not written out where one points at a mean."""
ROOM, DODGE = 0.4, 0.13
"""Layers from the mean to where the dots of its seeds end: of a line alone, and of lines that stand side by side."""
STYLES = (
    (style.MODEL, style.INTERVAL, "circle", "solid"),
    (style.DROP, style.SHADE, "x", "dash"),
    *((c, s, y, d) for (c, s, d), y in zip(style.FURTHER, ("triangle-up", "star", "hexagon"), strict=True)),
)
"""Colour, shade, symbol and dash of curves, in turn."""
TITLE = 40
"""Letters in a line of a title that stands upright: it fits a figure on a phone."""
MARKS = {"chosen": style.CHOSEN, "enough": style.CHOSEN, "candidate": style.CHOSEN, "drop": style.DROP}
"""Colours of the rows that a table marks."""
SYMBOLS = {"enough": "square", "drop": "triangle-down"}
"""Their shapes, where these are not those of the curve."""


class _Curve(NamedTuple):
    """One curve, and how it is drawn."""

    name: str
    rows: tuple[int, ...]
    """Those that have a number and an x."""
    line: Line
    colour: str
    shade: str
    symbol: str
    dash: str


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A chart while it is drawn: its rows, the figure, and notes on what is there to see."""

    table: Table
    chart: Chart
    figure: go.Figure
    notes: list[str]

    @property
    def is_layers(self) -> bool:
        """Whether the axis is that of layers."""
        return self.chart.x == "layer" and self.chart.kind != "cost" and _is_numeric(self.table.column("layer"))

    def mark(self, row: int) -> str:
        """Return what the table marks a row as."""
        return (self.table.marks[row] if self.table.marks else None) or ""

    def numbers(self, name: str, rows: Iterable[int]) -> list[float]:
        """Return the numbers of a column as an axis has them."""
        column = self.table.column(name)
        return [column.scale * column.values[row] for row in rows]  # type: ignore[operator]

    def ends(self, name: str, rows: Sequence[int], values: Sequence[float], shape: str) -> list[Bounds]:
        """Return the interval of each row, of no length where it has none; nothing where no row has one."""
        if not name:
            return []
        column = self.table.column(name, interval=True)
        bounds: list[Bounds | None] = [column.values[row] for row in rows]  # type: ignore[misc]
        if all(bound is None for bound in bounds):
            return []
        self.notes.append(f"{shape}: {f'{column.head} {column.over}'.strip()}.")
        return [
            (column.scale * bound[0], column.scale * bound[1]) if bound else (value, value)
            for bound, value in zip(bounds, values, strict=True)
        ]

    def place(self, row: int) -> float:
        """Return where a row stands on the axis: at its number, or, of names, in the order of the names."""
        column = self.table.column(self.chart.x)
        value = column.values[row]
        if isinstance(value, (int, float)):
            return column.scale * value
        return list(dict.fromkeys(column.cells)).index(column.cells[row])

    def write(self, words: str, x: float, up: int, *, colour: str = style.INK, size: int = 12, **about: Any) -> None:
        """Write words at x, so many pixels above the plot's lower end."""
        font, place = {"color": colour, "size": size}, {"y": 0, "yref": "paper"} | about
        self.figure.add_annotation(text=words, x=x, yshift=up, showarrow=False, font=font, **place)


def figures(result: Shown) -> list[Figure]:
    """Return the charts of a result's table and of its details; the axis of the first is the model that it cuts."""
    conclusion = result.conclusion if has_conclusion(result) else None
    choice = None if conclusion is None else conclusion.choice
    level = None if conclusion is None else next((f.level for f in conclusion.facts.values() if f.level), None)
    charts = [(table, chart) for table in (result.table, *result.details) if len(table) for chart in table.charts]
    return [
        drawn(table, chart, choice=None if number else choice, level=level)
        for number, (table, chart) in enumerate(charts)
    ]


def drawn(table: Table, chart: Chart, *, choice: Choice | None = None, level: float | None = None) -> Figure:
    """Return a chart of a table with its caption; the axis has the title that its columns declare.

    Args:
        table: The numbers.
        chart: Which of them are drawn, and how.
        choice: The blocks that are kept, which are drawn as the axis of a chart of layers.
        level: Confidence level of the choice.
    """
    for name, value in chart.where:
        table = table.where(name, value)
    d = _Drawing(table, chart, style.styled(go.Figure()), [])
    quantity, curves = chart.quantity(table), _curves(d)
    {"cost": _costs, "bars": _bars, "line": _lines}[chart.kind](d, curves)
    _across(d, curves)
    _axes(d, curves)
    d.figure.update_yaxes(title_text="<br>".join(textwrap.wrap(style.text(quantity.title), TITLE)))
    if chart.limit is not None:
        d.figure.add_hline(y=chart.limit, line={"dash": "dot", "color": style.FAINT})
        d.notes.append(f"Dotted line: {f'the {chart.limit:g} that you allowed' if chart.limit else 'no difference'}.")
    if chart.zero:
        d.figure.add_hline(y=0, line={"dash": "dash", "color": style.DROP, "width": 1.5})
        name = "<br>".join(map(style.text, chart.zero.split()))
        d.write(name, 1, 0, xref="paper", yref="y", xshift=4, xanchor="left", align="left", colour=style.DROP)
        d.figure.update_layout(margin_r=52)
    if d.is_layers and choice is not None:
        _model_axis(d, curves, choice, level)
    elif d.is_layers and not chart.by:
        _shades(d)
    return Figure(chart.name, d.figure, _course(d, curves, quantity), " ".join(dict.fromkeys(d.notes)))


def _curves(d: _Drawing) -> list[_Curve]:
    """Return the curves: one a column, and of each one a value of `by`."""
    x, labels = d.table.column(d.chart.x).values, _labels(d.table, d.chart.by)
    curves, styles = [], _styles()
    for line in d.chart.lines:
        column = d.table.column(line.column)
        split = column.quantity.split if line.mark and column.quantity else ""
        name = line.name or (column.title or column.name if len(d.chart.lines) > 1 else "")
        for group in dict.fromkeys(labels):
            rows = tuple(
                row
                for row, (value, label) in enumerate(zip(column.values, labels, strict=True))
                if value is not None and x[row] is not None and label == group
            )
            of_curve = f"{name}, {split}" if split and split not in name else name
            curve_name = " ".join(filter(None, (group, of_curve))) or column.head
            curves.append(_Curve(curve_name, rows, line, *(next(styles) if not line.mark else STYLES[0])))
    return [curve for curve in curves if curve.rows]


def _styles() -> Iterator[tuple[str, str, str, str]]:
    """Yield the style of each curve; beyond `STYLES`, with open symbols and dotted ones."""
    for ending in cycle(("", "-open", "-dot")):
        yield from ((colour, shade, f"{symbol}{ending}", dash) for colour, shade, symbol, dash in STYLES)


def _labels(table: Table, by: str) -> tuple[str, ...]:
    """Return what tells rows apart; a number with what it is of."""
    columns = [table.column(name) for name in by.split()]
    units = [f" {column.head}" if _is_numeric(column) else "" for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True) if columns else [()] * len(table)
    return tuple(", ".join(f"{cell}{unit}" for cell, unit in zip(row, units, strict=True)) for row in rows)


def _is_numeric(column: Column) -> bool:
    return all(isinstance(value, (int, float)) for value in column.values if value is not None)


# ---- lines and bars -----------------------------------------------------------------------------------------


def _lines(d: _Drawing, curves: Sequence[_Curve]) -> None:
    """Draw points with their intervals and seeds, joined where both are of a run."""
    several = len(curves) > 1
    beside = [curve for curve in curves if not curve.line.mark]
    shifted = len(beside) > 1 and not d.chart.band and any(c.line.interval or c.line.seeds for c in curves)
    for number, curve in enumerate(curves):
        name, rows, line = curve.name, curve.rows, curve.line
        shift = DODGE * (number - (len(beside) - 1) / 2) if shifted and d.is_layers and not line.mark else 0.0
        shift += DODGE if line.mark and line.interval else 0.0
        values, at = d.numbers(line.column, rows), [d.place(row) + shift for row in rows]
        if line.seeds:
            _seeds(d, curve, at, DODGE if shifted else ROOM)
        ends = d.ends(line.interval, rows, values, "Shade" if d.chart.band else "Bars")
        outer = d.ends(line.band, rows, values, "Outer shade") if not d.chart.by or number == 0 else []
        for bounds, colour in ((outer, style.BAND), (ends if d.chart.band else [], curve.shade)):
            if bounds:
                _ground(d, at, bounds, colour, name)
        texts = _texts(d, line, rows, name if several else "")
        symbol = line.mark or curve.symbol
        looks = [_look(d, row, value, curve, symbol) for row, value in zip(rows, values, strict=True)]
        measured = [not line.run or bool(d.table.column(line.run).values[row]) for row in rows]
        joined = line.joined and not line.mark and _is_numeric(d.table.column(d.chart.x))
        for is_run in dict.fromkeys(sorted(measured, reverse=True)):
            here = [value if of_run == is_run else None for value, of_run in zip(values, measured, strict=True)]
            colours = [colour for colour, _, _ in looks]
            d.figure.add_scatter(
                x=at,
                y=here,
                name=style.text(name),
                legendgroup=name,
                showlegend=several and is_run == max(measured),
                mode="lines+markers" if joined and is_run else "markers",
                line={"color": curve.colour, "width": 2.0, "dash": curve.dash if several else "solid"},
                marker={
                    "color": colours if is_run else style.PAPER,
                    "symbol": [shape for _, shape, _ in looks],
                    "size": [size for _, _, size in looks],
                    "line": {"color": colours, "width": 0 if is_run else 2},
                    "opacity": 1,
                },
                error_y=None if d.chart.band or not ends else _whiskers(values, ends, curve.colour),
                hovertext=texts,
                hovertemplate="%{hovertext}<extra></extra>",
            )
            if not is_run:
                d.notes.append("Hollow: inferred, without a run.")
        if line.mark:
            d.notes.append(f"{line.mark.capitalize()}: {name}.")


def _look(d: _Drawing, row: int, value: float, curve: _Curve, symbol: str) -> tuple[str, str, int]:
    """Return colour, symbol and size of a point, and note what they mean."""
    mark = d.mark(row)
    size = 5 if len(curve.rows) > CROWD else 10 if curve.line.mark else 8
    if mark == "chosen" and curve.line is d.chart.lines[0]:
        d.notes.append(f"Large point: {d.chart.chosen}.")
        size = 14
    if d.chart.by and mark != "drop":
        return curve.colour, symbol, size
    if curve.line.mark:
        return MARKS.get(mark, curve.colour), symbol, size
    meanings = {"enough": f"Square: {d.chart.enough}.", "drop": f"Triangles: {d.chart.drops}."}
    meanings["candidate"] = "Green: may be the best."
    if mark in meanings:
        d.notes.append(meanings[mark])
    colour = MARKS.get(mark, style.DROP if d.chart.zero and value == 0 else curve.colour)
    return colour, SYMBOLS.get(mark, symbol), size


def _ground(d: _Drawing, at: Sequence[float], bounds: Sequence[Bounds], colour: str, name: str) -> None:
    """Fill the ground between two curves: along the upper one and back."""
    lower, upper = zip(*bounds, strict=True)
    d.figure.add_scatter(
        x=[*at, *reversed(at)],
        y=[*upper, *reversed(lower)],
        name=style.text(name),
        mode="lines",
        line={"color": style.TRANSPARENT, "width": 0},
        fill="toself",
        fillcolor=colour,
        hoverinfo="skip",
        showlegend=False,
        legendgroup=name,
    )


def _whiskers(values: Iterable[float], ends: Iterable[Bounds], colour: str) -> dict[str, Any]:
    """Return bars from values to their lower and upper ends."""
    bounds = [(value, *of_value) for value, of_value in zip(values, ends, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in bounds],
        "arrayminus": [value - low for value, low, _ in bounds],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def _seeds(d: _Drawing, curve: _Curve, at: Sequence[float], room: float) -> None:
    """Draw the score of each seed beside the mean, side by side, so that equals stay apart."""
    column, name = d.table.column(curve.line.seeds), style.text(curve.name)
    scores: list[Sequence[float]] = [column.values[row] or () for row in curve.rows]  # type: ignore[misc]
    most = max(map(len, scores), default=0)
    if most < 2:
        return
    width = room * (0.4 if most <= MANY else 0.65)
    d.figure.add_scatter(
        x=[
            place + 0.4 * room + width * index / max(len(points) - 1, 1)
            for place, points in zip(at, scores, strict=True)
            for index in range(len(points))
        ],
        y=[value for points in scores for value in points],
        name=f"{name}, seeds",
        mode="markers",
        legendgroup=curve.name,
        showlegend=False,
        marker={"size": 4 if most > MANY else 6, "color": curve.colour, "opacity": 0.5, "symbol": curve.symbol},
        hovertemplate=f"{name}, one seed<br>%{{y:.2f}}<extra></extra>",
    )
    d.notes.append(f"Small marks: {column.over or 'seeds'}.")


def _bars(d: _Drawing, curves: Sequence[_Curve]) -> None:
    colours = {"chosen": f"Green: {d.chart.chosen}.", "drop": f"Orange: {d.chart.drops}."}
    for curve in curves:
        marks = [d.mark(row) for row in curve.rows]
        d.figure.add_bar(
            x=[d.table.column(d.chart.x).values[row] for row in curve.rows],
            y=d.numbers(curve.line.column, curve.rows),
            name=style.text(curve.name),
            showlegend=len(curves) > 1,
            marker={"color": [MARKS[mark] if mark in colours else curve.colour for mark in marks]},
            hovertext=_texts(d, curve.line, curve.rows, ""),
            hovertemplate="%{hovertext}<extra></extra>",
        )
        d.notes.extend([text for mark, text in colours.items() if mark in marks])


def _across(d: _Drawing, curves: Sequence[_Curve]) -> None:
    """Draw lines across: rows without an x, such as one of several layers together, and what a trivial answer scores.

    The latter is left out at 0, far from all else.
    """
    places = [d.place(row) for curve in curves for row in curve.rows]
    if not places:
        return
    column, names = d.table.column(d.chart.lines[0].column), d.table.columns[0].cells
    rows = [row for row, x in enumerate(d.table.column(d.chart.x).values) if x is None]
    lines = [
        (d.numbers(column.name, [row])[0], names[row], column.cells[row], style.REFERENCE, dash)
        for row, dash in zip((row for row in rows if column.values[row] is not None), cycle(style.DASHES[1:]))
    ]
    if d.chart.floor:
        floors = d.table.column(d.chart.floor)
        floor = next((row for row, value in enumerate(floors.values) if value is not None), None)
        value = 0.0 if floor is None else d.numbers(floors.name, [floor])[0]
        if value:
            by = floors.meaning.removeprefix("By ").removesuffix(".") or "a trivial answer"
            d.notes.append(f"Dashed line: {by}.")
            lines.append((value, by, numbers.number(value), style.FAINT, "dash"))
    for value, name, cell, colour, dash in lines:
        d.figure.add_scatter(
            x=[min(places), max(places)],
            y=[value] * 2,
            name=style.text(name),
            mode="lines",
            line={"color": colour, "width": 1.5, "dash": dash},
            hovertext=[f"{style.text(name)}: {style.text(cell)}"] * 2,
            hovertemplate="%{hovertext}<extra></extra>",
        )


# ---- quality against cost -----------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A row of a chart of quality against cost."""

    row: int
    cost: float
    across: Bounds
    value: float
    upright: Bounds


def _costs(d: _Drawing, curves: Sequence[_Curve]) -> None:
    """Draw labelled points of quality against cost; what another beats beyond both intervals is faint."""
    groups = [_points(d, curve) for curve in curves]
    points, lower = [point for group in groups for point in group], d.chart.quantity(d.table).best == "lower"
    sides = dict(zip(points, placed_labels([(point.cost, point.value) for point in points]), strict=True))

    def is_better(one: Bounds, other: Bounds) -> bool:
        return one[1] < other[0] if lower else one[0] > other[1]

    beaten = {
        point
        for point in points
        if any(other.across[1] < point.across[0] and is_better(other.upright, point.upright) for other in points)
    }
    marked = {point for point in points if d.mark(point.row) == "chosen"}
    d.notes.extend([f"Large point: {d.chart.chosen}."] if marked else [])
    d.notes.extend(["Faint: another is cheaper and better by more than both intervals."] if beaten else [])
    labels = d.table.column(d.chart.label).cells if d.chart.label else d.table.columns[0].cells
    for curve, group in zip(curves, groups, strict=True):
        costs, values = [point.cost for point in group], [point.value for point in group]
        across = [point.across for point in group]
        d.figure.add_scatter(
            x=costs,
            y=values,
            name=style.text(curve.name),
            showlegend=len(curves) > 1,
            mode="markers+text",
            text=[style.text(labels[point.row]) if sides[point] else "" for point in group],
            textposition=[sides[point] or "top right" for point in group],
            textfont={"color": style.INK, "size": 11},
            cliponaxis=False,
            marker={
                "size": [14 if point in marked else 8 for point in group],
                "color": [style.CHOSEN if point in marked and len(curves) == 1 else curve.colour for point in group],
                "symbol": curve.symbol,
                "opacity": [FADED if point in beaten else 1.0 for point in group],
            },
            hovertext=_texts(d, curve.line, curve.rows, curve.name if len(curves) > 1 else ""),
            hovertemplate="%{hovertext}<extra></extra>",
            error_x=_whiskers(costs, across, curve.colour) if d.chart.x_interval else None,
            error_y=_whiskers(values, [point.upright for point in group], curve.colour) | {"thickness": 0.8},
        )


def _points(d: _Drawing, curve: _Curve) -> list[_Point]:
    costs, values = d.numbers(d.chart.x, curve.rows), d.numbers(curve.line.column, curve.rows)
    upright = d.ends(curve.line.interval, curve.rows, values, "Bars upright" if d.chart.x_interval else "Bars")
    across = d.ends(d.chart.x_interval, curve.rows, costs, "Bars across")
    upright, across = upright or [(value, value) for value in values], across or [(cost, cost) for cost in costs]
    return [_Point(*values_of) for values_of in zip(curve.rows, costs, across, values, upright, strict=True)]


SIDES = {"top right": (1.0, 1.0), "bottom right": (1.0, -1.0), "top left": (-1.0, 1.0), "bottom left": (-1.0, -1.0)}
"""Beside the bars of intervals, which go up and across."""
FADED = 0.35
"""How opaque a point is that another beats."""
WIDTH, HEIGHT = 0.035, 0.055
"""Of a label, as shares of a figure."""


def placed_labels(points: Sequence[tuple[float, float]]) -> list[str | None]:
    """Return for each point of a logarithmic and a linear axis where its label stands; None where there is no room.

    Examples:
        >>> placed_labels([(1.0, 1.0), (1.0, 1.0), (10.0, 2.0)])
        ['top right', 'bottom right', 'top right']
    """
    xs, ys = [math.log(max(x, 1e-12)) for x, _ in points], [y for _, y in points]
    wide, high = (max(places) - min(places) or 1.0 for places in (xs or [0.0], ys or [0.0]))
    at = [((x - min(xs)) / wide, (y - min(ys)) / high) for x, y in zip(xs, ys, strict=True)]
    taken: list[tuple[float, float]] = []
    sides: list[str | None] = []
    for place, (x, y) in enumerate(at):
        others = [point for number, point in enumerate(at) if number != place]
        for side, (right, up) in SIDES.items():
            spot = x + right * WIDTH, y + up * HEIGHT
            clear = all(_apart(spot, other) for other in taken) and all(
                _apart(spot, other, 0.6) or other == (x, y) for other in others
            )
            if clear:
                taken.append(spot)
                sides.append(side)
                break
        else:
            sides.append(None)
    return sides


def _apart(one: tuple[float, float], other: tuple[float, float], share: float = 1.0) -> bool:
    return abs(one[0] - other[0]) > share * WIDTH or abs(one[1] - other[1]) > share * HEIGHT


def _cost_ticks(costs: Sequence[float]) -> list[float]:
    """Return round numbers on a logarithmic axis, so far apart that their labels do not touch on a phone.

    Examples:
        >>> _cost_ticks([0.27, 1.17]), _cost_ticks([2.0, 900.0])
        ([0.3, 0.4, 0.5, 0.7, 0.9], [2.0, 5.0, 20.0, 50.0, 200.0, 500.0])
    """
    low, high = min(costs), max(costs)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for tick in (float(f"{digit}e{decade}") for decade in decades for digit in range(1, 10)):
        if low <= tick <= high and (not ticks or tick / ticks[-1] >= (high / low) ** 0.14):
            ticks.append(tick)
    return ticks


# ---- axes ---------------------------------------------------------------------------------------------------


def _axes(d: _Drawing, curves: Sequence[_Curve]) -> None:
    column, rows = d.table.column(d.chart.x), [row for curve in curves for row in curve.rows]
    axis = d.figure.update_xaxes
    if d.is_layers:
        style.layer_axis(d.figure, 1 + max((int(column.values[row]) for row in rows), default=0))  # type: ignore[call-overload]
        return
    axis(title_text=style.text(column.quantity.title if column.quantity else numbers.capitalised(column.head)))
    if d.chart.kind == "cost":
        costs = [cost for cost in d.numbers(d.chart.x, rows) if cost > 0]
        axis(type="log", tickformat="~s" if max(costs, default=0) >= 1000 else "~g")
        if costs:
            axis(tickvals=_cost_ticks(costs) or None)
    elif not _is_numeric(column):
        names = list(dict.fromkeys(column.cells))
        axis(tickvals=list(range(len(names))), ticktext=list(map(style.text, names)), tickangle=None)
    elif rows and all(isinstance(column.values[row], int) for row in rows):
        places = [d.place(row) for row in rows]
        n = round(max(places) - min(places)) + 1
        step = style.tick_step(n)
        axis(dtick=step if step < n else None, nticks=8)


def _shades(d: _Drawing) -> None:
    """Shade the layers of which one is best, and the drop layers."""
    rows = range(len(d.table.marks))
    layers = {row: d.table.column("layer").values[row] for row in rows}
    best: list[Any] = [layers[row] for row in rows if d.mark(row) in ("chosen", "enough", "candidate")]
    drops: list[Any] = [layers[row] for row in rows if d.mark(row) == "drop"]
    if any(d.mark(row) == "candidate" for row in rows):
        style.shade(d.figure, best, style.CANDIDATE)
        d.notes.append("Green: may be the best.")
    if drops:
        style.shade(d.figure, drops, style.SHADE)
        what = f"{d.chart.drops.removesuffix(' layers')} {'from' if len(drops) > 1 else 'at'} layer {drops[0]}"
        d.write(what, drops[-1] + 0.5, 0, y=1, xanchor="right", yanchor="bottom", colour=style.DROP)


def _model_axis(d: _Drawing, curves: Sequence[_Curve], choice: Choice, level: float | None) -> None:
    """Draw the blocks of the model below the plot, those that stay filled, and the cut with what it is worth."""
    n, last = choice.n_blocks, len(choice.blocks)
    step = style.tick_step(n + 1)
    deep = step > 1  # then numbers have no room inside the blocks
    d.figure.update_xaxes(range=[-0.5, n + 0.5], title_text="", showticklabels=False, showgrid=False, ticks="")
    pixels = {"yref": "paper", "ysizemode": "pixel", "yanchor": 0}
    for block in range(1, n + 1):
        stays = block in choice.blocks
        outline = {"color": style.CHOSEN, "width": 1} if stays else {"color": style.FAINT, "width": 1, "dash": "dot"}
        fill = style.CHOSEN if stays else style.TRANSPARENT
        d.figure.add_shape(
            type="rect", x0=block - 0.46, x1=block + 0.46, y0=-10, y1=-34, fillcolor=fill, line=outline, **pixels
        )
        if block % step == 0:
            colour = style.PAPER if stays and not deep else style.FAINT
            d.write(str(block), block, -42 if deep else -22, colour=colour, yanchor="middle")
    d.write("embeddings", 0.44, -22, size=11, colour=style.FAINT, xanchor="right", yanchor="middle")
    below = -56 if deep else -40
    is_cut = choice.blocks == tuple(range(1, last + 1)) and last < n
    if is_cut:
        line = {"color": style.INK, "width": 2.5}
        d.figure.add_shape(type="line", x0=last + 0.5, x1=last + 0.5, y0=-4, y1=below - 2, line=line, **pixels)
        row = next((row for row in range(len(d.table)) if d.mark(row) == "chosen"), None)
        worth = [
            f"{style.text(curve.name)} {style.text(numbers.typeset(d.table.column(curve.line.column).cells[row]))}"
            for curve in curves
            if row in curve.rows and (curve.line.mark or curve.line is d.chart.lines[0])
        ]
        text = "<br>".join(["<b>cut here</b>", " · ".join(worth)])
        side = _side(last, n)
        d.write(text, last + 0.5, below, xanchor=side, align=side, yanchor="top")
    d.figure.update_layout(margin_b=(84 if is_cut else 46) + 16 * deep + 26 * (len(curves) > 1))
    if choice.candidates:
        first, end = choice.candidates[0], choice.candidates[-1]
        style.shade(d.figure, choice.candidates, style.CANDIDATE)
        sure = f" ({in_percent(level, ' %')})" if level else ""
        among = f"the best is one of these{sure}"
        if end - first + 1 == len(choice.candidates):
            side = _side((first + end) / 2, n)
            at = {"left": first - 0.5, "center": (first + end) / 2, "right": end + 0.5}[side]
            d.write(f"<b>{among}</b>", at, 0, y=1, xanchor=side, yanchor="bottom", colour=style.CHOSEN)
        else:
            d.notes.append(f"Green ground: {among}.")
    d.notes.append("The axis is the model, block by block.")


def _side(layer: float, n_blocks: int) -> str:
    """Return which side of a text stands at a layer, so that it stays inside the figure."""
    return "left" if layer < n_blocks / 3 else "right" if layer > 2 * n_blocks / 3 else "center"


# ---- words --------------------------------------------------------------------------------------------------


def _texts(d: _Drawing, line: Line, rows: Sequence[int], name: str) -> list[str]:
    """Return the hover text of each row: the cells of the drawn columns."""
    names = dict.fromkeys(filter(None, (d.chart.label, d.chart.x, line.column, line.seeds, *d.chart.hover)))
    columns = [d.table.column(name) for name in names]
    intervals = dict.fromkeys(filter(None, (line.interval, d.chart.x_interval)))
    columns += [d.table.column(name, interval=True) for name in intervals]
    cells = [(style.text(column.head), column.cells) for column in columns]
    return [
        "<br>".join(
            [style.text(name)] * bool(name)
            + [f"{head} {style.text(numbers.typeset(of_column[row]))}" for head, of_column in cells if of_column[row]]
        )
        for row in rows
    ]


def _course(d: _Drawing, curves: Sequence[_Curve], quantity: Quantity) -> str:
    """Summarise each curve: its chosen or best value and its last; for costs, name both axes."""
    x = d.table.column(d.chart.x)
    if d.chart.kind == "cost":
        return f"{quantity.title} against {x.quantity.unit if x.quantity else x.head}."
    pieces = [_piece(d, curve, quantity) for curve in curves]
    if len(curves) > 1:
        pieces = [f"{curve.name}: {piece}" for curve, piece in zip(curves, pieces, strict=True)]
    return numbers.typeset_text(f"{quantity.title}{'.' if len(curves) > 1 else ':'} {'; '.join(pieces)}.")


def _piece(d: _Drawing, curve: _Curve, quantity: Quantity) -> str:
    """Return the number of the chosen row, of the best one where that chooses nothing, and of the last."""
    x, column, rows = d.table.column(d.chart.x), d.table.column(curve.line.column), curve.rows
    where = x.name.replace("_", " ") if d.is_layers else x.head
    lowest = quantity.best == "lower"
    chosen = next((row for row in rows if d.mark(row) == "chosen"), None)
    if chosen is not None:
        first, what = chosen, f" ({d.chart.chosen})"
    elif quantity.split == "test" or curve.line.mark:  # what is highest on test is the luck of a maximum, too
        first, what = rows[0], ""
    else:
        values = d.numbers(curve.line.column, rows)
        first, what = rows[values.index((min if lowest else max)(values))], f" ({'lowest' if lowest else 'highest'})"
    texts = {row: f"{column.cells[row] or 'no'} at {where} {x.cells[row]}" for row in (first, rows[-1])}
    texts[first] += what
    return ", ".join(texts.values())
