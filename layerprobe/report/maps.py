"""Similarity of every two layers as a figure, and of every layer to a reference. Knows Plotly and similarities."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.shown import of_cells
from layerprobe.results.style import INK, NEGATIVE, PAPER, SEQUENTIAL, square_axis, styled, text
from layerprobe.results.values import Figure
from layerprobe.similarity.values import SimilarityCurve, SimilarityMap

OTHER_NORMALIZATION = (
    "Raw features and standardised features in the same colours: where the two maps differ much, a few features of"
    " large variance decide the raw one."
)
ALIGNMENTS = {
    "same-index": "Each layer is compared with the reference's layer of the same index.",
    "relative-depth": "Each layer is compared with the reference's layer at the same relative depth.",
    "best-match": "Each layer is compared with the reference's layer that it resembles most.",
    "previous-layer": "Each layer is compared with the one before; layer 0, which has none, with itself.",
}


def features(heatmap: SimilarityMap) -> str:
    """Return the normalization of a map's features, as a title."""
    return "Raw features" if heatmap.measure.normalize == "raw" else "Z-scored features"


def curve_figure(comparisons: Comparisons, name: str, finding: str) -> Figure:
    """Return the similarity of a model to each of some references by layer, by one measure."""
    table = comparisons.table
    (chart, *_) = table.charts
    figure = drawn(table, chart.named(name, finding))
    alignment = ALIGNMENTS[comparisons.comparisons[0].curve.alignment]
    return Figure(name, figure.plot, finding, f"{alignment} {figure.reading}".strip())


def map_figure(
    name: str,
    heatmap: SimilarityMap,
    names: tuple[str, str],
    *,
    curve: SimilarityCurve | None = None,
    lowest: float | None = None,
    title: str = "",
) -> Figure:
    """Return every layer of a model (rows) against every layer of a reference (columns); names are of both.

    Dots mark the pairs of a curve. Colours go from 0, or from the lowest value where that is negative, to 1.
    """
    measure, (model, reference), (rows, columns) = heatmap.measure.short_name, names, heatmap.shape
    lowest = lowest_value([heatmap]) if lowest is None else lowest
    cells, template = _cells(heatmap)
    alone = curve is not None and curve.alignment == "previous-layer"
    legend = "" if title.lower().startswith(measure.lower()) else measure
    pair = "layer %{y}, layer %{x}" if alone else "model layer %{y}, reference layer %{x}"
    heat = go.Heatmap(
        z=of_cells(heatmap.layers, heatmap.values),
        hoverongaps=False if any((*heatmap.first_layers, *heatmap.collapsed)) else None,
        customdata=cells,
        name=f"{measure} map",
        zmin=min(0.0, lowest),
        zmax=1.0,
        xgap=1,
        ygap=1,
        colorscale=_colour_scale(lowest),
        colorbar={"thickness": 12, "outlinewidth": 0, "len": 1, "title": {"text": legend}, "tickfont": {"size": 11}},
        hovertemplate=f"{pair}<br>{measure} %{{z:.4f}}{template}<extra></extra>",
    )
    figure = go.Figure([heat])
    if curve is not None:
        figure.add_scatter(
            x=[curve.reference_layers[layer] for layer in heatmap.layers[0]],
            y=list(heatmap.layers[0]),
            name="compared in the curve",
            mode="markers",
            marker={"color": PAPER, "size": 6, "line": {"color": INK, "width": 1.2}},
            hoverinfo="skip",
            showlegend=False,
        )
    square_axis(figure.layout.xaxis, f"Layer of {text(reference)}", columns)
    square_axis(figure.layout.yaxis, f"Layer of<br>{text(model)}", rows)
    styled(figure)
    if title:
        figure.update_layout(title={"text": text(title), "x": 0, "xref": "paper", "font": {"size": 15}})
    figure.update_xaxes(tickfont_size=11)
    figure.update_yaxes(tickfont_size=11)
    style = f"--columns:{columns};--rows:{rows}"
    return Figure(name, figure, map_finding(heatmap, alone=alone), "", kind="plot map", style=style)


def map_finding(heatmap: SimilarityMap, *, alone: bool = False) -> str:
    """Return what a map shows; alone: of a model with itself."""
    layers, others = heatmap.layers
    cells = [
        (value, i, j)
        for i, row in enumerate(heatmap.values)
        for j, value in enumerate(row)
        if i in layers and j in others and (not alone or j < i)
    ]
    (low, low_i, low_j), (high, high_i, high_j) = min(cells), max(cells)
    if alone:
        return (
            f"Of different layers, {high_j} and {high_i} are the most similar ({numbers.number(high, 3)}), {low_j} and"
            f" {low_i} the least ({numbers.number(low, 3)})."
        )
    closest, j = max((value, j) for value, i, j in cells if i == layers[-1])
    end = "last layer" if layers[-1] == len(heatmap.values) - 1 else f"layer {layers[-1]}"
    return (
        f"The most similar pair is layer {high_i} of the model and layer {high_j} of the reference"
        f" ({numbers.number(high, 3)}), the least similar layer {low_i} and layer {low_j} ({numbers.number(low, 3)})."
        f" The model's {end} is closest to layer {j} of the reference ({numbers.number(closest, 3)})."
    )


def both_normalizations(comparison: Comparison, names: tuple[str, str]) -> list[Figure]:
    """Return the map of a comparison, and next to it that of the other normalization where there is one."""
    maps = [heatmap for heatmap in (comparison.map, comparison.other_normalization) if heatmap is not None]
    lowest = lowest_value(maps)
    return [
        map_figure(
            f"map-{number}",
            heatmap,
            names,
            curve=comparison.curve,
            lowest=lowest,
            title=features(heatmap) if len(maps) > 1 else "",
        )
        for number, heatmap in enumerate(maps)
    ]


def lowest_value(maps: Sequence[SimilarityMap]) -> float:
    """Return the lowest value of some maps, from which they share one scale of colours."""
    rows = (row for heatmap in maps for row in of_cells(heatmap.layers, heatmap.values))
    return min(value for row in rows for value in row if value is not None)


def _cells(heatmap: SimilarityMap) -> tuple[list[list[list[float]]] | None, str]:
    """Return the numbers of every cell next to its value, and how they are shown when it is pointed at."""
    errors = heatmap.uncertainty
    if errors is None:
        return None, ""
    level = numbers.confidence(errors.level)
    template = f"<br>{level} interval [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]"
    matrices = zip(errors.lower, errors.upper, errors.standard_errors, strict=True)
    cells = [[list(cell) for cell in zip(*rows, strict=True)] for rows in matrices]
    return cells, f"{template}<br>standard error %{{customdata[2]:.4f}}"


def _colour_scale(lowest: float) -> list[list[Any]]:
    """Return the colours from the lowest value, or 0, to 1; values under 0 are of another hue."""
    zero = -lowest / (1 - lowest) if lowest < 0 else 0.0
    steps = len(SEQUENTIAL) - 1
    # 1 less a part, as Plotly refuses a scale that rounding ends just under 1.
    positive: list[list[Any]] = [[1 - (1 - zero) * (1 - i / steps), colour] for i, colour in enumerate(SEQUENTIAL)]
    return [[0.0, NEGATIVE], *positive] if zero > 0 else positive
