"""Figures of lab studies: scores and CKA by layer, and drops, by objective. Knows Plotly and zoos."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.metrics.names import metric_title
from layerprobe.report.charts import Look, line
from layerprobe.results.numbers import number
from layerprobe.results.style import CHOSEN, DROP, FURTHER, INK, MODEL, REFERENCE, layer_axis, styled, text

_LOOKS = (
    Look(colour=DROP, symbol="diamond"),
    Look(colour=MODEL),
    Look(colour=CHOSEN, symbol="square", dash="dash"),
    *(
        Look(colour=colour, symbol=symbol, dash=dash)
        for (colour, _, dash), symbol in zip(FURTHER, ("cross", "x", "star"), strict=True)
    ),
    Look(colour=INK, symbol="triangle-up", dash="dot"),
)
"""By objective; masked language modelling, which all are compared with, is grey."""
_SIZES = ("circle", "diamond", "square", "cross", "x")
_DODGE = 0.22


def scores_by_layer(entries: Sequence[ZooEntry], budget: str) -> go.Figure:
    """Return test scores after fine-tuning by layer of models of one size, a line an objective."""
    tuned = [entry for entry in entries if budget in entry.budgets]
    curves = [(entry, [statistics.fmean(row) for row in entry.budgets[budget].test]) for entry in tuned]
    return _lines(curves, f"Test {metric_title(entries[0].metric)} × 100")


def cka_by_layer(entries: Sequence[ZooEntry]) -> go.Figure:
    """Return CKA with the MLM model of another seed by layer of models of one size, a line an objective."""
    compared = [entry for entry in entries if OTHER_SEED in entry.cka]
    return _lines([(entry, entry.cka[OTHER_SEED].values) for entry in compared], "CKA with an MLM of another seed")


def drops(entries: Sequence[ZooEntry], budget: str) -> go.Figure:
    """Return how far the last layer scores below the best one, a mark a model."""
    figure = go.Figure()
    tuned = [entry for entry in entries if budget in entry.budgets]
    families, sizes = _named(entry.family for entry in tuned), _named(entry.size for entry in tuned)
    for index, size in enumerate(sizes):
        shift = _DODGE * (index - (len(sizes) - 1) / 2)
        symbol = _SIZES[index % len(_SIZES)]
        drawn = [(entry, truth(entry.budgets[budget])) for entry in tuned if entry.size == size]
        marks = go.Scatter(
            x=[families.index(entry.family) + shift for entry, _ in drawn],
            y=[true.effect for _, true in drawn],
            name=text(size),
            mode="markers",
            marker={
                "size": 11,
                "symbol": [symbol if true.drop else f"{symbol}-open" for _, true in drawn],
                "color": [DROP if true.drop else REFERENCE for _, true in drawn],
            },
            hovertext=[
                f"{text(entry.name)}<br>best layer {true.best_layer} of {entry.n_blocks}"
                f"<br>threshold {true.threshold:.2f}"
                for entry, true in drawn
            ],
            hovertemplate="%{hovertext}<br>%{y:+.2f} points<extra></extra>",
        )
        figure.add_trace(marks)
    figure.add_hline(y=0, line={"color": REFERENCE, "width": 1})
    figure.update_xaxes(tickvals=list(range(len(families))), ticktext=list(map(text, families)))
    figure.update_yaxes(title="Best layer less last layer, points")
    return styled(figure)


def _lines(curves: Sequence[tuple[ZooEntry, Sequence[float]]], title: str) -> go.Figure:
    """Return a line of the mean over seeds for each objective, and a faint one for each seed."""
    figure = go.Figure()
    families = _named(entry.family for entry, _ in curves)
    others = [family for family in families if family != TWIN]
    for family in families:
        twin = family == TWIN
        look = Look(colour=REFERENCE) if twin else _LOOKS[others.index(family) % len(_LOOKS)]
        of_family = {entry.name: values for entry, values in curves if entry.family == family}
        for name, values in of_family.items() if len(of_family) > 1 else ():
            figure.add_trace(_line(name, values, look, family, width=1, showlegend=False, opacity=0.35))
        mean = [statistics.fmean(column) for column in zip(*of_family.values(), strict=True)]
        marker = {"size": 7, "color": look.colour, "symbol": look.symbol}
        figure.add_trace(_line(family, mean, look, family, width=3 if twin else 2, marker=marker))
    layer_axis(figure, max((entry.n_blocks for entry, _ in curves), default=1) + 1)
    figure.update_yaxes(title=title)
    return styled(figure)


def _line(name: str, values: Sequence[float], look: Look, family: str, **options: Any) -> go.Scatter:
    texts = [f"{text(name)}<br>layer {layer}: {number(value, 3)}" for layer, value in enumerate(values)]
    return line(values, name=name, colour=look.colour, dash=look.dash, texts=texts, legendgroup=family, **options)


def _named(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
