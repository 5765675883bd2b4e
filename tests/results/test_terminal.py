"""A result as a terminal shows it: lines that fit, bars, and the words of its facts."""

import math
import re
import shlex
from dataclasses import replace

import pytest

from layerprobe.results import terminal, words
from layerprobe.results.conclusion import Conclusion, Fact, Step, Verdict
from layerprobe.results.table import Column
from tests.report.conftest import FINDINGS

FOUND = FINDINGS["found"]()


def test_all_columns_are_shown_wide_and_signs_are_replaced_where_a_terminal_lacks_them() -> None:
    text = terminal.shown(FOUND, width=None, wide=True, encoding="ascii")

    assert {column.head for column in FOUND.table.shown if column.head.strip()} <= set(
        re.split(r"\s\s+", text.replace("\n", "  "))
    )
    assert text.isascii()
    assert "#########..." in text


def test_columns_for_which_a_line_has_no_room_are_left_out() -> None:
    """Intervals first, then the last of those that are no flag; long names are in several lines."""
    names = ("layer", "score", "interval", "size", "speed", "flag")
    cells = ("7", "55.35", "55.12 to 55.61", "0.84 M", "1.5", "may be best")
    columns = [Column(name, [cell], interval=name == "interval") for name, cell in zip(names, cells, strict=True)]
    fitting = {width: [column.name for column in terminal._fitting(columns, width)] for width in (60, 46, 32, 10)}
    assert fitting == {
        60: [*names],
        46: ["layer", "score", "size", "speed", "flag"],
        32: ["layer", "score", "flag"],
        10: ["layer", "score"],
    }
    assert terminal._least(Column("model", ["a name of many words" * 5])) == terminal.NAME
    assert terminal._least(Column("model", ["a"], title="test Spearman")) == len("Spearman")


def test_a_bar_is_shorter_where_columns_need_the_room() -> None:
    wide = (Column(name, ["1234567.8"] * 13) for name in ("a", "b", "c", "d"))
    table = replace(FOUND.table, columns=(*FOUND.table.columns, *wide))
    text, is_whole = terminal._rows(table, 80, wide=False, colour=False)
    assert max(map(len, text.splitlines())) <= 80
    assert not is_whole


def test_a_clause_whose_fact_is_missing_is_left_out() -> None:
    conclusion = Conclusion(kind="find", case="cut", verdict=Verdict.DECIDED, facts={"gain": Fact(value=-0.04)})

    assert words.tiles(conclusion) == [("+0.0", "points over the whole model")]


def test_a_headline_begins_with_a_capital_unless_a_name_begins_it() -> None:
    about = {"kind": "score", "verdict": Verdict.DECIDED, "facts": {"score": Fact(value=70.0, unit="score")}}
    models = Conclusion(case="models", names={"label": "bert", "layer": 3}, **about)  # type: ignore[arg-type]
    best = Conclusion(case="best", names={"layer": 3, "last": "layer 3", "label": "l"}, **about)  # type: ignore[arg-type]

    assert words.headline(models) == "bert scores best, at layer 3"
    assert words.headline(best) == "Layer 3 scores best"


def test_names_command_no_terminal_and_lines_of_a_command_end_between_its_words() -> None:
    name = "a\x1b[2J \u202e b\nc\td  e.csv"
    step = Step(name="export", command=("find", name, "a file with a long name and spaces.csv", "-o", "x" * 60))
    text = terminal.shown(FOUND, colour=True, steps=(step,), below=[f"Why: {name}"])

    assert set(re.findall("\x1b[^m]*m?", text)) == {"\x1b[0m", "\x1b[1m", "\x1b[1;32m"}
    assert "Why: a\\x1b[2J \\u202e b c d  e.csv" in text
    plain = terminal.shown(FOUND, steps=(replace(step, command=("find", "a b" * 20, "it's  c", *step.command[3:])),))
    command = plain[plain.index("layerprobe") : plain.index("\nAll columns")]
    assert shlex.split(command.replace("\\\n", "")) == ["layerprobe", "find", "a b" * 20, "it's  c", "-o", "x" * 60]
    assert words.headline(replace(FOUND.conclusion, names={"label": name})).endswith(", a\\x1b[2J \\u202e b c d  e.csv")
    assert words.subject(replace(FOUND.conclusion, subject=(name,))).endswith(" · a\\x1b[2J \\u202e b c d  e.csv")
    assert Column("model", (name,)).cells == ("a\\x1b[2J \\u202e b c d  e.csv",)


def test_a_name_that_is_no_unicode_and_letters_of_an_encoding_leave_all_else_as_it_is() -> None:
    below = ["café\udce9"]

    assert terminal.shown(FOUND, below=below) == terminal.shown(FOUND, below=["café\\udce9"])
    assert terminal.shown(FOUND, below=below, encoding="latin-1").count("café\\udce9    All columns: --wide") == 1
    assert "#####..." in terminal.shown(FOUND, encoding="no such")


def test_a_notebook_prints_the_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = str(FOUND)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    assert str(FOUND) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_has_no_bar(bad: float) -> None:
    ends = Column("gain_interval", [(-bad, bad), *[(-1.0, 1.0)] * 12], interval=True)
    is_ends = [column.interval and column.name == "gain_interval" for column in FOUND.table.columns]
    columns = (ends if drawn else column for drawn, column in zip(is_ends, FOUND.table.columns, strict=True))
    text, _ = terminal._rows(replace(FOUND.table, columns=tuple(columns)), 80, wide=False, colour=False)

    assert any(is_ends)
    (row,) = (line for line in text.split("\n") if line.lstrip().startswith("0 "))
    assert ("●" in row or "○" in row) == math.isinf(bad)
