"""Files by their endings and formats: rows, places, encodings, decimal commas, and what a note says of them."""

import csv
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerprobe.errors import TaskError
from layerprobe.tasks.formats import DELIMITERS, Format, find_encoding, read_grid
from layerprobe.tasks.loading import load_task, load_texts
from tests.tasks.test_load_task import write_csv

HEADER = ("sentence1", "sentence2", "score")
FRENCH = [
    ("Le café est fermé, hélas", "Un garçon joue; il pleut", "3.5"),
    ("Où est la bibliothèque ?", "L'été, on dîne tôt", "0.25"),
    ('Elle a dit "à demain" | puis rien', "Ça\tva", "5.0"),
    ("Une élève naïve", "Noël approche", "1.75"),
    ("Un hôtel près de l'île", "Il fait très froid, là-bas, en février", "4.0"),
]


def written(path: Path, rows, mark=",", encoding="utf-8", quoting=csv.QUOTE_MINIMAL) -> Path:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=mark, quoting=quoting).writerows(rows)
    path.write_bytes(buffer.getvalue().encode(encoding))
    return path


@pytest.mark.parametrize(
    ("mark", "encoding", "quoting"),
    [
        *itertools.product(
            DELIMITERS.values(),
            ("utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "latin-1"),
            (csv.QUOTE_MINIMAL, csv.QUOTE_ALL),
        )
    ],
)
@pytest.mark.parametrize(("decimal", "header"), [(".", True), (",", True), (".", False)])
def test_any_way_of_writing_gives_the_same_rows(tmp_path, mark, encoding, quoting, decimal, header):
    rows = [(a, b, score.replace(".", decimal)) for a, b, score in FRENCH]
    path = written(tmp_path / "a.csv", [HEADER, *rows] if header else rows, mark, encoding, quoting)
    table = read_grid(path, Format(delimiter=mark))
    assert table.rows == ((HEADER,) if header else ()) + tuple(FRENCH)
    note = " ".join(table.notes)
    assert ("quoted fields" in note) == (mark == "\t")
    assert (" text" in note) == (not encoding.startswith("utf-8"))
    assert ("decimal commas" in note) == (decimal == ",")
    assert not table.warnings


def test_what_was_found_is_one_line(tmp_path):
    rows = [
        (a, b, score.replace(".", ",")) for i in range(12) for a, b, score in [(f"{a} {i}", b, s) for a, b, s in FRENCH]
    ]
    path = written(tmp_path / "a.csv", [HEADER, *rows], ";", "cp1252")
    task = load_task(path, format="delimiter=;")
    assert task.notes[0] == f"{path}: read as cp1252 text, decimal commas; --format chooses otherwise"
    assert (task.kind, task.score_range) == ("sts", (0, 5))
    told = Format(delimiter="semicolon", encoding="cp1252", decimal=",", header=True)
    assert load_task(path, format=told).notes[:1] == task.notes[1:2]
    assert load_task(path, format=told).digest == task.digest


def test_a_quoted_tsv_with_line_breaks(tmp_path):
    rows = [HEADER, ("a\nb", "c", "1"), ("d", "e", "2")]
    assert read_grid(written(tmp_path / "a.tsv", rows, "\t")).rows == tuple(rows)


cells = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters=",;|\t\"'"), max_size=9)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=9))
def test_csv_files_read_as_before(tmp_path, rows):
    """A second reader, Python's own, of files with commas that are quoted where needed."""
    rows = [row for row in rows if any(row)]
    path = written(tmp_path / "a.csv", [HEADER, *rows])
    assert read_grid(path, Format(decimal=".")).rows == (HEADER, *rows)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=9))
def test_tsv_files_read_as_before(tmp_path, rows):
    rows = [tuple(cell.replace("\t", " ").lstrip('"') for cell in row) for row in rows]
    rows = [row for row in rows if any(row)]
    (tmp_path / "a.tsv").write_text("\n".join(map("\t".join, [HEADER, *rows])), encoding="utf-8", newline="")
    assert read_grid(tmp_path / "a.tsv", Format(decimal=".")).rows == (HEADER, *rows)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("suffix", [".tsv", ".txt"])
