"""A study as figures and as one self-contained HTML page. Knows results and Plotly, not models and not maths."""

from layerprobe.report.data import layer_csv, layer_rows, pareto_front
from layerprobe.report.figures import (
    cka_curve,
    cka_map,
    other_map,
    parameters_against_score,
    read_by_rule,
    seeds,
    tmft,
    zero_shot,
)
from layerprobe.report.page import render, write_report

__all__ = [
    "cka_curve",
    "cka_map",
    "layer_csv",
    "layer_rows",
    "other_map",
    "parameters_against_score",
    "pareto_front",
    "read_by_rule",
    "render",
    "seeds",
    "tmft",
    "write_report",
    "zero_shot",
]
