"""A study as Plotly figures. Knows what is drawn and in which colour; not the page around it, and no models."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.errors import DataError
from layerprobe.report import words
from layerprobe.report.data import outcomes_by_layer, pareto_front
from layerprobe.results import Evidence, LayerOutcome, LayerScores, Study

# Blue, vermilion, green and grey differ for every kind of colour vision; shapes repeat what colours say.
INK, FAINT, GRID, PAPER = "#1c2126", "#5b6570", "#e3e5e8", "#ffffff"
MODEL, REFERENCE, DROP, CHOSEN = "#0069a8", "#77808c", "#c44e00", "#00795a"
SHADE, TRANSPARENT = "rgba(196,78,0,0.09)", "rgba(0,0,0,0)"
NEGATIVE = "#f6d5bd"
SEQUENTIAL = ("#f5f8fb", "#cadcec", "#8db8d9", "#4189bf", "#0d5a96", "#062f57")

DARK = {
    INK: "#e7e9ec",
    FAINT: "#a3abb5",
    GRID: "#2c3239",
    PAPER: "#14171a",
    MODEL: "#56b4e9",
    REFERENCE: "#9aa3ae",
    DROP: "#f58a4c",
    CHOSEN: "#3cc99b",
    SHADE: "rgba(245,138,76,0.11)",
    NEGATIVE: "#5a3420",
    SEQUENTIAL[0]: "#1b2026",
    SEQUENTIAL[1]: "#1d3a54",
    SEQUENTIAL[2]: "#215f8f",
    SEQUENTIAL[3]: "#3c8cc4",
    SEQUENTIAL[4]: "#83bde6",
    SEQUENTIAL[5]: "#dcefff",
}
"""What a dark page draws in place of each colour of the figures."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LAYER_AXIS = "Layer (blocks kept)"
SCORE_AXIS = "Test Spearman × 100"


# ---- the figures --------------------------------------------------------------------------------------


def cka_curve(study: Study) -> go.Figure:
    """Return CKA against the reference by layer: drop layers shaded, recommended layer and threshold marked."""
    curve, prediction = study.comparison.curve, study.prediction
    layers = list(range(len(curve.values)))
    line = go.Scatter(
        x=layers,
        y=list(curve.values),
        customdata=list(curve.reference_layers),
        name="CKA",
        mode="lines+markers",
        line={"color": MODEL, "width": 2.5},
        marker=_layer_markers(layers, prediction.drop_layers),
        hovertemplate="layer %{x}, reference layer %{customdata}<br>CKA %{y:.4f}<extra></extra>",
    )
    chosen = _ring(prediction.recommended_layer, curve.values[prediction.recommended_layer])
    figure = go.Figure([line, *_plateau_and_threshold(prediction.evidence, layers[-1]), chosen])
    _layer_axis(figure, len(layers))
    low, high = min(0.0, *curve.values), max(1.0, *curve.values)
    figure.update_yaxes(title=_axis_title(study), range=[low - 0.04, high + 0.04])
    _shade_drop(figure, study)
    return _styled(figure)


def cka_map(study: Study) -> go.Figure:
    """Return CKA of every layer of the model (rows) against every layer of the reference (columns)."""
    values, curve = study.comparison.cka.values, study.comparison.curve
    lowest = min(map(min, values))
    heat = go.Heatmap(
        z=[list(row) for row in values],
        name="CKA map",
        zmin=min(0.0, lowest),
        zmax=1.0,
        xgap=1,
        ygap=1,
        colorscale=_colour_scale(lowest),
        colorbar={"thickness": 12, "outlinewidth": 0, "len": 1, "title": {"text": "CKA"}, "tickfont": {"size": 11}},
        hovertemplate="model layer %{y}, reference layer %{x}<br>CKA %{z:.4f}<extra></extra>",
    )
    layers = range(len(values))
    compared = go.Scatter(
        x=list(curve.reference_layers),
        y=list(layers),
        name="compared in the curve",
        mode="markers",
        marker={"color": PAPER, "size": 6, "line": {"color": INK, "width": 1.2}},
        hoverinfo="skip",
        showlegend=False,
    )
    figure = go.Figure([heat, compared])
    model, reference = words.labels(study)
    _square_axis(figure.layout.xaxis, f"Layer of {_text(reference)}", len(values[0]))
    _square_axis(figure.layout.yaxis, f"Layer of<br>{_text(model)}", len(values))
    _styled(figure)
    figure.update_xaxes(tickfont_size=11)
    return figure.update_yaxes(tickfont_size=11)


