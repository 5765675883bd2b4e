"""Figures of scores: zero-shot, after fine-tuning, and for the size. Knows Plotly and studies."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from layerprobe.errors import DataError
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.report import words
from layerprobe.report.charts import (
    SPLITS,
    Look,
    SeedSplit,
    bars,
    beside,
    cost_points,
    floor_line,
    front_line,
    line,
    over_seeds,
    seeds_and_mean,
)
from layerprobe.results.numbers import number
from layerprobe.results.shown import from_layer
from layerprobe.results.style import CHOSEN, FAINT, MODEL, REFERENCE, layer_axis, layer_markers, styled
from layerprobe.scoring.values import LayerScores
from layerprobe.study.values import Study


def zero_shot(study: Study) -> go.Figure:
    """Return the scores of untrained embeddings by layer, of the model and of the reference.

    Raises:
        DataError: If the study has no zero-shot scores.
    """
    model, reference = words.labels(study)
    own = Look(colour=MODEL)
    other = Look(colour=REFERENCE, symbol="square", dash="dot")
    lines = ((model, study.zero_shot, own, 2.5), (reference, study.reference_zero_shot, other, 2))
    traces = [zero_shot_line(name, scores, look, width=width) for name, scores, look, width in lines if scores]
    if not traces:
        raise DataError("expected a study with zero-shot scores, got none: run a study on a task with scores or labels")
    n_layers, floor = max(len(trace.x) for trace in traces), next(scores.floor for _, scores, *_ in lines if scores)
    figure = go.Figure([*traces, *floor_line(floor, n_layers - 1)])
    layer_axis(figure, n_layers)
    figure.update_yaxes(title=f"Zero-shot {metric_title(study.metric)} × 100")
    return styled(figure)


def tmft(study: Study) -> go.Figure:
    """Return test scores after fine-tuning by layer: mean with interval, and every seed as a dot.

    With a search, the expected scores by which it chose are a line next to them.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    figure = go.Figure([*_expected(study), *_seeds_and_means(study, "test")])
    figure.update_yaxes(title=_score_axis(study))
    return _by_layer(figure, study)


