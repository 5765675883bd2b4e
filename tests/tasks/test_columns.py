"""Columns by their usual names, by request, or by place; whether a first row is a header."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pandas
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.formats import Format, Grid
from layerprobe.tasks.loading import load_task, load_texts
from layerprobe.tasks.quality import distinct_texts
from layerprobe.tasks.rows import Columns, find_columns, layouts_of, text_columns
from tests.tasks.refused import SNAPSHOT, calls, snapshot

TEXTS = [f"text {i}" for i in range(60)]


def grid(*rows: str) -> Grid:
    cells = tuple(tuple(row.split("|")) for row in rows)
    return Grid(name="t.csv", header=None, rows=cells, numbers=tuple(range(1, len(rows) + 1)))


def task_columns(cells: Grid, columns: Columns | None = None) -> tuple[Grid, tuple[int | None, ...]]:
    return find_columns(cells, columns, layouts_of(None))


def write(path: Path, header: str, *columns: Sequence[object]) -> Path:
    lines = [header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("sentence1|sentence2|score", (0, 1, 2)),
        ("pair_ID|sentence_A|sentence_B|relatedness_score|entailment_judgment", (1, 2, 3)),
        ("Quality|#1 ID|#2 ID|#1 String|#2 String", (3, 4, 0)),
        ("label|Sentence 2|Sentence 1", (2, 1, 0)),
        ("idx|label|score|text1|text2", (3, 4, 2)),
        ("|word1|word2|similarity", (1, 2, 3)),
        ("first|second|gold", (0, 1, 2)),
        ("index|question|sentence|label", (1, 2, 3)),
        ("text|text_pair|label", (0, 1, 2)),
        ("title|text|label", (1, 2)),
    ],
)
def test_known_names_are_found(header: str, expected: tuple[int, ...]) -> None:
    row = "|".join("3" for _ in header.split("|"))
    named, columns = task_columns(grid(header, row))
    assert columns == expected
    assert len(named.rows) == 1


@pytest.mark.parametrize(
    ("header", "unused"),
    [("s1|s2|score|label", "label"), ("sentence|label|title|rating", "rating"), ("s1|s2|score|n", "")],
)
def test_other_targets_by_name_are_noted(header: str, unused: str) -> None:
    named, _ = task_columns(grid(header, *(f"one {i}|another {i}|{i % 3}|{i % 2}" for i in range(9))))
    assert bool(named.notes) == bool(unused)
    assert not unused or f", {unused} not used; --columns chooses otherwise" in named.notes[0]


@pytest.mark.parametrize(("rows", "expected"), [(["a|b|1.5"] * 2, (0, 1, 2)), (["a|yes", "b|no", "c|yes"], (0, 1))])
def test_texts_come_first_and_the_target_last_without_header(rows: list[str], expected: tuple[int, ...]) -> None:
    unnamed, columns = task_columns(grid(*rows))
    assert columns == expected
    assert len(unnamed.rows) == len(rows)
    assert "target in column" in unnamed.notes[0]
    assert "1984" in task_columns(grid("1984|Animal Farm|4", "Ulysses|Odyssey|2"))[0].rows[0]


@pytest.mark.parametrize("columns", ["b,c,a", " b , c,a", ["b", "c", "a"], ["b", 2, "a"]])
def test_columns_by_name_or_index(columns: Columns) -> None:
    named, found = task_columns(grid("a|b|c", "1|x|y"), columns)
    assert found == (1, 2, 0)
    assert named.rows == (("1", "x", "y"),)


@pytest.mark.parametrize("columns", ["1,2,0", [1, 2, 0]])
def test_a_first_row_that_could_be_a_header_is_asked_about(columns: Columns, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"could be a header, with 'a' .*: choose --format header=yes or --format head"):
        task_columns(grid("a|b|c", "1|x|y"), columns)
    path = write(tmp_path / "a.csv", "one,two,relation", TEXTS, TEXTS[::-1], ["yes", "no"] * 30)
    header = load_task(path, columns="0,1,2", format=Format(header=True))
    assert (header.labels, len(header.split("all"))) == (("no", "yes"), 60)
    assert header.digest == load_task(path, columns="one,two,relation").digest
    with pytest.raises(TaskError, match=r"cannot tell .* for example --columns 'one,two,relation'"):
        load_task(path)
    assert "relation" in load_task(path, columns="0,1,2", format=Format(header=False)).labels


@pytest.mark.parametrize("columns", [None, "sentence1,sentence2,score"])
def test_a_name_of_two_columns_is_no_name(columns: str | None) -> None:
    twice = grid("sentence1|sentence2|score|score", "a|b|1|5")
    with pytest.raises(TaskError, match=r"t\.csv has several columns 'score': rename them, or name columns by index"):
        task_columns(twice, columns)
    assert task_columns(twice, "0,1,3")[1] == (0, 1, 3)
    assert text_columns(grid("text|x|x", "a|1|2"), None)[1] == (0,)


@pytest.mark.parametrize(
    ("rows", "columns", "n_rows", "expected"),
    [
        (["text|id", "a|1"], None, 1, (0,)),
        (["just a text", "another"], None, 2, (0,)),
        (["sentence1|sentence2|n", "a|b|1"], None, 1, (0, 1)),
        (["a|b|1", "c|d|2"], None, 2, (0, 1)),
        (["title|body", "a|b"], "body", 1, (1,)),
        (["a|b"], "1,0", 1, (1, 0)),
    ],
)
def test_text_columns(rows: list[str], columns: str | None, n_rows: int, expected: tuple[int, ...]) -> None:
    found, indices = text_columns(grid(*rows), columns)
    assert (len(found.rows), indices) == (n_rows, expected)


def test_numbers_that_pandas_has_as_names_are_no_row(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.csv", list(zip(TEXTS, ["gut", "schlecht", "schlecht"] * 20, strict=True))
    pandas.DataFrame(rows).to_csv(path, index=False)
    assert load_task(path, columns="0,1").digest == load_task(rows).digest


MANY = [f"text number {i}" for i in range(200)]


def test_refusals_are_in_the_words_of_the_snapshot() -> None:
    assert snapshot() == SNAPSHOT.read_text(), "expected `python -m tests.tasks.refused` to write the same"
    assert "nothing is refused" not in SNAPSHOT.read_text()
    assert len(SNAPSHOT.read_text().splitlines()) == 2 * len(calls()), "expected one line each"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json", ".conll"])
@pytest.mark.parametrize("kind", [None, "entities"])
def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path, suffix: str, kind: str | None) -> None:
    os.mkfifo(path := tmp_path / f"a{suffix}")
    with pytest.raises(TaskError, match="is a pipe or a device, which can be read only once: save it to a file first"):
        load_task(path, kind=kind)
    with pytest.raises(TaskError, match="is a pipe or a device"):
        load_texts(path)


def test_many_whole_numbers_are_classes_or_values_by_name_or_as_asked() -> None:
    numbers = [7 * i % 45 * 3 for i in range(200)]
    for data in ({"text": MANY, "label": numbers}, list(zip(MANY, numbers, strict=True))):
        with pytest.raises(TaskError, match=r"45 different whole .* --kind classification or --kind regression"):
            load_task(data)
        assert len(load_task(data, kind="classification").labels) == 45
    assert load_task({"text": MANY, "rating": numbers}).kind == "regression"


def test_a_lone_surrogate_in_a_list_is_mended_and_told(caplog: pytest.LogCaptureFixture) -> None:
    texts = json.loads(r'["a dog", "a man \ud83d runs", "a cat"]')
    with caplog.at_level(logging.WARNING):
        assert distinct_texts(texts) == ("a dog", "a man   runs", "a cat")
    assert caplog.messages == ["replaced lone surrogates (halves of characters) by a space in 1 text: number 1"]
