"""A result as a terminal shows it: lines that fit, bars, and the words of its facts."""

import re
import shlex
from dataclasses import replace

import pytest

from layerprobe.results import terminal, words
from layerprobe.results.conclusion import Step
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
