"""Charts of tables as Plotly figures. Knows what a chart declares, no result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import plotly.graph_objects as go

from layerprobe.results import numbers, style
from layerprobe.results.charts import Chart, Line, Quantity, floor_by
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Figure

Bounds = tuple[float, float]
MANY = 8
"""More seeds than these get smaller dots, more room, and are not written out where one points at a mean."""
ROOM, DODGE = 0.4, 0.13
"""Layers from the mean to where the dots of its seeds end: of a line alone, and of lines that stand side by side."""


STYLES = (
    (style.MODEL, style.INTERVAL, "circle", "solid"),
    (style.DROP, style.SHADE, "square", "dash"),
    *((c, s, y, d) for (c, s, d), y in zip(style.FURTHER, ("diamond", "x", "star"), strict=True)),
)
"""Colour, shade, symbol and dash of curves, in turn."""


MARKS = {"chosen": style.CHOSEN, "enough": style.CHOSEN, "candidate": style.CHOSEN, "drop": style.DROP}
"""Colours of the rows that a table marks."""


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


def drawn(table: Table, chart: Chart) -> Figure:
    """Return a chart of a table with its caption; the axis has the title that its columns declare."""
    for name, value in chart.where:
        table = table.where(name, value)
    quantity, curves = chart.quantity(table), _curves(table, chart)
    figure = go.Figure(list({"cost": _costs, "bars": _bars_of, "line": _lines}[chart.kind](table, chart, curves)))
    figure.add_traces([*_across(table, chart, curves), *(_floor(table, chart, curves) if chart.floor else [])])
    _axes(figure, table, chart, curves)
    if chart.limit is not None:
        figure.add_hline(y=chart.limit, line={"dash": "dot", "color": style.FAINT})
    figure.update_yaxes(title=style.text(quantity.title))
    if _is_layers(table, chart) and not chart.by:
        by_mark = [(mark, layer) for layer, mark in zip(table.column("layer").values, table.marks, strict=False)]
        best = [layer for mark, layer in by_mark if mark in ("chosen", "enough", "candidate")]
        if len(best) > 1:
            style.shade(figure, best, style.CANDIDATE)  # type: ignore[arg-type]
        drops = [layer for mark, layer in by_mark if mark == "drop"]
        style.shade_drop(figure, drops, what=chart.drops.removesuffix(" layers"))  # type: ignore[arg-type]
    finding, reading = chart.finding or _course(table, chart, curves), chart.reading(table)
    if chart.kind == "cost" and any(FADED in (trace.marker.opacity or ()) for trace in figure.data if trace.text):
        reading = f"{reading} Faint: another is cheaper and better by more than both intervals."
    return Figure(chart.name, style.styled(figure), finding, reading.strip())


def _curves(table: Table, chart: Chart) -> list[_Curve]:
    """Return the curves: one a column, and of each one a value of `by`."""
    x, groups = table.column(chart.x).values, dict.fromkeys(_labels(table, chart.by))
    curves, styles = [], _styles()
    for line in chart.lines:
        column = table.column(line.column)
        for group in groups:
            rows = tuple(
                row
                for row, (value, label) in enumerate(zip(column.values, _labels(table, chart.by), strict=True))
                if value is not None and x[row] is not None and label == group
            )
            curve_name = line.name or (column.title or column.name if len(chart.lines) > 1 else "")
            curves.append(_Curve(" ".join(filter(None, (group, curve_name))) or column.head, rows, line, *next(styles)))
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


# ---- pieces, also of figures that are drawn by hand ---------------------------------------------------------


def line(
    values: Iterable[float | None],
    *,
    name: str,
    colour: str,
    x: Iterable[float] | None = None,
    width: float = 2.0,
    dash: str = "solid",
    marker: Mapping[str, Any] | None = None,
    texts: Iterable[str] | None = None,
    **options: Any,
) -> go.Scatter:
    """Return a line over layers, or over x, with a gap where a value is None.

    Texts, of Plotly's kind, are shown on hover.
    """
    values = list(values)
    hover: dict[str, Any] = {"hoverinfo": "skip"} if texts is None else {"hovertemplate": "%{hovertext}<extra></extra>"}
    return go.Scatter(
        x=list(range(len(values)) if x is None else x),
        y=values,
        name=style.text(name),
        mode="lines+markers" if marker else "lines",
        line={"color": colour, "width": width, "dash": dash},
        marker=marker,
        hovertext=None if texts is None else list(texts),
        **hover,
        **options,
    )


def area(
    lower: Sequence[float], upper: Sequence[float], *, name: str, colour: str, x: Sequence[float], **options: Any
) -> go.Scatter:
    """Return the ground between two curves over x: along the upper one and back."""
    filled: dict[str, Any] = {"width": 0, "fill": "toself", "fillcolor": colour}
    outline, around = [*upper, *reversed(lower)], [*x, *reversed(x)]
    return line(outline, name=name, colour=style.TRANSPARENT, x=around, **filled, **options)


def bars(values: Iterable[float], ends: Iterable[Bounds], colour: str) -> dict[str, Any]:
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


def beside(count: int, room: float = ROOM) -> list[float]:
    """Return how far from the mean each seed stands: side by side, so that equals stay apart."""
    width = room * (0.4 if count <= MANY else 0.65)
    return [0.4 * room + width * index / max(count - 1, 1) for index in range(count)]


def ring(x: float, y: float, name: str, *, square: bool = False) -> go.Scatter:
    """Return a ring, or a square, around a point."""
    marker = {
        "symbol": "square" if square else "circle",
        "size": 17,
        "color": style.TRANSPARENT,
        "line": {"color": style.CHOSEN, "width": 2.5},
    }
    about: dict[str, Any] = {"name": style.text(name), "hoverinfo": "skip", "showlegend": False}
    return go.Scatter(x=[x], y=[y], mode="markers", marker=marker, **about)


# ---- what charts draw ---------------------------------------------------------------------------------------


def _lines(table: Table, chart: Chart, curves: Sequence[_Curve]) -> Iterator[go.Scatter]:
    several, joined = len(curves) > 1, _is_numeric(table.column(chart.x))
    shifted = several and not chart.band and any(curve.line.interval or curve.line.seeds for curve in curves)
    room = DODGE if shifted else ROOM
    for number, curve in enumerate(curves):
        name, rows, drawn_line = curve.name, curve.rows, curve.line
        shift = DODGE * (number - (len(curves) - 1) / 2) if shifted and _is_layers(table, chart) else 0.0
        values, at = _numbers(table, drawn_line.column, rows), [_place(table, chart, row) + shift for row in rows]
        ends = _ends(table, drawn_line.interval, rows, values)
        if drawn_line.seeds:
            yield from _seeds(table, curve, at, room)
        outer = _ends(table, drawn_line.band, rows, values) if not chart.by or number == 0 else []
        for bounds, colour in ((outer, style.BAND), (ends if chart.band else [], curve.shade)):
            if bounds:
                ground = area(*zip(*bounds, strict=True), name=name, colour=colour, x=at)
                yield ground.update(showlegend=False, legendgroup=name)
        marks = [table.marks[row] if table.marks else None for row in rows]
        marks = [mark if mark == "drop" or not chart.by else None for mark in marks]
        symbols = ["diamond" if mark == "drop" else curve.symbol for mark in marks]
        colours = [MARKS.get(mark or "", curve.colour) for mark in marks]
        trace = line(
            values,
            name=name,
            colour=curve.colour,
            x=at,
            dash=curve.dash if several else "solid",
            marker={"size": 8, "color": colours, "symbol": symbols},
            texts=_texts(table, chart, drawn_line, rows, name if several else ""),
            error_y=None if chart.band or not ends else bars(values, ends, curve.colour),
            legendgroup=name,
            showlegend=several,
        )
        yield trace if joined else trace.update(mode="markers")
        for row, place, value in zip(rows, at, values, strict=True):
            mark = table.marks[row] if table.marks and drawn_line is chart.lines[0] else None
            if mark in ("chosen", "enough"):
                yield ring(place, value, chart.chosen, square=mark == "enough")


def _seeds(table: Table, curve: _Curve, at: Sequence[float], room: float) -> Iterator[go.Scatter]:
    seeds, name = table.column(curve.line.seeds).values, curve.name
    scores: list[Sequence[float]] = [seeds[row] or () for row in curve.rows]  # type: ignore[misc]
    most = max(map(len, scores), default=0)
    if most < 2:
        return
    yield go.Scatter(
        x=[place + aside for place, points in zip(at, scores, strict=True) for aside in beside(len(points), room)],
        y=[value for points in scores for value in points],
        name=f"{style.text(name)}, seeds",
        mode="markers",
        legendgroup=name,
        showlegend=False,
        marker={"size": 4 if most > MANY else 6, "color": curve.colour, "opacity": 0.5, "symbol": curve.symbol},
        hovertemplate=f"{style.text(name)}, one seed<br>%{{y:.2f}}<extra></extra>",
    )


def _bars_of(table: Table, chart: Chart, curves: Sequence[_Curve]) -> Iterator[go.Bar]:
    for curve in curves:
        name, rows, drawn_line = curve.name, curve.rows, curve.line
        marks = [table.marks[row] if table.marks else None for row in rows]
        yield go.Bar(
            x=[table.column(chart.x).values[row] for row in rows],
            y=_numbers(table, drawn_line.column, rows),
            name=style.text(name),
            showlegend=len(curves) > 1,
            marker={"color": [MARKS.get(mark or "", curve.colour) for mark in marks]},
            hovertext=_texts(table, chart, drawn_line, rows, ""),
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _across(table: Table, chart: Chart, curves: Sequence[_Curve]) -> Iterator[go.Scatter]:
    """Yield a line across for each row without an x, such as one of several layers together."""
    column, names = table.column(chart.lines[0].column), table.columns[0].cells
    places = [_place(table, chart, row) for curve in curves for row in curve.rows]
    rows = [row for row, x in enumerate(table.column(chart.x).values) if x is None and column.values[row] is not None]
    for row, dash in zip(rows if places else (), cycle(style.DASHES[1:])):
        texts = [f"{style.text(names[row])} {style.text(column.cells[row])}"] * 2
        ends = min(places), max(places)
        value = _numbers(table, chart.lines[0].column, [row])[0]
        yield line([value] * 2, name=names[row], colour=style.REFERENCE, x=ends, dash=dash, texts=texts)


def _floor(table: Table, chart: Chart, curves: Sequence[_Curve]) -> list[go.Scatter]:
    """Return a dashed line at what a trivial answer scores; nothing where there is none, or at 0, far from all else."""
    column = table.column(chart.floor)
    values = _numbers(table, chart.floor, [row for row, value in enumerate(column.values) if value is not None])
    places = [_place(table, chart, row) for curve in curves for row in curve.rows]
    if not places or not values or not values[0]:
        return []
    by, ends = floor_by(column), (min(places), max(places))
    texts = [f"{style.text(by)}: {numbers.number(values[0])}"] * 2
    return [line([values[0]] * 2, name=by, colour=style.FAINT, x=ends, width=1.5, dash="dash", texts=texts)]


# ---- quality against cost -----------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A row of a chart of quality against cost."""

    row: int
    cost: float
    across: Bounds
    value: float
    upright: Bounds