def seeds(study: Study) -> go.Figure:
    """Return scores after fine-tuning by layer on validation, above, and on test: every seed, mean and interval.

    The best seed of a layer, by validation, has a ring in both.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, split in enumerate(SPLITS, start=1):
        expected = _expected(study) if split == "validation" else []
        for trace in (*expected, *_seeds_and_means(study, split), _best_seeds(study, split)):
            # one entry of the legend for both rows
            figure.add_trace(trace.update(showlegend=trace.showlegend is not False and row == 1), row=row, col=1)
        figure.update_yaxes(title=f"{split.capitalize()}<br>{metric_title(study.metric)} × 100", row=row, col=1)
    return _by_layer(figure, study).update_xaxes(title=None, row=1, col=1)


def parameters_against_score(study: Study) -> go.Figure:
    """Return test scores after fine-tuning against parameters, with the Pareto front of the model's layers.

    Raises:
        DataError: If no layer was fine-tuned.
    """
    tuned = _tuned(study)
    _, outcomes, _ = tuned[0]
    figure = go.Figure(front_line((outcome.parameters / 1e6, outcome.mean) for outcome in outcomes))
    figure.add_traces(_expected(study, [count / 1e6 for count in study.comparison.model.parameters]))
    for name, outcomes, look in tuned:
        costs = [outcome.parameters / 1e6 for outcome in outcomes]
        figure.add_trace(cost_points(name, costs, outcomes, look.marker, unit="%{x:.4~g} M parameters"))
    figure.update_xaxes(title="Parameters (millions)", rangemode="tozero")
    figure.update_yaxes(title=_score_axis(study))
    return styled(figure)


def _tuned(study: Study) -> Sequence[tuple[str, Sequence[LayerOutcome], Look]]:
    """Return label, outcomes and look of the model, and of the reference where that was fine-tuned."""
    outcomes, (model, reference) = study.outcomes, words.labels(study)
    if not outcomes:
        raise DataError("expected a study with fine-tuned layers, got none: confirm the prediction first")
    markers = layer_markers([outcome.layer for outcome in outcomes], study.drop_layers)
    both = [
        (model, outcomes, Look(colour=MODEL, dash="dot", markers=markers)),
        (reference, study.reference_outcomes, Look(colour=REFERENCE, symbol="square", dash="dot")),
    ]
    return both if study.reference_outcomes else both[:1]


def _seeds_and_means(study: Study, split: SeedSplit) -> list[go.Scatter]:
    what = f"{split} {metric_title(study.metric)}"
    return [
        trace
        for name, outcomes, look in _tuned(study)
        for trace in seeds_and_mean(
            name, outcomes, look, what=what, scores=[over_seeds(each, split, level=study.level) for each in outcomes]
        )
    ]


def _by_layer(figure: go.Figure, study: Study) -> go.Figure:
    """Return the figure over the layers of both models."""
    deepest = max(outcome.layer for _, outcomes, _ in _tuned(study) for outcome in outcomes)
    layer_axis(figure, max(study.comparison.model.n_blocks, deepest) + 1)
    return styled(figure)


def _expected(study: Study, x: Sequence[float] | None = None) -> list[go.Scatter]:
    """Return what the search expects of every layer, over layers or over x; nothing without a search."""
    if study.finding is None:
        return []
    known = study.finding.answer.layers
    texts = [f"layer {each.layer}: expected {number(each.mean)} on validation" for each in known]
    scores = from_layer(study.finding.answer.first_layer, [each.mean for each in known])
    return [line(scores, name="expected score, on validation", colour=FAINT, x=x, width=1.0, texts=texts)]


def _score_axis(study: Study) -> str:
    return f"Test {metric_title(study.metric)} × 100"


def zero_shot_line(name: str, scores: LayerScores, look: Look, *, width: float) -> go.Scatter:
    """Return the scores of a model before fine-tuning as a line."""
    texts = []
    for layer in range(len(scores.scores)):
        by_metric = (f"<br>{metric_title(name)} {number(values[layer])}" for name, values in scores.metrics.items())
        texts.append(f"layer {layer}{''.join(by_metric)}")
    options: dict[str, Any] = {"width": width, "dash": look.dash, "marker": look.marker, "texts": texts}
    if scores.compared is not None:
        own = scores.scores[scores.first_layer :]
        ends = [(score, *bounds) for score, bounds in zip(own, scores.compared.intervals, strict=True)]
        options["error_y"] = bars([*[(0.0, 0.0, 0.0)] * scores.first_layer, *ends], look.colour)
    return line(from_layer(scores.first_layer, scores.scores), name=name, colour=look.colour, **options)


def _best_seeds(study: Study, split: SeedSplit) -> go.Scatter:
    """Return a ring around the best seed of every layer, by validation."""
    best = [
        (outcome, outcome.seeds.index(outcome.best_seed)) for _, outcomes, _ in _tuned(study) for outcome in outcomes
    ]
    return go.Scatter(
        x=[outcome.layer + beside(len(outcome.seeds))[index] for outcome, index in best],
        y=[over_seeds(outcome, split, level=study.level).values[index] for outcome, index in best],
        customdata=[[outcome.layer, outcome.best_seed] for outcome, _ in best],
        name="best seed by validation",
        mode="markers",
        legendgroup="best",
        marker={"size": 10, "symbol": "circle-open", "color": CHOSEN, "line": {"width": 1.5}},
        hovertemplate="layer %{customdata[0]}: seed %{customdata[1]} is the best by validation"
        f"<br>{split} {metric_title(study.metric)} %{{y:.2f}}; the mean is the score<extra></extra>",
    )
