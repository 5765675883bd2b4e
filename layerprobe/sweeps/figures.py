"""Figures of sweeps. Knows Plotly and curves over layers."""

from collections.abc import Sequence

import plotly.graph_objects as go

from layerprobe.metrics.names import metric_title
from layerprobe.report.charts import Look, seeds_and_mean, side_by_side
from layerprobe.results.style import COLOURS, DASHES, SYMBOLS, layer_axis, styled
from layerprobe.sweeps.values import SweepCurve


def sweep_curves(curves: Sequence[SweepCurve], labels: Sequence[str]) -> go.Figure:
    """Return test scores by layer on one task: a line of means for each model, and every seed as a dot."""
    figure, title = go.Figure(), metric_title(curves[0].primary)
    shifts, room = side_by_side([curve.outcomes for curve in curves])
    for index, (curve, label, shift) in enumerate(zip(curves, labels, shifts, strict=True)):
        colour, symbol = COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]
        look = Look(colour=colour, symbol=symbol, dash=DASHES[index // len(COLOURS) % len(DASHES)])
        figure.add_traces(seeds_and_mean(label, curve.outcomes, look, what=f"test {title}", shift=shift, room=room))
    layers = {outcome.layer for curve in curves for outcome in curve.outcomes}
    layers |= {failed.layer for curve in curves for failed in curve.failed}
    layer_axis(figure, max(layers, default=0) + 1)
    figure.update_yaxes(title=f"Test {title} × 100")
    return styled(figure)
