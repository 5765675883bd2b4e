"""Results as one self-contained HTML file. Knows the page and the file; not what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from layerprobe.errors import LayerProbeError
from layerprobe.files import replace_file
from layerprobe.pages.markup import Markup, escape, script_json
from layerprobe.pages.style import DARK


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
        dark=script_json(json.dumps(DARK)),
        plotly=get_plotlyjs(),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (files("layerprobe.pages") / "assets" / name).read_text(encoding="utf-8")


def _figures_json(drawn: Mapping[str, go.Figure]) -> str:
    written = (f'"{name}": {figure.to_json(engine="json")}' for name, figure in drawn.items())
    return f"{{{', '.join(written)}}}"
