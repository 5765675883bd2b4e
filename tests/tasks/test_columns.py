import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.columns import task_columns, text_columns
from layerprobe.tasks.tables import Table


def table(*rows: str, header: bool = False) -> Table:
    cells = tuple(tuple(row.split("|")) for row in rows)
    whole = Table(name="t.csv", header=None, rows=cells, numbers=tuple(range(1, len(rows) + 1)))
    return whole.with_header() if header else whole


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
    ],
)
def test_known_names_are_found(header, expected):
    row = "|".join("3" for _ in header.split("|"))
    named, columns = task_columns(table(header, row), None, None)
    assert columns == expected
    assert len(named.rows) == 1


@pytest.mark.parametrize(
    ("header", "unused"),
    [
        ("s1|s2|score|label", "label"),
        ("sentence|answer|label|title", "answer"),
        ("sentence|answer|label|rating", "answer and rating"),
        ("s1|s2|score|n", ""),
    ],
)
def test_columns_that_could_be_meant_too_are_told(header, unused):
    rows = (f"one text {i}|another text {i}|{i % 3}|{i % 2}" for i in range(9))
    named, _ = task_columns(table(header, *rows), None, None)
    assert bool(named.notes) == bool(unused)
    assert not unused or f", {unused} not used; --columns chooses otherwise" in named.notes[0]


@pytest.mark.parametrize(("row", "expected"), [("a|b|1.5", (0, 1, 2)), ("0|a|b", (1, 2, 0)), ("a|-1e-3|b", (0, 2, 1))])
def test_two_texts_and_a_number_need_no_header(row, expected):
    unnamed, columns = task_columns(table(row, row), None, None)
    assert columns == expected
    assert len(unnamed.rows) == 2


def test_a_text_may_look_like_a_number():
    assert task_columns(table("1984|Animal Farm|4", "Ulysses|Odyssey|2"), None, None)[1] == (0, 1, 2)


@pytest.mark.parametrize("columns", ["b,c,a", " b , c,a", ["b", "c", "a"], "1,2,0", [1, 2, 0], ["b", 2, "a"]])
def test_columns_by_name_or_index(columns):
    named, found = task_columns(table("a|b|c", "1|x|y"), columns, None)
    assert found == (1, 2, 0)
    assert named.rows == (("1", "x", "y"),)


@pytest.mark.parametrize("columns", [None, "sentence1,sentence2,score"])
def test_a_name_of_two_columns_is_no_name(columns):
    twice = table("sentence1|sentence2|score|score", "a|b|1|5")
    with pytest.raises(TaskError, match=r"t\.csv has several columns 'score': rename them, or name columns by index"):
        task_columns(twice.with_header(), columns, None)
    assert task_columns(twice, "0,1,3", None)[1] == (0, 1, 3)


def test_a_column_that_is_not_used_may_come_twice():
    assert text_columns(table("text|x|x", "a|1|2"), None)[1] == (0,)


def test_columns_by_index_without_header():
    unnamed, found = task_columns(table("x|1|y", "x|2|y"), "0,2,1", None)
    assert found == (0, 2, 1)
    assert len(unnamed.rows) == 2


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
def test_text_columns(rows, columns, n_rows, expected):
    found, indices = text_columns(table(*rows), columns)
    assert (len(found.rows), indices) == (n_rows, expected)
