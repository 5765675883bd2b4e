"""Results as one self-contained HTML file. Knows the page and the file; not what the sections say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from layerprobe import results
from layerprobe.errors import LayerProbeError
from layerprobe.files import replace_file
from layerprobe.report import figures, words
from layerprobe.report.data import layer_csv, outcomes_by_layer
from layerprobe.report.markup import Markup, escape, script_json
from layerprobe.report.sections import sections
from layerprobe.results import Study


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


def write_page(page: str, path: str | Path) -> Path:
    """Write a page to `path` and return it; see `write_report`."""
    target = Path(path)
    # A folder name that is no UTF-8 holds lone surrogates; as \udc80 they are right in JSON and legible in text.
    content = page.encode("utf-8", "backslashreplace")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LayerProbeError(
            f"expected to write the report to {target}, but: {reason}; choose another path"
        ) from error
    return target


def render(study: Study) -> str:
    """Return the report of a study as HTML that loads nothing: style, scripts, figures and data are inside."""
    return compose(
        title=words.title(study),
        body=sections(study),
        data=results.to_json(study),
        table=layer_csv(study),
        drawn=_figures(study),
    )


def compose(*, title: str, body: Markup, data: str, table: str, drawn: Mapping[str, go.Figure]) -> str:
    """Return a page that loads nothing.

    Args:
        title: What it is about.
        body: Its sections, with a place for every figure.
        data: The results as JSON, which the button named `study` saves.
        table: Them as CSV, which the button named `table` saves.
        drawn: The figures by name.
    """
    return Template(_asset("template.html")).substitute(
        title=escape(f"{title} · layerprobe"),
        style=_asset("style.css"),
        body=body,
        study=script_json(data),
        table=script_json(json.dumps(table)),
        figures=script_json(_figures_json(drawn)),
        dark=script_json(json.dumps(figures.DARK)),
        plotly=get_plotlyjs(),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (files("layerprobe.report") / "assets" / name).read_text(encoding="utf-8")


def _figures_json(drawn: Mapping[str, go.Figure]) -> str:
    written = (f'"{name}": {figure.to_json(engine="json")}' for name, figure in drawn.items())
    return f"{{{', '.join(written)}}}"


def _figures(study: Study) -> dict[str, go.Figure]:
    """Return every figure that the study has data for, by the name of its section."""
    drawn = {"cka-curve": figures.cka_curve(study), "cka-map": figures.cka_map(study)}
    if study.prediction.read:
        drawn["read"] = figures.read_by_rule(study)
    if study.comparison.other_normalization is not None:
        drawn["other-map"] = figures.other_map(study)
    if study.zero_shot or study.reference_zero_shot:
        drawn["zero-shot"] = figures.zero_shot(study)
    if outcomes_by_layer(study):
        drawn["tmft"] = figures.tmft(study)
        drawn["seeds"] = figures.seeds(study)
        drawn["parameters"] = figures.parameters_against_score(study)
    return drawn
