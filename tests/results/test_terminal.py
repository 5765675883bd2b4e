"""A result as a terminal shows it: lines that fit, bars, and the words of its facts."""

import math
import re
import shlex
from dataclasses import dataclass, replace

import pytest

from layerprobe.results import terminal, words
from layerprobe.results.conclusion import Choice, Conclusion, Fact, Step, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, interval_title, probability

MEANS = (61.9, 60.1, 61.9, 66.7, 69.8, 70.6, 69.0, 67.1, 65.1)
CHANCES = (0.001, 0.001, 0.001, 0.001, 0.23, 0.56, 0.17, 0.03, 0.001)


@dataclass(frozen=True, repr=False)
class Cut(Shown):
    """A model of eight blocks of which five are kept, by hand."""

    @property
    def conclusion(self) -> Conclusion:
        return Conclusion(
            kind="find",
            case="cut",
            verdict=Verdict.PROBABLE,
            subject=("rtd", "pairs.csv"),
            choice=Choice.upto(8, 5, (4, 5, 6, 7)),
            facts={
                "gain": Fact(value=9.04, split="test", interval=(3.9, 14.1), level=0.95),
                "parameters": Fact(value=-0.29, unit="share"),
                "speed": Fact(value=1.53, unit="times", interval=(1.2, 1.8)),
                "behind": Fact(value=2.0, level=0.95),
                "size": Fact(value=830_000, unit="parameters"),
                "whole_size": Fact(value=1_170_000, unit="parameters"),
            },
        )

    @property
    def table(self) -> Table:
        quantity = Quantity("Spearman × 100", "validation", "higher")
        return Table(
            columns=(
                Column("layer", range(9), "keep"),
                Column("parameters", range(9), more=True),
                Column("expected", MEANS, form=".1f", quantity=quantity),
                Column(
                    "expected_interval",
                    [(mean - 4, mean + 4) for mean in MEANS],
                    interval_title(0.95),
                    ".1f",
                    interval=True,
                ),
                Column("runs", (1, 1, 0, 1, 1, 2, 0, 0, 2), shown=False),
                Column("chance", CHANCES, "best", probability),
            ),
            marks=tuple("chosen" if layer == 5 else None for layer in range(9)),
            charts=(Chart(lines=(Line("expected", "expected_interval", run="runs"),)),),
        )


def test_the_answer_has_its_facts_and_a_bar_per_layer_in_lines_that_fit() -> None:
    lines = str(Cut()).split("\n")

    assert max(map(len, lines)) <= terminal.WIDTH
    assert len(lines) <= 24
    assert lines[0].startswith(words.headline(Cut().conclusion))
    assert "■■■■■□□□  cut after block 5" in lines
    assert "  +9.0   points over the whole model on test, 95 % 3.9 to 14.1" in lines
    assert "  1.5×   as fast, 1.2× to 1.8×" in lines
    (row,) = (line for line in lines if line.lstrip().startswith("5 "))
    assert "──●──" in row
    assert row.endswith("56 %")
    (inferred,) = (line for line in lines if line.lstrip().startswith("2 "))
    assert "╌╌○╌╌" in inferred


def test_all_columns_are_shown_wide_and_signs_are_replaced_where_a_terminal_lacks_them() -> None:
    text = terminal.shown(Cut(), width=None, wide=True, encoding="ascii")

    assert "parameters" in text
    assert "66.6 to 74.6" in text
    assert text.isascii()
    assert "#####..." in text
    assert "1.5x" in text


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
    rows = Cut().table.columns[2], *(Column(name, ["1234567.8"] * 9) for name in ("a", "b", "c", "d"))
    text, is_whole = terminal._rows(
        replace(Cut().table, columns=(*Cut().table.columns, *rows[1:])), 80, wide=False, colour=False
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "1234567.8" in text
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
    text = terminal.shown(Cut(), colour=True, steps=(step,), below=[f"Why: {name}"])

    assert set(re.findall("\x1b[^m]*m?", text)) == {"\x1b[0m", "\x1b[1m", "\x1b[1;32m"}
    assert "Why: a\\x1b[2J \\u202e b c d  e.csv" in text
    plain = terminal.shown(Cut(), steps=(replace(step, command=("find", "a b" * 20, "it's  c", *step.command[3:])),))
    command = plain[plain.index("layerprobe") : plain.index("\nAll columns")]
    assert shlex.split(command.replace("\\\n", "")) == ["layerprobe", "find", "a b" * 20, "it's  c", "-o", "x" * 60]
    assert words.headline(replace(Cut().conclusion, names={"label": name})).endswith(", a\\x1b[2J \\u202e b c d  e.csv")
    assert words.subject(replace(Cut().conclusion, subject=(name,))).endswith(" · a\\x1b[2J \\u202e b c d  e.csv")
    assert Column("model", (name,)).cells == ("a\\x1b[2J \\u202e b c d  e.csv",)


def test_a_name_that_is_no_unicode_and_letters_of_an_encoding_leave_all_else_as_it_is() -> None:
    below = ["café\udce9"]

    assert terminal.shown(Cut(), below=below) == terminal.shown(Cut(), below=["café\\udce9"])
    assert terminal.shown(Cut(), below=below, encoding="latin-1").endswith("café\\udce9    All columns: --wide")
    assert "#####..." in terminal.shown(Cut(), encoding="no such")


def test_a_notebook_prints_the_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = str(Cut())
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    assert str(Cut()) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_has_no_bar(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Column("expected_interval", [(-bad, bad), *[(60.0, 70.0)] * 8], interval=True)
    table = Cut().table
    columns = tuple(ends if column.interval else column for column in table.columns)
    monkeypatch.setattr(Cut, "table", replace(table, columns=columns))

    (row,) = (line for line in str(Cut()).split("\n") if line.lstrip().startswith("0 "))
    assert ("●" in row) == math.isinf(bad)
