"""Figures of similarity: curves with intervals, and maps, of comparisons and of studies. Knows Plotly."""

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from layerprobe.comparison.values import Comparison
from layerprobe.errors import DataError
from layerprobe.prediction.values import DropPrediction, Evidence
from layerprobe.readings.values import DIGITS
from layerprobe.report import words
from layerprobe.report.charts import area, line
from layerprobe.results import numbers
from layerprobe.results.shown import from_cell, from_layer
from layerprobe.results.style import (
    BAND,
    CHOSEN,
    FAINT,
    FURTHER,
    INK,
    INTERVAL,
    LAYER_AXIS,
    MODEL,
    NEGATIVE,
    PAPER,
    SEQUENTIAL,
    TRANSPARENT,
    layer_axis,
    layer_markers,
    shade_drop,
    square_axis,
    styled,
    text,
)
from layerprobe.similarity.values import CurveUncertainty, SimilarityCurve, SimilarityMap
from layerprobe.study.values import Study

PREDICTED_DROP = "flagged"
Marks = Callable[[Sequence[float]], list[go.Scatter]]
"""What is drawn on top of a curve of some values."""

# ---- the curve ----------------------------------------------------------------------------------------


def cka_curve(study: Study) -> go.Figure:
    """Return the similarity to the reference by layer, with intervals; further references as thin lines.

    Where the rule read this curve, the layers that it flags are diamonds and shaded. The threshold, the recommended
    layer and the one to keep are marked.
    """
    curve, prediction = study.comparison.curve, study.prediction
    flagged = () if prediction.read else prediction.drop_layers
    decided_by = prediction.evidence if prediction.by_plateau else None
    marks = _plateau_and_threshold(decided_by, len(curve.values) - 1) if decided_by else []
    figure = similarity_curves(
        (study.comparison, *study.further_comparisons),
        words.reference_labels(study),
        flagged=flagged,
        marks=[*marks, *_rings(study, curve.values)],
    )
    shade_drop(figure, flagged, what=PREDICTED_DROP)
    return figure


def similarity_curves(
    comparisons: Sequence[Comparison],
    references: Sequence[str],
    *,
    flagged: Sequence[int] = (),
    marks: Sequence[go.Scatter] = (),
) -> go.Figure:
    """Return the similarity of a model to each of some references by layer, by one measure.

    The first has its interval and its band, further ones are thin lines with their intervals. Flagged layers are
    diamonds, marks are drawn on top.
    """
    first, *further = comparisons
    curve, measure = first.curve, first.map.measure.short_name
    name = f"with {references[0]}" if further else measure
    texts = _curve_texts(first, measure)
    figure = go.Figure(
        [
            *_bands(curve.uncertainty, first.first_layer),
            *_further(further, references[1:]),
            _line(name, from_layer(first.first_layer, curve.values), texts, flagged, legendrank=1),
            *marks,
        ]
    )
    layer_axis(figure, len(curve.values))
    against = f"with {text(references[0])}" if not further else "with each reference"
    against = "with the layer before" if first.alone else against
    figure.update_yaxes(title=f"{words.measure(first.map)}<br>{against}", range=_range(comparisons))
    return styled(figure)


def read_by_rule(study: Study) -> go.Figure:
    """Return what the rule read by layer besides CKA, a line each, one below the other.

    Raises:
        DataError: If it read CKA alone.
    """
    return rule_readings(study.prediction, lambda values: _rings(study, values))


def rule_readings(prediction: DropPrediction, marks: Marks = lambda values: []) -> go.Figure:
    """Return what a rule read by layer besides CKA, with marks on each of the curves.

    Raises:
        DataError: If it read CKA alone.
    """
    read = prediction.read
    if not read:
        raise DataError("expected a prediction by a rule that reads more than CKA")
    figure = make_subplots(rows=len(read), shared_xaxes=True, vertical_spacing=0.06)
    for row, (name, values) in enumerate(read.items(), start=1):
        errors = prediction.read_uncertainty.get(name)
        texts = [f"layer {layer}<br>{text(name)} {value:{DIGITS}}" for layer, value in enumerate(values)]
        own = from_layer(prediction.first_layer, values)
        drawn = _line(name, own, _value_texts(texts, errors), prediction.drop_layers)
        rings = marks(values)
        for trace in (*_bands(errors, prediction.first_layer), drawn, *rings):
            figure.add_trace(trace.update(showlegend=row == 1 and trace in rings), row=row, col=1)
        figure.update_yaxes(title=text(name), row=row, col=1)
    layer_axis(figure, max(map(len, read.values())))
    figure.update_xaxes(title=None)
    figure.update_xaxes(title=LAYER_AXIS, row=len(read), col=1)
    shade_drop(figure, prediction.drop_layers, what=PREDICTED_DROP)
    return styled(figure)


