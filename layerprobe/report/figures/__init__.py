"""A study as Plotly figures. Knows what is drawn and in which colour; not the page around it, and no models."""

from layerprobe.report.figures.scores import parameters_against_score, seeds, tmft, zero_shot
from layerprobe.report.figures.similarity import cka_curve, cka_map, other_map, read_by_rule
from layerprobe.report.figures.style import DARK

__all__ = [
    "DARK",
    "cka_curve",
    "cka_map",
    "other_map",
    "parameters_against_score",
    "read_by_rule",
    "seeds",
    "tmft",
    "zero_shot",
]
