"""Figures of DropBench: the regret and cost of strategies. Knows Plotly and scores."""

from collections.abc import Sequence

import plotly.graph_objects as go

from layerprobe.lab.dropbench.values import Needs, StrategyScores
from layerprobe.report.charts import Look, bars, line
from layerprobe.results.numbers import number, percent
from layerprobe.results.style import CHOSEN, DROP, FURTHER, MODEL, REFERENCE, styled, text
from layerprobe.stats.seeds import pareto_front

LEAST = 0.01
"""Where costs of nothing stand on the axis, which is logarithmic."""
_TICKS = (LEAST, 0.03, 0.1, 0.2, 0.5, 1.0)
_LOOKS: dict[Needs, tuple[str, Look]] = {
    "nothing": ("looks at no model", Look(colour=REFERENCE, symbol="x")),
    "readings": ("reads embeddings", Look(colour=MODEL, symbol="circle")),
    "labels": ("reads labels, too", Look(colour=FURTHER[0][0], symbol="square")),
    "training": ("fine-tunes", Look(colour=DROP, symbol="diamond")),
}


def regret_for_cost(strategies: Sequence[StrategyScores]) -> go.Figure:
    """Return the mean regret of each strategy against its cost, with intervals, and the best ones joined."""
    figure = go.Figure()
    points = [(max(strategy.cost.value, LEAST), strategy.mean.value) for strategy in strategies]
    front = pareto_front(points, cost=lambda point: point[0], score=lambda point: -point[1])
    figure.add_trace(
        line(
            [regret for _, regret in front],
            name="none cheaper is better",
            colour=CHOSEN,
            x=[cost for cost, _ in front],
            width=1,
            line_shape="hv",
        )
    )
    for needs, (name, look) in _LOOKS.items():
        drawn = [strategy for strategy in strategies if strategy.needs == needs]
        if not drawn:
            continue
        ends = [
            (
                strategy.mean.value,
                _or(strategy.mean.lower, strategy.mean.value),
                _or(strategy.mean.upper, strategy.mean.value),
            )
            for strategy in drawn
        ]
        marks = go.Scatter(
            x=[max(strategy.cost.value, LEAST) for strategy in drawn],
            y=[strategy.mean.value for strategy in drawn],
            name=name,
            mode="markers",
            marker={"size": 9, "color": look.colour, "symbol": look.symbol},
            error_y=bars(ends, look.colour),
            hovertext=[
                f"{text(strategy.strategy)}<br>regret {number(strategy.mean.value)}, "
                f"cost {percent(strategy.cost.value)}<br>{len(strategy.outcomes)} models"
                for strategy in drawn
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
        figure.add_trace(marks)
    figure.update_xaxes(
        title="Cost of choosing, share of the paper’s sweep",
        type="log",
        tickvals=list(_TICKS),
        ticktext=["0", *(percent(tick) for tick in _TICKS[1:])],
    )
    figure.update_yaxes(title="Mean regret, points", rangemode="tozero")
    return styled(figure)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
