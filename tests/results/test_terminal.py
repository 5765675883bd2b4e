"""A result as a terminal shows it: lines that fit, bars, and the words, numbers and names of its facts."""

import math
import re
import shlex
from dataclasses import replace

import pytest

from layerprobe.results import terminal, words
from layerprobe.results.conclusion import Conclusion, Fact, Step, Unit, Verdict
from layerprobe.results.table import Column
from layerprobe.results.words import LABEL_LENGTH, label, labels
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


WIDE, ABOVE, BELOW = (-5e5, 5e5), (0.02, 14.1), (-14.1, -0.02)


def test_names_that_differ_in_the_middle_stay_apart() -> None:
    start, end = "company-encoder-for-sentences", "of-2026-final-export"
    first, second = f"{start}-detector-{end}", f"{start}-masked-{end}"
    assert label(first) == label(second)
    assert labels([first, second]) == [first, second]
    assert labels([first, "short", f"another-{first}"]) == [label(first), "short", label(f"another-{first}")]
    assert len(label(first)) <= LABEL_LENGTH
    assert labels([first, first]) == [label(first)] * 2


@pytest.mark.parametrize(
    ("unit", "value", "interval", "number", "ends"),
    [
        ("points", 7.0, ABOVE, "+7.0", "0.02 to 14.1"),  # what excludes 0 is seen to
        ("points", -7.0, BELOW, "-7.0", "-14.1 to -0.02"),
        ("points", 0.04, ABOVE, "+0.04", "0.02 to 14.1"),
        ("points", -0.04, WIDE, "+0.0", "-500000.0 to 500000.0"),
        ("points", 0.0, (0.0, 0.0), "+0.0", "0.0"),
        ("score", 99.99, (96.7, 100.0), "+99.99", "96.7 to 100.0"),
        ("share", 0.996, None, "+99.6 %", None),  # not all
        ("share", -0.9996, None, "-99.96 %", None),
        ("share", 1.0, None, "+100 %", None),
        ("share", 1.5, None, "+150 %", None),
        ("share", 3e-05, None, "+0.003 %", None),  # not nothing
        ("times", 0.98, (0.4, 3.0), "+1.0×", "0.4× to 3.0×"),
        ("times", 1.004, (1.002, 1.04), "+1.004×", "1.002× to 1.04×"),
        ("times", 250.0, (60.0, 300.0), ">40×", ">40×"),
        ("parameters", 10.0, None, "10", None),
        ("parameters", 7e9, None, "7,000.0 M", None),
        ("seconds", 0.4, None, "<1 s", None),
        ("seconds", 0.0, None, "0 s", None),
        ("number", 90_000.0, None, "+90,000", None),
    ],
)
def test_numbers_are_not_rounded_to_what_is_not_true(
    unit: Unit, value: float, interval: tuple[float, float] | None, number: str, ends: str | None
) -> None:
    fact = Fact(value=value, unit=unit, interval=interval)

    assert words.fact_text(fact, "+") == number
    assert ends is None or words.fact_text(fact, "ends") == ends


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_as_if_it_were_not_there(value: float) -> None:
    facts = {"gain": Fact(value=3.0, interval=(-value, value), level=0.95), "behind": Fact(value=value)}
    conclusion = Conclusion(kind="find", case="cut", verdict=Verdict.UNDECIDED, facts=facts, names={"layer": 5})

    assert words.tiles(conclusion) == [("+3.0", "points, no significant gain")]
    assert words.sentence(conclusion) == ""
