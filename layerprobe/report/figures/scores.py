"""Figures of scores: zero-shot, after fine-tuning, and for the size. Knows Plotly and studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from layerprobe.errors import DataError
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.pages.charts import MANY, error_bars, outcome_text
from layerprobe.pages.style import CHOSEN, INK, MODEL, REFERENCE, layer_axis, layer_markers, shade_drop, styled, text
from layerprobe.report import words
from layerprobe.report.data import SeedSplit, outcomes_by_layer, over_seeds, pareto_front
from layerprobe.scoring.values import LayerScores
from layerprobe.study.values import Study

SPLITS: tuple[SeedSplit, ...] = ("validation", "test")


def zero_shot(study: Study) -> go.Figure:
    """Return the scores of untrained embeddings by layer, of the model and of the reference.

    Raises:
        DataError: If the study has no zero-shot scores.
    """
    named = zip(words.labels(study), (study.zero_shot, study.reference_zero_shot), (True, False), strict=True)
    traces = [_zero_shot_line(name, scores, study, is_model) for name, scores, is_model in named if scores]
    if not traces:
        raise DataError("expected a study with zero-shot scores, got none: run a study on a task with scores or labels")
    figure = go.Figure(traces)
    layer_axis(figure, max(len(trace.x) for trace in traces))
    figure.update_yaxes(title=f"Zero-shot {metric_title(study.metric)} × 100")
    shade_drop(figure, study.prediction.drop_layers)
    return styled(figure)


def tmft(study: Study) -> go.Figure:
    """Return test scores after fine-tuning by layer: mean with interval, and every seed as a dot.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    model, reference = words.labels(study)
    outcomes = _outcomes(study)
    figure = go.Figure(_seeds_and_mean(model, outcomes, study, is_model=True))
    if study.reference_outcomes:
        figure.add_traces(_seeds_and_mean(reference, study.reference_outcomes, study, is_model=False))
    deepest = max(outcome.layer for outcome in (*outcomes, *study.reference_outcomes))
    layer_axis(figure, max(study.comparison.model.n_blocks, deepest) + 1)
    figure.update_yaxes(title=_score_axis(study))
    shade_drop(figure, study.prediction.drop_layers)
    return styled(figure)


def seeds(study: Study) -> go.Figure:
    """Return scores after fine-tuning by layer on validation, above, and on test: every seed, mean and interval.

    The best seed of a layer, by validation, has a ring in both.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    model, reference = words.labels(study)
    outcomes = _outcomes(study)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, split in enumerate(SPLITS, start=1):
        for trace in (
            *_seeds_and_mean(model, outcomes, study, is_model=True, split=split),
            *_seeds_and_mean(reference, study.reference_outcomes, study, is_model=False, split=split),
            _best_seeds([*outcomes, *study.reference_outcomes], study, split),
        ):
            # one entry of the legend for both rows
            figure.add_trace(trace.update(showlegend=trace.showlegend is not False and row == 1), row=row, col=1)
        figure.update_yaxes(title=f"{split.capitalize()}<br>{metric_title(study.metric)} × 100", row=row, col=1)
    deepest = max(outcome.layer for outcome in (*outcomes, *study.reference_outcomes))
    layer_axis(figure, max(study.comparison.model.n_blocks, deepest) + 1)
    figure.update_xaxes(title=None, row=1, col=1)
    shade_drop(figure, study.prediction.drop_layers)
    return styled(figure)


def parameters_against_score(study: Study) -> go.Figure:
    """Return test scores after fine-tuning against parameters, with the Pareto front of the model's layers.

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
    figure.update_yaxes(title=_score_axis(study))
    return styled(figure)


def _score_axis(study: Study) -> str:
    return f"Test {metric_title(study.metric)} × 100"


def _outcomes(study: Study) -> tuple[LayerOutcome, ...]:
    outcomes = tuple(outcomes_by_layer(study).values())
    if not outcomes:
        raise DataError("expected a study with fine-tuned layers, got none: confirm the prediction first")
    return outcomes


def _reference_markers() -> dict[str, Any]:
    return {"size": 8, "color": REFERENCE, "symbol": "square"}


def _markers(study: Study, layers: Iterable[int], is_model: bool) -> dict[str, Any]:
    return layer_markers(layers, study.prediction.drop_layers) if is_model else _reference_markers()