def _costs(table: Table, chart: Chart, curves: Sequence[_Curve]) -> Iterator[go.Scatter]:
    """Yield labelled points of quality against cost; what another beats beyond both intervals is faint."""
    groups = [_points(table, chart, curve) for curve in curves]
    points, lower = [point for group in groups for point in group], chart.quantity(table).best == "lower"
    places = [(point.cost, point.value) for point in points]
    sides = dict(zip(points, placed_labels(places), strict=True))

    def is_better(one: Bounds, other: Bounds) -> bool:
        return one[1] < other[0] if lower else one[0] > other[1]

    beaten = {
        point
        for point in points
        if any(other.across[1] < point.across[0] and is_better(other.upright, point.upright) for other in points)
    }
    marked = [point for point in points if table.marks and table.marks[point.row] == "chosen"]
    labels = table.column(chart.label).cells if chart.label else table.columns[0].cells
    for curve, group in zip(curves, groups, strict=True):
        opacity = [FADED if point in beaten else 1.0 for point in group]
        costs, values = [point.cost for point in group], [point.value for point in group]
        yield go.Scatter(
            x=costs,
            y=values,
            name=style.text(curve.name),
            showlegend=len(curves) > 1,
            mode="markers+text",
            text=[style.text(labels[point.row]) if sides[point] else "" for point in group],
            textposition=[sides[point] or "top right" for point in group],
            textfont={"color": style.INK, "size": 11},
            cliponaxis=False,
            marker={"size": 8, "color": curve.colour, "symbol": curve.symbol, "opacity": opacity},
            hovertext=_texts(table, chart, curve.line, curve.rows, curve.name if len(curves) > 1 else ""),
            hovertemplate="%{hovertext}<extra></extra>",
            error_x=bars(costs, [point.across for point in group], curve.colour) if chart.x_interval else None,
            error_y=bars(values, [point.upright for point in group], curve.colour) | {"thickness": 0.8},
        )
    for point in marked:
        yield ring(point.cost, point.value, chart.chosen)