def zero_shot(study: Study) -> go.Figure:
    """Return Spearman of untrained embeddings by layer, of the model and of the reference.

    Raises:
        DataError: If the study has no zero-shot scores.
    """
    named = zip(words.labels(study), (study.zero_shot, study.reference_zero_shot), (True, False), strict=True)
    traces = [_zero_shot_line(name, scores, study, is_model) for name, scores, is_model in named if scores]
    if not traces:
        raise DataError("expected a study with zero-shot scores, got none: compare on a task with scored pairs")
    figure = go.Figure(traces)
    _layer_axis(figure, max(len(trace.x) for trace in traces))
    figure.update_yaxes(title="Zero-shot Spearman × 100")
    _shade_drop(figure, study)
    return _styled(figure)


def tmft(study: Study) -> go.Figure:
    """Return test Spearman after fine-tuning by layer: mean with interval, and every seed as a dot.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    model, reference = words.labels(study)
    outcomes = _outcomes(study)
    figure = go.Figure(_seeds_and_mean(model, outcomes, study, is_model=True))
    if study.reference_outcomes:
        figure.add_traces(_seeds_and_mean(reference, study.reference_outcomes, study, is_model=False))
    deepest = max(outcome.layer for outcome in (*outcomes, *study.reference_outcomes))
    _layer_axis(figure, max(study.comparison.model.n_blocks, deepest) + 1)
    figure.update_yaxes(title=SCORE_AXIS)
    _shade_drop(figure, study)
    return _styled(figure)


def parameters_against_score(study: Study) -> go.Figure:
    """Return test Spearman after fine-tuning against parameters, with the Pareto front of the model's layers.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    outcomes, (model, reference) = _outcomes(study), words.labels(study)
    front = pareto_front(outcomes)
    step = go.Scatter(
        x=_millions(front),
        y=[outcome.mean for outcome in front],
        name="Pareto front",
        mode="lines",
        line={"color": CHOSEN, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    figure = go.Figure([step, _points(model, outcomes, study, is_model=True)])
    if study.reference_outcomes:
        figure.add_trace(_points(reference, study.reference_outcomes, study, is_model=False))
    figure.update_xaxes(title="Parameters (millions)", rangemode="tozero")
    figure.update_yaxes(title=SCORE_AXIS)
    return _styled(figure)


# ---- traces -------------------------------------------------------------------------------------------


def _outcomes(study: Study) -> tuple[LayerOutcome, ...]:
    outcomes = tuple(outcomes_by_layer(study).values())
    if not outcomes:
        raise DataError("expected a study with fine-tuned layers, got none: confirm the prediction first")
    return outcomes


def _text(name: str) -> str:
    """Return a name as Plotly's text, which is HTML of a kind, and which is mathematics between dollar signs."""
    return html.escape(name).replace("$", "&#36;")


def _layer_markers(layers: Iterable[int], drop_layers: Sequence[int]) -> dict[str, Any]:
    dropped = [layer in drop_layers for layer in layers]
    return {
        "size": 9,
        "color": [DROP if drop else MODEL for drop in dropped],
        "symbol": ["diamond" if drop else "circle" for drop in dropped],
    }


def _reference_markers() -> dict[str, Any]:
    return {"size": 8, "color": REFERENCE, "symbol": "square"}


def _markers(study: Study, layers: Iterable[int], is_model: bool) -> dict[str, Any]:
    return _layer_markers(layers, study.prediction.drop_layers) if is_model else _reference_markers()


def _ring(layer: int, value: float) -> go.Scatter:
    return go.Scatter(
        x=[layer],
        y=[value],
        name=f"recommended: layer {layer}",
        mode="markers",
        marker={"size": 17, "color": TRANSPARENT, "line": {"color": CHOSEN, "width": 2.5}},
        hoverinfo="skip",
    )


def _plateau_and_threshold(evidence: Evidence, last: int) -> list[go.Scatter]:
    first, onset = evidence.plateau_layers[0], evidence.plateau_layers[-1] + 0.5
    bar = evidence.plateau - evidence.threshold
    plateau = go.Scatter(
        x=[first - 0.5, onset],
        y=[evidence.plateau, evidence.plateau],
        name="plateau",
        mode="lines",
        line={"color": FAINT, "width": 1.5},
        hovertemplate=f"plateau {evidence.plateau:.4f}<extra></extra>",
    )
    threshold = go.Scatter(
        x=[onset, last + 0.5],
        y=[bar, bar],
        name="threshold",
        mode="lines",
        line={"color": FAINT, "width": 1.5, "dash": "dash"},
        hovertemplate=f"all later layers under {bar:.4f}: a drop<extra></extra>",
    )
    return [plateau, threshold]


def _zero_shot_line(name: str, scores: LayerScores, study: Study, is_model: bool) -> go.Scatter:
    layers = list(range(len(scores.spearman)))
    return go.Scatter(
        x=layers,
        y=list(scores.spearman),
        customdata=list(scores.pearson),
        name=_text(name),
        mode="lines+markers",
        line={"color": MODEL, "width": 2.5} if is_model else {"color": REFERENCE, "width": 2, "dash": "dot"},
        marker=_markers(study, layers, is_model),
        hovertemplate="layer %{x}<br>Spearman %{y:.2f}<br>Pearson %{customdata:.2f}<extra></extra>",
    )


def _seeds_and_mean(name: str, outcomes: Sequence[LayerOutcome], study: Study, is_model: bool) -> list[go.Scatter]:
    colour = MODEL if is_model else REFERENCE
    group = "model" if is_model else "reference"
    dots = [point for outcome in outcomes for point in _seed_points(outcome)]
    seeds = go.Scatter(
        x=[x for x, _, _ in dots],
        y=[y for _, y, _ in dots],
        customdata=[[outcome.layer, seed] for outcome in outcomes for seed in outcome.seeds],
        name=f"{_text(name)}, seeds",
        mode="markers",
        legendgroup=group,
        showlegend=False,
        marker={"size": 6, "color": colour, "opacity": 0.5},
        hovertemplate="layer %{customdata[0]}, seed %{customdata[1]}<br>test Spearman %{y:.2f}<extra></extra>",
    )
    mean = go.Scatter(
        x=[outcome.layer for outcome in outcomes],
        y=[outcome.mean for outcome in outcomes],
        hovertext=[_outcome_text(outcome) for outcome in outcomes],
        name=_text(name),
        mode="lines+markers",
        legendgroup=group,
        line={"color": colour, "width": 1.5, "dash": "dot"},
        marker=_markers(study, [outcome.layer for outcome in outcomes], is_model),
        error_y=_error_bars(outcomes, colour),
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return [seeds, mean]


def _seed_points(outcome: LayerOutcome) -> list[tuple[float, float, int]]:
    """Return x, y and seed of every run; beside the mean, and side by side, so that equals stay apart."""
    count = len(outcome.seeds)
    offsets = [0.16 + 0.16 * index / max(count - 1, 1) for index in range(count)]
    pairs = zip(offsets, outcome.test_spearman, outcome.seeds, strict=True)
    return [(outcome.layer + offset, score, seed) for offset, score, seed in pairs]


def _error_bars(outcomes: Iterable[LayerOutcome], colour: str) -> dict[str, Any]:
    bounds = [(outcome.mean, *(outcome.interval or (outcome.mean, outcome.mean))) for outcome in outcomes]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - mean for mean, _, high in bounds],
        "arrayminus": [mean - low for mean, low, _ in bounds],
        "color": colour,
        "thickness": 1.5,
        "width": 5,
    }


def _points(name: str, outcomes: Sequence[LayerOutcome], study: Study, is_model: bool) -> go.Scatter:
    return go.Scatter(
        x=_millions(outcomes),
        y=[outcome.mean for outcome in outcomes],
        text=[str(outcome.layer) for outcome in outcomes],
        hovertext=[_outcome_text(outcome) for outcome in outcomes],
        name=_text(name),
        mode="markers+text",
        textposition="top center",
        textfont={"color": INK},
        cliponaxis=False,
        marker=_markers(study, [outcome.layer for outcome in outcomes], is_model),
        hovertemplate="%{hovertext}<br>%{x:.4~g} M parameters<extra></extra>",
    )


def _outcome_text(outcome: LayerOutcome) -> str:
    return f"layer {outcome.layer}: {words.mean_and_std(outcome)}<br>{words.interval(outcome.interval)}"


def _millions(outcomes: Iterable[LayerOutcome]) -> list[float]:
    return [outcome.parameters / 1e6 for outcome in outcomes]


# ---- axes and style -----------------------------------------------------------------------------------


def _axis_title(study: Study) -> str:
    return f"{words.measure(study.comparison.cka)}<br>against {_text(words.labels(study)[1])}"


def _tick_step(n_layers: int) -> int:
    """Return the step between labelled layers: few enough labels for a phone."""
    return next(step for step in (1, 2, 4, 8, n_layers) if n_layers <= 14 * step)


def _layer_axis(figure: go.Figure, n_layers: int) -> None:
    figure.update_xaxes(title=LAYER_AXIS, range=[-0.5, n_layers - 0.5], dtick=_tick_step(n_layers), tick0=0)


def _square_axis(axis: Any, title: str, n_layers: int) -> None:
    axis.update(title=title, dtick=_tick_step(n_layers), tick0=0, showgrid=False, range=[-0.5, n_layers - 0.5])


def _colour_scale(lowest: float) -> list[list[Any]]:
    """Return the colours from the lowest value, or 0, to 1; values under 0 are of another hue."""
    zero = -lowest / (1 - lowest) if lowest < 0 else 0.0
    steps = len(SEQUENTIAL) - 1
    # 1 less a part, as Plotly refuses a scale that rounding ends just under 1.
    positive: list[list[Any]] = [[1 - (1 - zero) * (1 - i / steps), colour] for i, colour in enumerate(SEQUENTIAL)]
    return [[0.0, NEGATIVE], *positive] if zero > 0 else positive


def _shade_drop(figure: go.Figure, study: Study) -> None:
    drop = study.prediction.drop_layers
    if not drop:
        return
    left, right = drop[0] - 0.5, drop[-1] + 0.5
    figure.add_vrect(x0=left, x1=right, fillcolor=SHADE, line_width=0, layer="below")
    figure.add_annotation(
        text=f"drop from layer {study.prediction.onset}" if len(drop) > 1 else f"drop at layer {drop[0]}",
        x=right,
        xanchor="right",
        y=1,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font={"color": DROP, "size": 12},
    )


def _styled(figure: go.Figure) -> go.Figure:
    axis = {
        "gridcolor": GRID,
        "linecolor": FAINT,
        "tickcolor": FAINT,
        "tickfont": {"color": FAINT},
        "tickangle": 0,
        "zeroline": False,
        "automargin": True,
        "title": {"font": {"size": 13}, "standoff": 10},
    }
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        margin={"l": 48, "r": 12, "t": 46, "b": 44},
        hoverlabel={"bgcolor": PAPER, "bordercolor": FAINT, "font": {"color": INK, "family": FONT}, "align": "left"},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "bgcolor": TRANSPARENT,
        },
        modebar={"bgcolor": TRANSPARENT, "color": FAINT, "activecolor": INK},
        uirevision="study",
    )
    return figure
