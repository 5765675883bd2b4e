"""What every result that shows itself must do, whatever it is of."""

import csv
import html
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from layerprobe.files.serialisation import to_json
from layerprobe.results import terminal, words
from layerprobe.results.document import table_of, typeset, without_folders
from layerprobe.results.draw import figures
from layerprobe.results.shown import Shown, read_result
from layerprobe.results.table import Table


def assert_shows_itself(result: Shown, folder: Path) -> str:
    """A line, a terminal's text, one table everywhere, a page of it, its first figure, and a file; return the page."""
    conclusion = result.conclusion
    assert repr(result) == f"<{type(result).__name__}: {result.summary}>"
    assert "\n" not in repr(result)
    assert len(repr(result)) < 1500
    assert str(result) == terminal.shown(result)
    assert result.verdict is conclusion.verdict
    assert result.facts == conclusion.facts

    assert_one_table(result.table, folder)
    assert result.table.text() in terminal.shown(result, width=None, wide=True), "all columns, where all are asked for"
    pd.testing.assert_frame_equal(result.to_pandas(), result.table.to_pandas())

    drawn = figures(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.results.draw.figures", lambda _: drawn)  # to draw them takes most of the time
        notebook, file = result._repr_html_(), result.save_html(folder / "shown.html", plotly="cdn")
    assert typeset(html.escape(words.headline(conclusion))) in notebook
    assert [column.head for column in result.table.first] in _cells(notebook)

    figure = drawn[0].plot
    assert len(figure.data) > 0
    assert all(len(one.finding) > 20 for one in drawn)
    scripts = figure.to_html(full_html=False, include_plotlyjs="cdn").count("<script")
    assert notebook.lower().count("<script") == scripts, "no name adds one"

    page = file.read_text(encoding="utf-8", errors="surrogateescape")
    answer = [typeset(html.escape(part(conclusion))) for part in (words.headline, words.certainty, words.sentence)]
    body = page.partition("<main")[2]
    places = [body.index(without_folders(part)) for part in answer if part]
    assert places == sorted(places), "the answer stands first"
    compact = json.dumps(json.loads(to_json(result)), ensure_ascii=False, separators=(",", ":"))
    assert json.loads(_script(page, "study")) == json.loads(without_folders(compact))
    assert without_folders(result.table.csv()) == json.loads(_script(page, "table"))
    assert f"<h1>{without_folders(typeset(html.escape(words.headline(conclusion))))}</h1>" in page
    assert typeset(str(table_of(result.table))) in page, "the page shows the table that it offers"
    names = [f"figure-{n}" for n in range(1, len(drawn) + 1)]
    assert [*json.loads(_script(page, "figures"))] == names
    assert re.findall(r'id="plot-(figure-\d+)"[^>]* role="group" aria-label="[^"]{20,}"', page) == names
    assert_one_spelling(body)
    assert read_result(to_json(result)) == result, "it reads back without its type"
    return page


def assert_one_spelling(body: str) -> None:
    """A percentage has a space that does not break, and a minus is U+2212, but in code."""
    text = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", " ", body, flags=re.DOTALL)
    assert not re.search(r"\d ?%(?![\w{(])", text)
    assert not re.search(r"(?<![\w.\-])-(?=\d)| x 100", text)


def _script(text: str, name: str) -> str:
    """Return what a page carries under a name."""
    return text.partition(f'<script type="application/json" id="{name}">')[2].partition("</script>")[0]


def assert_one_table(table: Table, folder: Path) -> None:
    """Terminal and page have the same cells; CSV, JSON rows, DataFrame and Parquet the same values."""
    assert len(table) > 0
    heads, lines = [column.head for column in table.shown], [list(line) for line in table.lines]
    written = table.text().splitlines()
    assert written[0].split() == " ".join(heads).split()
    assert [line.split() for line in written[2 : 2 + len(table)]] == [" ".join(line).split() for line in lines]
    rows = [list(map(_plain, row)) for row in _cells(str(table_of(table)))]
    assert rows == [list(map(_plain, row)) for row in (heads, *lines)]

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
    return cell.replace("−", "-").replace("\u00a0", " ").removeprefix("≈ ").strip("– ")


def _cells(markup: str) -> list[list[str]]:
    """Return the cells of tables by row."""
    rows = re.findall(r"<tr\b.*?</tr>", markup, flags=re.DOTALL)
    cells = (re.findall(r"<(t[dh])\b[^>]*>(.*?)</\1>", row, flags=re.DOTALL) for row in rows)
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for _, cell in row] for row in cells]
