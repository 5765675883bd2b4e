"""What every result that shows itself must do, whatever it is of."""

from __future__ import annotations

import csv
import html
import io
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from layerprobe.results.shown import Shown, make_page


def assert_shows_itself(result: Shown, folder: Path) -> None:
    """A short line without numbers by the hundred, the page's own table and figure, and a file that is the page."""
    page = make_page(result.page_function, result)
    assert repr(result) == str(result) == f"<{type(result).__name__}: {result.summary}>"
    assert "\n" not in repr(result)
    assert len(repr(result)) < 1500

    table = result.to_pandas()
    rows = list(csv.reader(io.StringIO(page.table)))
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == rows[0]
    assert len(table) == len(rows) - 1 > 0

    shown = result._repr_html_()
    assert shown.startswith(f"<p>{html.escape(result.summary)}</p>\n<table")
    assert "<script" not in shown.lower()
    assert len(shown) < 100_000

    figure = result.plot()
    assert isinstance(figure, go.Figure)
    assert figure == page.figures[0].plot
    assert len(figure.data) > 0

    path = result.save_html(folder / "shown.html", plotly="cdn")
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    assert page.heading in text or html.escape(page.heading) in text
    assert "<noscript>" in text
    assert all(len(each.finding) > 20 for each in page.figures)