def _zero_shot_line(name: str, scores: LayerScores, study: Study, is_model: bool) -> go.Scatter:
    layers = list(range(len(scores.scores)))
    others = [metric for metric in scores.metrics if metric != scores.primary]
    return go.Scatter(
        x=layers,
        y=list(scores.scores),
        customdata=[[scores.metrics[metric][layer] for metric in others] for layer in layers],
        name=text(name),
        mode="lines+markers",
        line={"color": MODEL, "width": 2.5} if is_model else {"color": REFERENCE, "width": 2, "dash": "dot"},
        marker=_markers(study, layers, is_model),
        hovertemplate="".join(
            [
                f"layer %{{x}}<br>{metric_title(scores.primary)} %{{y:.2f}}",
                *(f"<br>{metric_title(metric)} %{{customdata[{i}]:.2f}}" for i, metric in enumerate(others)),
                "<extra></extra>",
            ]
        ),
    )


def _seeds_and_mean(
    name: str, outcomes: Sequence[LayerOutcome], study: Study, is_model: bool, split: SeedSplit = "test"
) -> list[go.Scatter]:
    if not outcomes:
        return []
    colour = MODEL if is_model else REFERENCE
    group = "model" if is_model else "reference"
    found = [over_seeds(study, outcome, split) for outcome in outcomes]
    dots = [point for outcome in outcomes for point in _seed_points(outcome, split)]
    every_seed = go.Scatter(
        x=[x for x, _, _ in dots],
        y=[y for _, y, _ in dots],
        customdata=[[outcome.layer, seed] for outcome in outcomes for seed in outcome.seeds],
        name=f"{text(name)}, seeds",
        mode="markers",
        legendgroup=group,
        showlegend=False,
        marker={"size": 6 if max(len(one.seeds) for one in outcomes) <= MANY else 4, "color": colour, "opacity": 0.5},
        hovertemplate="layer %{customdata[0]}, seed %{customdata[1]}"
        f"<br>{split} {metric_title(study.metric)} %{{y:.2f}}<extra></extra>",
    )
    mean = go.Scatter(
        x=[outcome.layer for outcome in outcomes],
        y=[one.mean for one in found],
        hovertext=[outcome_text(outcome.layer, one) for outcome, one in zip(outcomes, found, strict=True)],
        name=text(name),
        mode="lines+markers",
        legendgroup=group,
        line={"color": colour, "width": 1.5, "dash": "dot"},
        marker=_markers(study, [outcome.layer for outcome in outcomes], is_model),
        error_y=error_bars(found, colour),
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return [every_seed, mean]


def _best_seeds(outcomes: Sequence[LayerOutcome], study: Study, split: SeedSplit) -> go.Scatter:
    """Return a ring around the best seed of every layer, by validation."""
    best = [
        (outcome, *point)
        for outcome in outcomes
        for point in _seed_points(outcome, split)
        if point[2] == outcome.best_seed
    ]
    return go.Scatter(
        x=[x for _, x, _, _ in best],
        y=[y for _, _, y, _ in best],
        customdata=[[outcome.layer, seed] for outcome, _, _, seed in best],
        name="best seed by validation",
        mode="markers",
        legendgroup="best",
        marker={"size": 10, "symbol": "circle-open", "color": CHOSEN, "line": {"width": 1.5}},
        hovertemplate="layer %{customdata[0]}: seed %{customdata[1]} is the best by validation"
        f"<br>{split} {metric_title(study.metric)} %{{y:.2f}}; the mean is the score<extra></extra>",
    )


def _seed_points(outcome: LayerOutcome, split: SeedSplit) -> list[tuple[float, float, int]]:
    """Return x, y and seed of every run; beside the mean, and side by side, so that equals stay apart."""
    count, values = len(outcome.seeds), {"test": outcome.test, "validation": outcome.validation}[split][outcome.primary]
    width = 0.16 if count <= MANY else 0.26
    offsets = [0.16 + width * index / max(count - 1, 1) for index in range(count)]
    pairs = zip(offsets, values, outcome.seeds, strict=True)
    return [(outcome.layer + offset, score, seed) for offset, score, seed in pairs]


def _points(name: str, outcomes: Sequence[LayerOutcome], study: Study, is_model: bool) -> go.Scatter:
    return go.Scatter(
        x=_millions(outcomes),
        y=[outcome.mean for outcome in outcomes],
        text=[str(outcome.layer) for outcome in outcomes],
        hovertext=[outcome_text(outcome.layer, outcome.tested) for outcome in outcomes],
        name=text(name),
        mode="markers+text",
        textposition="top center",
        textfont={"color": INK},
        cliponaxis=False,
        marker=_markers(study, [outcome.layer for outcome in outcomes], is_model),
        hovertemplate="%{hovertext}<br>%{x:.4~g} M parameters<extra></extra>",
    )


def _millions(outcomes: Iterable[LayerOutcome]) -> list[float]:
    return [outcome.parameters / 1e6 for outcome in outcomes]
