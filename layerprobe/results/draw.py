"""Charts of tables as Plotly figures. Knows charts, no result."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

import plotly.graph_objects as go

from layerprobe.results import style, words
from layerprobe.results.conclusion import Choice, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.style import Curve, Drawing, Figure, draw_axes, draw_model, is_numeric, shade_marked
from layerprobe.results.table import Bounds, Chart, Column, Line, Quantity, Table

ROOM, DODGE = 0.4, 0.13
"""Distance, in layers, from the mean to the last dot of its seeds: for a single line, and for lines side by side."""
MARKS = {
    "chosen": (style.CHOSEN, "", "Large point: {0.chosen}."),
    "enough": (style.CHOSEN, "square", "Square: {0.enough}."),
    "candidate": (style.CHOSEN, "", "Green: may be the best."),
    "drop": (style.DROP, "triangle-down", "Triangles: {0.drops}."),
}
"""Colour, shape and caption of the rows that a table marks."""


def figures(result: Shown) -> list[Figure]:
    """Return the charts of a result's table and details; the axis of the first shows the blocks of the model."""
    conclusion = result.conclusion
    level = next((fact.level for fact in conclusion.facts.values() if fact.level), None)
    choice = conclusion.choice and replace(conclusion.choice, is_guess=conclusion.verdict == Verdict.UNDECIDED)
    charts = [(table, chart) for table in (result.table, *result.details) if len(table) for chart in table.charts]
    return [
        drawn(table, chart, choice=None if number else choice, level=level)
        for number, (table, chart) in enumerate(charts)
    ]


def drawn(table: Table, chart: Chart, *, choice: Choice | None = None, level: float | None = None) -> Figure:
    """Return a chart of a table with its caption.

    With a choice of blocks, and its confidence level, the axis of a chart of layers shows the blocks.
    """
    of_all = table.column(chart.lines[0].column)
    for name, value in chart.where:
        table = table.where(name, value)
    d = Drawing(table, chart, style.styled(go.Figure()), [])
    quantity = chart.quantity(table)
    if chart.kind == "map":
        return _map(d, quantity, of_all)
    if chart.kind == "staircase":
        return _staircase(d, quantity)
    curves = _curves(d)
    {"cost": _costs, "bars": _bars, "line": _lines}[chart.kind](d, curves)
    _across(d, curves)
    draw_axes(d, curves)
    d.figure.update_yaxes(title_text=style.text(quantity.title, 40))
    if chart.limit is not None:
        d.figure.add_hline(y=chart.limit, line={"dash": "dot", "color": style.FAINT})
        d.notes.append(f"Dotted line: {f'your limit of {chart.limit:g}' if chart.limit else 'no difference'}.")
    if chart.zero:
        d.figure.add_hline(y=0, line={"dash": "dash", "color": style.DROP, "width": 1.5})
        name = style.text(chart.zero, 7)
        d.write(name, 1, 0, xref="paper", yref="y", xshift=4, xanchor="left", align="left", colour=style.DROP)
        d.figure.update_layout(margin_r=52)
    if d.is_layers and choice is not None:
        draw_model(d, curves, choice, level)
    elif d.is_layers and not chart.by:
        shade_marked(d)
    return d.done(_course(d, curves, quantity))