def _line(
    name: str, values: Sequence[float | None], texts: Sequence[str], flagged: Sequence[int], **options: Any
) -> go.Scatter:
    marker = layer_markers(range(len(values)), flagged)
    return line(values, name=name, colour=MODEL, width=2.5, marker=marker, texts=texts, **options)


def _curve_texts(comparison: Comparison, measure: str) -> list[str]:
    curve, other = comparison.curve, "layer" if comparison.alone else "reference layer"
    texts = [
        f"layer {layer}, {other} {partner}<br>{measure} {numbers.number(value, 4)}"
        for layer, (value, partner) in enumerate(zip(curve.values, curve.reference_layers, strict=True))
    ]
    return _value_texts(texts, curve.uncertainty)


def _value_texts(texts: list[str], errors: CurveUncertainty | None) -> list[str]:
    """Return what is shown of each layer, with how far its value may be off."""
    if errors is None:
        return texts
    level = numbers.confidence(errors.level)
    intervals = zip(errors.lower, errors.upper, strict=True)
    bands = zip(errors.band_lower, errors.band_upper, strict=True)
    return [
        f"{start}<br>{level} interval {numbers.interval(own, 3)}"
        f"<br>{level} band of the curve {numbers.interval(band, 3)}"
        for start, own, band in zip(texts, intervals, bands, strict=True)
    ]


def _bands(errors: CurveUncertainty | None, first: int) -> list[go.Scatter]:
    if errors is None:
        return []
    level = numbers.confidence(errors.level)
    return [
        area(ends[0], ends[1], name=f"{level} {what}", colour=colour, first=first, legendrank=rank)
        for ends, what, colour, rank in (
            ((errors.band_lower, errors.band_upper), "band of the curve", BAND, 3),
            ((errors.lower, errors.upper), "interval of a layer", INTERVAL, 2),
        )
    ]


def _further(comparisons: Sequence[Comparison], names: Sequence[str]) -> list[go.Scatter]:
    traces: list[go.Scatter] = []
    for index, (comparison, name) in enumerate(zip(comparisons, names, strict=True)):
        curve, measure = comparison.curve, comparison.map.measure.short_name
        colour, shade, dash = FURTHER[index % len(FURTHER)]
        group = f"further {index}"
        if curve.uncertainty is not None:
            bounds = curve.uncertainty.lower, curve.uncertainty.upper
            first = comparison.first_layer
            traces.append(area(*bounds, name=name, colour=shade, first=first, legendgroup=group, showlegend=False))
        texts = [f"with {text(name)}<br>{said}" for said in _curve_texts(comparison, measure)]
        look: dict[str, Any] = {"colour": colour, "width": 1.5, "dash": dash, "legendgroup": group, "legendrank": 4}
        own = from_layer(comparison.first_layer, curve.values)
        traces.append(line(own, name=f"with {name}", texts=texts, **look))
    return traces


def _rings(study: Study, values: Sequence[float]) -> list[go.Scatter]:
    """Return on a curve a ring around the recommended layer, and where there was a search around the one to keep.

    Of spoilt scores, that one only scores highest.
    """
    predicted, kept = study.prediction.recommended_layer, study.kept_layer
    if study.finding is None:
        named = {f"recommended: layer {predicted}": (predicted, CHOSEN)}
    else:
        answer = study.finding.answer
        score, what = numbers.number(answer.layers[kept].mean, 1), "highest" if answer.spoilt else "keep"
        named = {f"{what}: layer {kept}, expected score {score}": (kept, CHOSEN)}
        if predicted != kept:
            named[f"predicted: layer {predicted}"] = predicted, FAINT
    return [
        go.Scatter(
            x=[layer],
            y=[values[layer]],
            name=name,
            mode="markers",
            marker={"size": 17, "color": TRANSPARENT, "line": {"color": colour, "width": 2.5}},
            hoverinfo="skip",
        )
        for name, (layer, colour) in named.items()
    ]


def _plateau_and_threshold(evidence: Evidence, last: int) -> list[go.Scatter]:
    first, onset = evidence.plateau_layers[0], evidence.plateau_layers[-1] + 0.5
    level, bar = evidence.plateau, evidence.plateau - evidence.threshold
    said, below = f"plateau {level:.4f}", f"all later layers under {bar:.4f}: a drop"
    look: dict[str, Any] = {"colour": FAINT, "width": 1.5}
    return [
        line([level] * 2, name="plateau", x=[first - 0.5, onset], texts=[said] * 2, **look),
        line([bar] * 2, name="threshold", x=[onset, last + 0.5], texts=[below] * 2, dash="dash", **look),
    ]


def _range(comparisons: Sequence[Comparison]) -> list[float]:
    drawn = [value for comparison in comparisons for value in comparison.curve.values]
    if (errors := comparisons[0].curve.uncertainty) is not None:
        drawn += [*errors.band_lower, *errors.band_upper]
    return [min(0.0, *drawn) - 0.04, max(1.0, *drawn) + 0.04]