def _points(table: Table, chart: Chart, curve: _Curve) -> list[_Point]:
    costs, values = _numbers(table, chart.x, curve.rows), _numbers(table, curve.line.column, curve.rows)
    across = _ends(table, chart.x_interval, curve.rows, costs) or [(cost, cost) for cost in costs]
    upright = _ends(table, curve.line.interval, curve.rows, values) or [(value, value) for value in values]
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


# ---- axes and words -----------------------------------------------------------------------------------------


def _axes(figure: go.Figure, table: Table, chart: Chart, curves: Sequence[_Curve]) -> None:
    column = table.column(chart.x)
    if _is_layers(table, chart):
        style.layer_axis(figure, 1 + max((int(column.values[row]) for c in curves for row in c.rows), default=0))  # type: ignore[call-overload]
        return
    title = column.quantity.title if column.quantity else numbers.capitalised(column.head)
    figure.update_xaxes(title=style.text(title))
    if chart.kind == "cost":
        costs = [value for value in _numbers(table, chart.x, [row for curve in curves for row in curve.rows]) if value]
        narrow = not costs or max(costs) < 8 * min(costs)  # else labels of every digit would touch
        large = max(costs, default=0) >= 1000
        figure.update_xaxes(type="log", dtick="D1" if narrow else "D2", tickformat="~s" if large else "~g")
    elif not _is_numeric(column):
        names = list(dict.fromkeys(column.cells))
        figure.update_xaxes(tickvals=list(range(len(names))), ticktext=list(map(style.text, names)))
    elif all(isinstance(value, int) for value in column.values):
        figure.update_xaxes(dtick=max(1, len(set(column.values)) // 10))


def _is_layers(table: Table, chart: Chart) -> bool:
    return chart.x == "layer" and chart.kind != "cost" and table.column("layer").title == ""


def _is_numeric(column: Column) -> bool:
    return all(isinstance(value, (int, float)) for value in column.values if value is not None)


def _place(table: Table, chart: Chart, row: int) -> float:
    """Return where a row stands on the axis: at its number, or, of names, in the order of the names."""
    column = table.column(chart.x)
    value = column.values[row]
    return (
        column.scale * value
        if isinstance(value, (int, float))
        else list(dict.fromkeys(column.cells)).index(column.cells[row])
    )


def _numbers(table: Table, name: str, rows: Sequence[int]) -> list[float]:
    column = table.column(name)
    return [column.scale * column.values[row] for row in rows]  # type: ignore[operator]


def _ends(table: Table, name: str, rows: Sequence[int], values: Sequence[float]) -> list[Bounds]:
    """Return the interval of each row, of no length where it has none; nothing where no row has one."""
    if not name:
        return []
    column = table.column(name, interval=True)
    bounds: list[Bounds | None] = [column.values[row] for row in rows]  # type: ignore[misc]
    if all(bound is None for bound in bounds):
        return []
    return [
        (column.scale * bound[0], column.scale * bound[1]) if bound else (value, value)
        for bound, value in zip(bounds, values, strict=True)
    ]


def _texts(table: Table, chart: Chart, drawn_line: Line, rows: Sequence[int], name: str) -> list[str]:
    """Return the hover text of each row: the cells of the drawn columns."""
    names = dict.fromkeys(filter(None, (chart.label, chart.x, drawn_line.column, drawn_line.seeds, *chart.hover)))
    columns = [table.column(name) for name in names]
    intervals = dict.fromkeys(filter(None, (drawn_line.interval, chart.x_interval)))
    columns += [table.column(name, interval=True) for name in intervals]
    return [
        "<br>".join(
            [style.text(name)] * bool(name)
            + [
                f"{style.text(column.head)} {style.text(numbers.typeset(cell))}"
                for column in columns
                if (cell := column.cells[row])
            ]
        )
        for row in rows
    ]


def _course(table: Table, chart: Chart, curves: Sequence[_Curve]) -> str:
    """Summarise each curve: its chosen or best value and its last; for costs, name both axes."""
    quantity, x = chart.quantity(table), table.column(chart.x)
    if chart.kind == "cost":
        return f"{quantity.title} against {x.quantity.unit if x.quantity else x.head}."
    pieces = [_piece(table, chart, curve, quantity) for curve in curves]
    if len(curves) == 1:
        return f"{quantity.title} is {pieces[0]}."
    named = "; ".join(f"{curve.name} is {piece}" for curve, piece in zip(curves, pieces, strict=True))
    return f"{quantity.title}: {named}."


def _piece(table: Table, chart: Chart, curve: _Curve, quantity: Quantity) -> str:
    """Return the number of the chosen row, of the best one where that chooses nothing, and of the last."""
    x, column, rows = table.column(chart.x), table.column(curve.line.column), curve.rows

    def at(row: int) -> str:
        return f"{column.cells[row]} at {place(row)}"

    def place(row: int) -> str:
        name = x.title or x.name.replace("_", " ")
        # as layer 3, but 8 blocks kept
        return f"{x.cells[row]} {name}" if name.endswith(("kept", "left")) else f"{name} {x.cells[row]}"

    chosen = next((row for row in rows if table.marks and table.marks[row] == "chosen"), None)
    if chosen is not None:
        first, top = f"{at(chosen)}, {chart.chosen},", chosen
    elif quantity.split == "test":  # what is highest on test is the luck of a maximum, too
        first, top = at(rows[0]), rows[0]
    else:
        values, (best, what) = (
            _numbers(table, curve.line.column, rows),
            (min, "lowest") if quantity.best == "lower" else (max, "highest"),
        )
        top = rows[values.index(best(values))]
        first = f"{what} at {place(top)}, {column.cells[top]},"
    both = first.rstrip(",") if top == rows[-1] else f"{first} and {at(rows[-1])}"
    return numbers.typeset_text(both)
