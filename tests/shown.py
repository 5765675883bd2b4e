"""What every result that shows itself must do, whatever it is of."""

import csv
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import plotly.graph_objects as go

from layerprobe.files.serialisation import to_json
from layerprobe.results.document import typeset, without_folders
from layerprobe.results.kept import read_result
from layerprobe.results.page import render
from layerprobe.results.parts import table_of
from layerprobe.results.shown import Shown, make_page
from layerprobe.results.table import Table
from layerprobe.results.values import Page


def assert_shows_itself(result: Shown, folder: Path, page: Page | None = None) -> None:
    """A short line without numbers by the hundred, one table everywhere, the page's figure, and a file of it."""
    page = page or make_page(result)
    with patch("layerprobe.results.shown.make_page", return_value=page):  # drawing it takes as long as all else
        _assert_shows(result, page, folder)


def _script(text: str, name: str) -> str:
    """Return what a page carries under a name."""
    return text.partition(f'<script type="application/json" id="{name}">')[2].partition("</script>")[0]


def _assert_shows(result: Shown, page: Page, folder: Path) -> None:
    notes = "".join(f" Note: {note}." for note in getattr(result, "notes", ()))
    assert repr(result) == str(result) == f"<{type(result).__name__}: {result.summary}{notes}>"
    assert "\n" not in repr(result)
    assert len(repr(result)) < 1500

    assert_one_table(result.table, folder)
    assert isinstance(page.table, Table)
    assert list(result.table.data) == [name for name in page.table.data if name in result.table.data]
    assert typeset(str(table_of(page.table))) in render(page, plotly="cdn"), "the page shows the table that it offers"
    pd.testing.assert_frame_equal(result.to_pandas(), result.table.to_pandas())

    shown = result._repr_html_()
    (heads,) = re.findall(r"<thead>(.*?)</thead>", shown, re.DOTALL)
    assert _Cells.of(heads)[0] == [column.head for column in result.table.shown]
    assert shown.startswith(f"<p>{html.escape(result.summary)}</p>\n<table")
    text, plot = shown.split('\n<div style="height', 1)
    assert "<script" not in text.lower()
    assert len(text) < 100_000
    assert "plotly" in plot

    figure = result.plot()
    assert isinstance(figure, go.Figure)
    assert figure == page.figures[0].plot
    assert len(figure.data) > 0

    path = result.save_html(folder / "shown.html", plotly="cdn")
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    compact = json.dumps(json.loads(to_json(page.result)), ensure_ascii=False, separators=(",", ":"))
    assert json.loads(_script(text, "study")) == json.loads(without_folders(compact))
    assert without_folders(page.table.csv()) == json.loads(_script(text, "table"))
    assert read_result(to_json(result)) == result, "it reads back without its type"
    assert typeset(html.escape(page.heading)) in text
    assert 0 < len(page.heading) < 200 or "<" in page.heading
    assert len({figure.name for figure in page.figures}) == len(page.figures)
    assert "<noscript>" in text
    assert all(len(each.finding) > 20 for each in page.figures)


def assert_one_table(table: Table, folder: Path) -> None:
    """Terminal and page have the same cells; CSV, JSON rows, DataFrame and Parquet the same values."""
    assert len(table) > 0
    heads, lines = [column.head for column in table.shown], [list(line) for line in table.lines]
    written = table.text().splitlines()
    assert written[0].split() == " ".join(heads).split()
    assert [line.split() for line in written[2 : 2 + len(table)]] == [" ".join(line).split() for line in lines]
    rows = _Cells.of(str(table_of(table)))
    assert rows[0] == heads
    assert [list(map(_plain, row)) for row in rows[1:]] == [list(map(_plain, line)) for line in lines]

    data, records = table.data, table.records()
    assert [list(record) for record in records] == [list(data)] * len(table)
    assert len(json.loads(json.dumps(records))) == len(table)
    parsed = list(csv.reader(io.StringIO(table.csv())))
    assert parsed[0] == list(data)
    frame = table.to_pandas()
    stored = pd.read_parquet(table.save(folder / "table.parquet"))
    assert list(frame.columns) == list(stored.columns) == list(data)
    for name, values in data.items():
        place = list(data).index(name)
        for value, record, row, in_frame, in_file in zip(
            values, records, parsed[1:], frame[name], stored[name], strict=True
        ):
            assert record[name] is value
            assert _same(in_frame, value)
            assert _same(in_file, value)
            assert _from_csv(row[place], value) == value


def _same(cell: object, value: object) -> bool:
    if value is None:
        return bool(pd.isna(cell))  # type: ignore[call-overload]
    return list(cell) == list(value) if isinstance(value, tuple) else cell == value  # type: ignore[call-overload]


def _from_csv(cell: str, value: object) -> object:
    """Return a cell as the value that it must be."""
    if isinstance(value, bool):
        return cell == "1"
    if isinstance(value, int | float):
        return type(value)(cell)
    if isinstance(value, tuple):
        return value if cell == " ".join(map(str, value)) else cell
    if value is None:
        return None if cell == "" else cell
    lines = str(value).replace("\r\n", "\n").replace("\r", "\n")
    return value if cell in (lines, f"'{lines}") else cell


def _plain(cell: str) -> str:
    return cell.replace("−", "-").replace("\u00a0", " ").replace("–", "").strip()


class _Cells(HTMLParser):
    """The cells of a table by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.within = False

    @classmethod
    def of(cls, markup: str) -> list[list[str]]:
        parser = cls()
        parser.feed(markup)
        return parser.rows

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.within = True

    def handle_endtag(self, tag: str) -> None:
        self.within = self.within and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.within:
            self.rows[-1][-1] += data