# ---- maps ---------------------------------------------------------------------------------------------


def cka_map(study: Study) -> go.Figure:
    """Return the similarity of every layer of the model (rows) to every layer of the reference (columns)."""
    return _of_study(study, study.comparison.map)


def other_map(study: Study) -> go.Figure:
    """Return the map of z-scored features where `cka_map` is of raw ones, and the other way round, in its colours.

    Raises:
        DataError: If the study has no such map.
    """
    if study.comparison.other_normalization is None:
        raise DataError("expected a study with maps of raw and of z-scored features, got one map")
    return _of_study(study, study.comparison.other_normalization)


def _of_study(study: Study, shown: SimilarityMap) -> go.Figure:
    maps = [each for each in (study.comparison.map, study.comparison.other_normalization) if each is not None]
    return similarity_map(
        shown,
        words.labels(study),
        compared=study.comparison.curve,
        lowest=lowest_value(maps),
        title=words.features(shown) if len(maps) > 1 else "",
    )


def lowest_value(maps: Sequence[SimilarityMap]) -> float:
    """Return the lowest value of some maps, from which they share one scale of colours."""
    shown = (row[each.first_layers[1] :] for each in maps for row in each.values[each.first_layers[0] :])
    return min(value for row in shown for value in row)


def similarity_map(
    shown: SimilarityMap,
    names: tuple[str, str],
    *,
    compared: SimilarityCurve | None = None,
    lowest: float | None = None,
    title: str = "",
) -> go.Figure:
    """Return every layer of a model (rows) against every layer of a reference (columns); names are of both.

    Dots mark the pairs of a curve. Colours go from 0, or from the lowest value where that is negative, to 1.
    """
    measure, (model, reference), (rows, columns) = shown.measure.short_name, names, shown.shape
    lowest = lowest_value([shown]) if lowest is None else lowest
    cells, template = _cells(shown)
    alone = compared is not None and compared.alignment == "previous-layer"
    legend = "" if title.lower().startswith(measure.lower()) else measure
    pair = "layer %{y}, layer %{x}" if alone else "model layer %{y}, reference layer %{x}"
    heat = go.Heatmap(
        z=from_cell(shown.first_layers, shown.values),
        hoverongaps=False if any(shown.first_layers) else None,
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
    figure = go.Figure([heat, *([] if compared is None else [_dots(compared, shown.first_layers[0])])])
    square_axis(figure.layout.xaxis, f"Layer of {text(reference)}", columns)
    square_axis(figure.layout.yaxis, f"Layer of<br>{text(model)}", rows)
    styled(figure)
    if title:
        figure.update_layout(title={"text": text(title), "x": 0, "xref": "paper", "font": {"size": 15}})
    figure.update_xaxes(tickfont_size=11)
    return figure.update_yaxes(tickfont_size=11)


def _dots(compared: SimilarityCurve, first: int) -> go.Scatter:
    return go.Scatter(
        x=list(compared.reference_layers[first:]),
        y=list(range(first, len(compared.values))),
        name="compared in the curve",
        mode="markers",
        marker={"color": PAPER, "size": 6, "line": {"color": INK, "width": 1.2}},
        hoverinfo="skip",
        showlegend=False,
    )


def _cells(shown: SimilarityMap) -> tuple[list[list[list[float]]] | None, str]:
    """Return the numbers of every cell next to its value, and how they are shown when it is pointed at."""
    matrices, template = [], ""
    if shown.uncertainty is not None:
        matrices += [shown.uncertainty.lower, shown.uncertainty.upper, shown.uncertainty.standard_errors]
        level = numbers.confidence(shown.uncertainty.level)
        template += f"<br>{level} interval [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]"
        template += "<br>standard error %{customdata[2]:.4f}"
    if shown.null is not None:
        start = len(matrices)
        matrices += [shown.null.threshold, shown.null.p_values]
        template += f"<br>chance reaches %{{customdata[{start}]:.3f}}, p = %{{customdata[{start + 1}]:.2~g}}"
    if not matrices:
        return None, ""
    return [[list(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)], template


def _colour_scale(lowest: float) -> list[list[Any]]:
    """Return the colours from the lowest value, or 0, to 1; values under 0 are of another hue."""
    zero = -lowest / (1 - lowest) if lowest < 0 else 0.0
    steps = len(SEQUENTIAL) - 1
    # 1 less a part, as Plotly refuses a scale that rounding ends just under 1.
    positive: list[list[Any]] = [[1 - (1 - zero) * (1 - i / steps), colour] for i, colour in enumerate(SEQUENTIAL)]
    return [[0.0, NEGATIVE], *positive] if zero > 0 else positive