def test_a_tsv_that_a_program_has_quoted(tmp_path, quoting, suffix):
    rows = (HEADER, ('Elle a dit "oui"', "a", "1"), ('"b"', "c d", "2"))
    path = written(tmp_path / f"a{suffix}", rows, "\t", quoting=quoting)
    table = read_grid(path)
    assert table.rows == rows
    assert table.notes == (f"{path}: read as quoted fields; --format chooses otherwise",)
    raw = read_grid(path, Format(quotes=False))
    assert raw.rows[1][0] == '"Elle a dit ""oui"""'
    assert read_grid(path, Format(quotes=True)).notes == ()
    (tmp_path / "b.csv").write_text('"a",b"\n"c",d"\n')
    assert read_grid(tmp_path / "b.csv", Format(quotes=False)).rows == (('"a"', 'b"'), ('"c"', 'd"'))


@pytest.mark.parametrize(
    "text",
    [
        '"s1"\t"score"\n"Oui."\t1.5\n"Elle ""dit"" non."\tNA\n',  # of write.table in R
        's1\tscore\n"Oui, oui."\t1\nNon "non" non\t2\n',  # of Excel, which quotes fields with commas
        '"Oui."\tb\n"Non."\te\n',
    ],
)
def test_every_field_that_a_quote_begins_is_quoted(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text)
    table = read_grid(tmp_path / "a.tsv")
    assert not any(cell.startswith('"') for row in table.rows for cell in row)
    assert table.notes == (f"{tmp_path / 'a.tsv'}: read as quoted fields; --format chooses otherwise",)
    assert read_grid(tmp_path / "a.tsv", Format(quotes=False)).rows[1][0] in text
    (tmp_path / "a.tsv").write_text(text + '"lone\t3\n')
    assert read_grid(tmp_path / "a.tsv").rows[1][0] in text.splitlines()[1]


def test_thousands_or_decimals_are_asked_for(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b,score\nc,d,"1,234"\ne,f,12\n')
    table = read_grid(path).with_header()
    table.check_cells([0, 1])
    with pytest.raises(TaskError) as caught:
        load_task(path, columns="a,b,score", kind="sts")
    assert str(caught.value) == (
        f"{path}: 1,234 in score could be 1.234 or 1234: choose --format 'decimal=,' or --format decimal=."
    )
    for decimal, number in ((",", "1.234"), (".", "1234")):
        told = read_grid(path, Format(decimal=decimal))
        assert (told.rows[1][2], told.warnings) == (number, ())


def test_text_with_commas_is_no_number(tmp_path):
    rows = (("a", "0,5 euros"), ("b", "1,5"), ("c", "x"))
    assert read_grid(written(tmp_path / "a.csv", rows)).rows == rows


# ---- options ------------------------------------------------------------------------------------------


def test_header_or_none_can_be_said(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("text", "label")] + [(f"t {i}", "ab"[i % 2]) for i in range(60)])
    assert len(load_texts(path, columns="0", format=Format(header=False)).texts) == 61
    assert len(load_texts(path, columns="0", format=Format(header=True)).texts) == 60
    with pytest.raises(TaskError, match="has no column 'text'; it has no header and the first row 0: 'text'"):
        load_texts(path, columns="text", format=Format(header=False))
    numbers = write_csv(tmp_path / "b.csv", [(f"{i}", f"t {i}") for i in range(60)])
    assert len(load_texts(numbers, columns="1", format=Format(header=True)).texts) == 59


def test_lines_of_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("Où est-il ?\nÀ l'école, près du château.\n".encode("cp1252"))
    texts = load_texts(tmp_path / "a.txt")
    assert texts.texts == ("Où est-il ?", "À l'école, près du château.")
    assert texts.notes == (f"{tmp_path / 'a.txt'}: read as cp1252 text; --format chooses otherwise",)
    assert load_texts(tmp_path / "a.txt", format=Format(encoding="cp1252")).notes == ()
    with pytest.raises(TaskError, match=r"is not ascii after line 0 .*: name another encoding with --format encoding="):
        load_texts(tmp_path / "a.txt", format=Format(encoding="ascii"))


@pytest.mark.parametrize(("language", "encoding"), [("de", "cp1252"), ("es", "latin-1"), ("ko", "euc-kr")])
def test_encodings_of_real_texts(shared_data, tmp_path, language, encoding):
    source = next((shared_data / "stsb").glob(f"{language}-train.*"))
    lines = source.read_text(encoding="utf-8").splitlines()
    for start in range(0, 1000, 100):
        data = "\n".join(lines[start : start + 100]).encode(encoding, "replace")
        (tmp_path / "a.txt").write_bytes(data)
        assert data.decode(find_encoding(tmp_path / "a.txt")) == data.decode(encoding)