def _curves(d: Drawing) -> list[Curve]:
    """Return the curves: one per column and value of `by`."""
    x = d.table.column(d.chart.x).values
    labels = _labels(d.table, d.chart.by)
    curves: list[Curve] = []
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
            number = 0 if line.mark else len(curves)
            colour, shade, symbol, dash = style.STYLES[number % len(style.STYLES)]
            symbol += ("", "-open", "-dot")[number // len(style.STYLES) % 3]
            curves.append(Curve(curve_name, rows, line, colour, shade, symbol, dash))
    return [curve for curve in curves if curve.rows]


def _labels(table: Table, by: str) -> tuple[str, ...]:
    """Return labels that distinguish rows; a number gets the name of its column."""
    columns = [table.column(name) for name in by.split()]
    units = [f" {column.head}" if is_numeric(column) else "" for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True) if columns else [()] * len(table)
    return tuple(", ".join(f"{cell}{unit}" for cell, unit in zip(row, units, strict=True)) for row in rows)


# ---- lines and bars -----------------------------------------------------------------------------------------


def _lines(d: Drawing, curves: Sequence[Curve]) -> None:
    """Draw points with their intervals and seeds, joined where both were run."""
    several = len(curves) > 1
    beside = [curve for curve in curves if not curve.line.mark]
    shifted = len(beside) > 1 and not d.chart.band and any(c.line.interval or c.line.seeds for c in curves)
    for number, curve in enumerate(curves):
        name = curve.name
        rows = curve.rows
        line = curve.line
        shift = DODGE * (number - (len(beside) - 1) / 2) if shifted and d.is_layers and not line.mark else 0.0
        shift += DODGE if line.mark and line.interval else 0.0
        values = d.numbers(line.column, rows)
        at = [d.place(row) + shift for row in rows]
        if line.seeds:
            _seeds(d, curve, at, DODGE if shifted else ROOM)
        ends = d.ends(line.interval, rows, values, "Shade" if d.chart.band else "Bars")
        outer = d.ends(line.band, rows, values, "Outer shade") if not d.chart.by or number == 0 else []
        for bounds, colour in ((outer, style.BAND), (ends if d.chart.band else [], curve.shade)):
            if bounds:  # the area between two curves: along the upper one and back
                lower, upper = zip(*bounds, strict=True)
                ground = {"mode": "lines", "fill": "toself", "fillcolor": colour, "line_width": 0}
                d.points(name, [*at, *reversed(at)], [*upper, *reversed(lower)], **ground)
        looks = [_look(d, row, value, curve) for row, value in zip(rows, values, strict=True)]
        colours, symbols, sizes = map(list, zip(*looks, strict=True))
        measured = [not line.run or bool(d.table.column(line.run).values[row]) for row in rows]
        joined = line.joined and not line.mark and is_numeric(d.table.column(d.chart.x))
        for is_run in dict.fromkeys(sorted(measured, reverse=True)):
            here = [value if of_run == is_run else None for value, of_run in zip(values, measured, strict=True)]
            d.points(
                name,
                at,
                here,
                showlegend=several and is_run == max(measured),
                mode="lines+markers" if joined and is_run else "markers",
                line={"color": curve.colour, "width": 2.0, "dash": curve.dash if several else "solid"},
                marker={
                    "color": colours if is_run else style.PAPER,
                    "symbol": symbols,
                    "size": sizes,
                    "line": {"color": colours, "width": 0 if is_run else 2},
                    "opacity": 1,
                },
                error_y=None if d.chart.band or not ends else _whiskers(values, ends, curve.colour),
                hoverinfo=None,
                hovertext=_texts(d, line, rows, name if several else ""),
            )
            if not is_run:
                d.notes.append("Hollow: inferred, not run.")
        if line.mark:
            d.notes.append(f"{line.mark.capitalize()}: {name}.")


def _look(d: Drawing, row: int, value: float, curve: Curve) -> tuple[str, str, int]:
    """Return colour, symbol and size of a point, and note their meaning."""
    mark = d.mark(row)
    usual = style.DROP if d.chart.zero and value == 0 else curve.colour
    colour, symbol, note = MARKS.get(mark, (usual, "", ""))
    size = 5 if len(curve.rows) > 26 else 8  # many large ones would touch
    if curve.line is not d.chart.lines[0]:
        return (colour, curve.line.mark, size + 2) if curve.line.mark else (curve.colour, curve.symbol, size)
    if d.chart.by and mark != "drop":
        colour, symbol, note = curve.colour, "", note if mark == "chosen" else ""
    if note:
        d.notes.append(note.format(d.chart))
    return colour, symbol or curve.symbol, 14 if mark == "chosen" else size


def _whiskers(values: Iterable[float], ends: Iterable[Bounds], colour: str) -> dict[str, Any]:
    """Return bars from values to their lower and upper ends."""
    bounds = [(value - low, high - value) for value, (low, high) in zip(values, ends, strict=True)]
    downs, ups = zip(*bounds, strict=True)
    look = {"color": colour, "thickness": 1.5, "width": 4}
    return {"type": "data", "symmetric": False, "array": ups, "arrayminus": downs, **look}


def _seeds(d: Drawing, curve: Curve, at: Sequence[float], room: float) -> None:
    """Draw the score of each seed beside the mean, side by side, so that equal scores stay visible."""
    column = d.table.column(curve.line.seeds)
    scores: list[Sequence[float]] = [column.values[row] or () for row in curve.rows]  # type: ignore[misc]
    if max(map(len, scores), default=0) > 1:
        steps = [0.4 + 0.5 * index / max(len(points) - 1, 1) for points in scores for index in range(len(points))]
        means = [place for place, points in zip(at, scores, strict=True) for _ in points]
        values = [value for points in scores for value in points]
        marker = {"size": 5, "color": curve.colour, "opacity": 0.5, "symbol": curve.symbol}
        x = [mean + room * step for mean, step in zip(means, steps, strict=True)]
        d.points(curve.name, x, values, mode="markers", marker=marker)
        d.notes.append(f"Small marks: {column.over or 'seeds'}.")


def _bars(d: Drawing, curves: Sequence[Curve]) -> None:
    notes = {"chosen": f"Green: {d.chart.chosen}.", "drop": f"Orange: {d.chart.drops}."}
    for curve in curves:
        marks = [d.mark(row) for row in curve.rows]
        d.figure.add_bar(
            x=[d.table.column(d.chart.x).values[row] for row in curve.rows],
            y=d.numbers(curve.line.column, curve.rows),
            name=style.text(curve.name),
            showlegend=len(curves) > 1,
            marker={"color": [MARKS[mark][0] if mark in notes else curve.colour for mark in marks]},
            hovertext=_texts(d, curve.line, curve.rows, ""),
        )
        d.notes.extend(note for mark, note in notes.items() if mark in marks)


def _across(d: Drawing, curves: Sequence[Curve]) -> None:
    """Draw horizontal lines: rows without an x, such as a sum of several layers, and the score of a trivial baseline.

    A baseline of 0 is left out, since it is far from everything else.
    """
    places = [d.place(row) for curve in curves for row in curve.rows]
    column = d.table.column(d.chart.lines[0].column)
    x = d.table.column(d.chart.x).values
    rows = [row for row, value in enumerate(column.values) if value is not None and x[row] is None]
    lines = [
        (d.table.columns[0].cells[row], value, {"color": style.REFERENCE, "dash": dash})
        for row, value, dash in zip(rows, d.numbers(column.name, rows), cycle(("dash", "dot", "dashdot")))
    ]
    if d.chart.floor:
        floors = d.table.column(d.chart.floor)
        by = floors.meaning.removeprefix("By ").removesuffix(".") or "a trivial baseline"
        values = d.numbers(floors.name, [row for row, value in enumerate(floors.values) if value])[:1]
        lines += [(by, value, {"color": style.FAINT, "dash": "dash"}) for value in values]
        d.notes.extend(f"Dashed line: {by}." for _ in values)
    for name, value, line in lines if places else ():
        texts = [f"{style.text(name)}: {words.number(value)}"] * 2
        about = {"line": line | {"width": 1.5}, "hoverinfo": None, "hovertext": texts, "showlegend": None}
        d.points(name, [min(places), max(places)], [value] * 2, mode="lines", **about)


# ---- quality against cost -----------------------------------------------------------------------------------


class _Point(NamedTuple):
    """One row of a chart of quality against cost."""

    row: int
    cost: float
    across: Bounds
    value: float
    upright: Bounds


def _costs(d: Drawing, curves: Sequence[Curve]) -> None:
    """Draw labelled points of quality against cost; points that another beats beyond both intervals are faint."""
    groups = []
    for curve in curves:
        costs, values = d.numbers(d.chart.x, curve.rows), d.numbers(curve.line.column, curve.rows)
        upright = d.ends(curve.line.interval, curve.rows, values, "Vertical bars" if d.chart.x_interval else "Bars")
        across = d.ends(d.chart.x_interval, curve.rows, costs, "Horizontal bars") or [(cost, cost) for cost in costs]
        upright = upright or [(value, value) for value in values]
        groups.append(list(map(_Point, curve.rows, costs, across, values, upright)))
    points = [point for group in groups for point in group]
    lower = d.chart.quantity(d.table).best == "lower"
    beaten = {
        point
        for point in points
        for other in points
        if other.across[1] < point.across[0]
        and (other.upright[1] < point.upright[0] if lower else point.upright[1] < other.upright[0])
    }
    marked = {point for point in points if d.mark(point.row) == "chosen"}
    if marked:
        d.notes.append(f"Large point: {d.chart.chosen}.")
    if beaten:
        d.notes.append("Faint: another is cheaper and better by more than both intervals.")
    ranked = sorted(points, key=lambda point: (point not in marked, point in beaten))
    has_label = dict(zip(ranked, have_labels([(point.cost, point.value) for point in ranked]), strict=True))
    labels = d.table.column(d.chart.label).cells if d.chart.label else d.table.columns[0].cells
    d.figure.update_layout(margin_r=48)
    for curve, group in zip(curves, groups, strict=True):
        costs, values = [point.cost for point in group], [point.value for point in group]
        across = [point.across for point in group]
        d.points(
            curve.name,
            costs,
            values,
            showlegend=len(curves) > 1,
            mode="markers+text",
            text=[style.text(labels[point.row]) if has_label[point] else "" for point in group],
            textposition="top right",
            textfont={"color": style.INK, "size": 11},
            cliponaxis=False,
            marker={
                "size": [14 if point in marked else 8 for point in group],
                "color": [style.CHOSEN if point in marked and len(curves) == 1 else curve.colour for point in group],
                "symbol": curve.symbol,
                "opacity": [0.35 if point in beaten else 1.0 for point in group],
            },
            hoverinfo=None,
            hovertext=_texts(d, curve.line, curve.rows, curve.name if len(curves) > 1 else ""),
            error_x=_whiskers(costs, across, curve.colour) if d.chart.x_interval else None,
            error_y=_whiskers(values, [point.upright for point in group], curve.colour) | {"thickness": 0.8},
        )


WIDTH, HEIGHT = 0.1, 0.06
"""Size of a label, as shares of the figure."""


def have_labels(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each point whether its label has room beside those before it (x logarithmic, y linear)."""
    xs, ys = [math.log(max(x, 1e-12)) for x, _ in points], [y for _, y in points]
    wide, high = (max(places, default=0.0) - min(places, default=0.0) or 1.0 for places in (xs, ys))
    have: list[bool] = []
    for x, y in zip(xs, ys, strict=True):
        before = [place for place, has_label in zip(zip(xs, ys, strict=True), have, strict=False) if has_label]
        have.append(all(abs(x - left) > WIDTH * wide or abs(y - up) > HEIGHT * high for left, up in before))
    return have


# ---- maps and staircases ------------------------------------------------------------------------------------


def _map(d: Drawing, quantity: Quantity, of_all: Column) -> Figure:
    """Draw numbers as colours, on one scale for all maps of a table; rows marked as chosen have a dot."""
    column, x, y = (d.table.column(name) for name in (d.chart.lines[0].column, d.chart.x, d.chart.y))
    rows = [row for row, value in enumerate(column.values) if value is not None]
    values, across, up = (d.numbers(of.name, rows) for of in (column, x, y))
    of_all_maps: Any = [value for value in of_all.values if value is not None]
    low, high = min(0.0, *of_all_maps), max(1.0, *of_all_maps)
    dots = ["●" if d.mark(row) == "chosen" else "" for row in rows]
    title = {"text": style.text(quantity.title), "side": "right", "font": {"size": 13}}
    d.figure.add_heatmap(
        x=across,
        y=up,
        z=values,
        zmin=low,
        zmax=high,
        colorscale=style.colour_scale(low, high),
        colorbar={"thickness": 12, "outlinewidth": 0, "title": title},
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertext=_texts(d, d.chart.lines[0], rows, ""),
        text=dots,
        texttemplate="%{text}",
        textfont={"size": 9},
    )
    if any(dots):
        d.notes.append(f"Dots: {d.chart.chosen}.")
    if min(values) < 0:
        d.notes.append("Orange: below 0.")
    width, height = (1 + round(max(places)) for places in (across, up))
    style.number_axis(d.figure.layout.xaxis, words.capitalised(x.head), width, narrow=True)
    style.number_axis(d.figure.layout.yaxis, words.capitalised(y.head), height, narrow=True)
    d.figure.update_xaxes(constrain="domain", showgrid=False)
    d.figure.update_yaxes(constrain="domain", showgrid=False, scaleanchor="x")
    ends = (rows[values.index(end)] for end in (min(values), max(values)))
    course = "; ".join(f"{column.cells[end]} at {_place(y, end)} and {_place(x, end)}" for end in ends)
    size = f"--columns:{width};--rows:{height};max-width:{560 * (width + 3) // (height + 2)}px"
    return d.done(f"{quantity.title}: {course}.", kind="plot map", style=size)


def _place(axis: Column, row: int) -> str:
    return axis.head.replace("layer", f"layer {axis.cells[row]}", 1)


def _staircase(d: Drawing, quantity: Quantity) -> Figure:
    """Draw one row per size: the blocks that are kept and removed, their agreement, and the loss."""
    column = d.table.column(d.chart.lines[0].column)
    left = d.table.column(d.chart.x).values
    rows = [row for row, value in enumerate(column.values) if value is not None]
    rows.sort(key=lambda row: -len(left[row]))  # type: ignore[arg-type]
    sets: list[set[int]] = [set(left[row]) for row in rows]  # type: ignore[call-overload]
    n = max(map(max, sets))
    places = list(range(len(rows)))
    sizes = [f"{len(blocks)} of {n}" for blocks in sets]
    chosen = [place for place, row in enumerate(rows) if d.mark(row) == "chosen"]
    losses, colour = _losses(d, rows, [rows[place] for place in chosen])
    d.figure.add_heatmap(
        x=list(range(1, n + 1)),
        z=[
            [0 if block not in blocks else 2 if place in chosen else 1 for block in range(1, n + 1)]
            for place, blocks in enumerate(sets)
        ],
        text=[
            ["×" if block in before - after else "" for block in range(1, n + 1)]
            for before, after in zip([sets[0], *sets], sets, strict=False)
        ],
        texttemplate="%{text}",
        textfont={"color": style.DROP},
        zmin=0,
        zmax=2,
        colorscale=[[0, style.GRID], [0.5, style.MODEL], [1, colour]],
        showscale=False,
        xgap=3 if n <= 12 else 1,
        ygap=8,
        hoverinfo="skip",
    )
    d.figure.add_bar(
        x=d.numbers(column.name, rows),
        y=places,
        xaxis="x2",
        yaxis="y2",
        orientation="h",
        width=0.6,
        marker={"color": [colour if place in chosen else style.MODEL for place in places]},
        text=[column.cells[row] for row in rows],
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": style.PAPER},
        hovertext=_texts(d, d.chart.lines[0], rows, ""),
        showlegend=False,
    )
    d.notes.append("×: removed in this row.")
    for place in chosen:
        frame = {"color": colour, "width": 2}
        d.figure.add_shape(type="rect", x0=-1, x1=2, xref="paper", y0=place - 0.5, y1=place + 0.5, line=frame)
        d.notes.append(f"Frame: {d.chart.chosen}.")
    plain = {"showgrid": False, "zeroline": False, "ticks": ""}
    upright = plain | {"range": [len(rows) - 0.5, -0.5], "tickmode": "array", "tickvals": places}
    style.number_axis(d.figure.layout.xaxis, "Block", n, narrow=True)
    d.figure.update_layout(
        xaxis=plain | {"domain": [0, 0.6], "range": [0.5, n + 0.5], "side": "top", "showline": False},
        xaxis2=plain | {"domain": [0.64, 1], "range": [0, 100], "anchor": "y2", "showticklabels": False},
        yaxis=upright | {"ticktext": sizes, "showline": False},
        yaxis2=upright | {"ticktext": losses, "anchor": "x2", "side": "right", "automargin": True},
        margin={"b": 12, "t": 64},
    )
    titles = [quantity.title, *(d.table.column(line.column).head for line in d.chart.lines[1:] if any(losses))]
    for title, x in zip(titles, (0.64, 1), strict=False):
        d.write(style.text(title, 10), x, 4, y=1, xref="paper", xanchor="left", yanchor="bottom", align="left")
    course = ", ".join(f"{column.cells[rows[place]]} with {sizes[place]} blocks" for place in (*chosen, places[-1]))
    kind, size = "plot tall" if len(rows) > 8 else "plot", f"height:{80 + 36 * len(rows)}px"
    return d.done(f"{quantity.title}: {course}.", kind=kind, style=size)


def _losses(d: Drawing, rows: Sequence[int], chosen: Sequence[int]) -> tuple[list[str], str]:
    """Return the loss of each row, and the colour of the chosen one: within the limit, beyond it, or inconclusive."""
    line = d.chart.lines[-1]
    if line is d.chart.lines[0]:
        return [""] * len(rows), style.MODEL
    column, ends = d.table.column(line.column), d.table.column(line.interval or line.column, interval=True)
    texts = [words.typeset_text("<br>".join(dict.fromkeys((column.cells[row], ends.cells[row])))) for row in rows]
    bounds: Any = next((ends.values[row] for row in chosen), None)
    if bounds is None or d.chart.limit is None:
        return texts, style.MODEL
    low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
    return texts, style.CHOSEN if high <= d.chart.limit else style.DROP if low > d.chart.limit else style.MODEL


def _texts(d: Drawing, line: Line, rows: Sequence[int], name: str) -> list[str]:
    """Return the hover text of each row: the cells of the drawn columns."""
    numbers_of = (d.chart.label, d.chart.x, d.chart.y, line.column, line.seeds, *d.chart.hover)
    columns = [d.table.column(name) for name in dict.fromkeys(filter(None, numbers_of))]
    intervals = dict.fromkeys(filter(None, (line.interval, d.chart.x_interval)))
    columns += [d.table.column(name, interval=True) for name in intervals]
    cells = [(style.text(column.head), column.cells) for column in columns]
    title = [style.text(name)] if name else []
    lines = ([f"{head} {style.text(words.typeset(cell[row]))}" for head, cell in cells if cell[row]] for row in rows)
    return ["<br>".join(title + of_row) for of_row in lines]


def _course(d: Drawing, curves: Sequence[Curve], quantity: Quantity) -> str:
    """Describe the ends of each curve and the chosen row; for costs, name both axes."""
    x = d.table.column(d.chart.x)
    if d.chart.kind == "cost":
        return f"{quantity.title} against {x.quantity.unit if x.quantity else x.head}."
    where = x.name.replace("_", " ") if d.is_layers else x.head
    pieces = []
    for curve in curves:
        cells = d.table.column(curve.line.column).cells
        is_first = curve.line is d.chart.lines[0] or curve.line.mark
        what = {row: f" ({d.chart.chosen})" for row in curve.rows if is_first and d.mark(row) == "chosen"}
        rows = [row for row in curve.rows if row in (curve.rows[0], curve.rows[-1], *what)]
        course = ", ".join(f"{cells[row] or 'no'} at {where} {x.cells[row]}{what.get(row, '')}" for row in rows)
        pieces.append(f"{curve.name}: {course}" if len(curves) > 1 else course)
    return f"{quantity.title}{'.' if len(curves) > 1 else ':'} {'; '.join(pieces)}."
