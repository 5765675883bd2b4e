"""Results as one self-contained HTML file. Knows the page and the file; not what the sections say."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from layerprobe.pages.page import compose, write_page
from layerprobe.report import words
from layerprobe.report.data import layer_csv, outcomes_by_layer
from layerprobe.report.figures.scores import parameters_against_score, seeds, tmft, zero_shot
from layerprobe.report.figures.similarity import cka_curve, cka_map, other_map, read_by_rule
from layerprobe.report.sections.order import sections
from layerprobe.serialisation import to_json
from layerprobe.study.values import Study


def write_report(study: Study, path: str | Path) -> Path:
    """Write the report of a study; a reader sees the old file or the whole new one.

    Args:
        study: What to show.
        path: The HTML file; its folder is made where it is missing.

    Returns:
        The path written.

    Raises:
        LayerProbeError: If the file cannot be written.
    """
    return write_page(render(study), path)


def render(study: Study) -> str:
    """Return the report of a study as HTML that loads nothing: style, scripts, figures and data are inside."""
    return compose(
        title=words.title(study),
        body=sections(study),
        data=to_json(study),
        table=layer_csv(study),
        drawn=_figures(study),
    )


def _figures(study: Study) -> dict[str, go.Figure]:
    """Return every figure that the study has data for, by the name of its section."""
    drawn = {"cka-curve": cka_curve(study), "cka-map": cka_map(study)}
    if study.prediction.read:
        drawn["read"] = read_by_rule(study)
    if study.comparison.other_normalization is not None:
        drawn["other-map"] = other_map(study)
    if study.zero_shot or study.reference_zero_shot:
        drawn["zero-shot"] = zero_shot(study)
    if outcomes_by_layer(study):
        drawn["tmft"] = tmft(study)
        drawn["seeds"] = seeds(study)
        drawn["parameters"] = parameters_against_score(study)
    return drawn
