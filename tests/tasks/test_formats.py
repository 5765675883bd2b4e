"""Files by their endings and formats: rows, places, quotes, encodings, decimal commas, and what a note says of them."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerprobe.errors import TaskError
from layerprobe.tasks.formats import DELIMITERS, Format, find_encoding, read_grid
from layerprobe.tasks.loading import load_task, load_texts

HEADER = ("sentence1", "sentence2", "score")
FRENCH = [
    ("Le café est fermé, hélas", "Un garçon joue; il pleut", "3.5"),
    ("Où est la bibliothèque ?", "L'été, on dîne tôt", "0.25"),
    ('Elle a dit "à demain" | puis rien', "Ça\tva", "5.0"),
    ("Une élève naïve", "Noël approche", "1.75"),
    ("Un hôtel près de l'île", "Il fait très froid, là-bas, en février", "4.0"),
]
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(
    path: Path,
    rows: Iterable[Sequence[str]],
    mark: str = ",",
    encoding: str = "utf-8",
    quoting: int = csv.QUOTE_MINIMAL,
) -> Path:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=mark, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    path.write_bytes(buffer.getvalue().encode(encoding))
    return path


@pytest.mark.parametrize("mark", DELIMITERS.values())
@pytest.mark.parametrize(
    ("encoding", "quoting", "decimal", "header"),
    [
        ("utf-8", csv.QUOTE_MINIMAL, ".", True),
        ("utf-8-sig", csv.QUOTE_ALL, ",", True),
        ("utf-16", csv.QUOTE_ALL, ".", False),
        ("utf-32", csv.QUOTE_MINIMAL, ",", False),
        ("cp1252", csv.QUOTE_ALL, ".", True),
        ("latin-1", csv.QUOTE_MINIMAL, ",", True),
    ],
)
def test_any_way_of_writing_gives_the_same_rows(
    tmp_path: Path, mark: str, encoding: str, quoting: int, decimal: str, header: bool
) -> None:
    rows = [(a, b, score.replace(".", decimal)) for a, b, score in FRENCH]
    path = written(tmp_path / "a.csv", [HEADER, *rows] if header else rows, mark, encoding, quoting)
    grid = read_grid(path, Format(delimiter=mark))
    assert grid.rows == ((HEADER,) if header else ()) + tuple(FRENCH)
    note = " ".join(grid.notes)
    assert ("quoted fields" in note) == (mark == "\t")
    assert (" text" in note) == (not encoding.startswith("utf-8"))
    assert ("decimal commas" in note) == (decimal == ",")


def test_the_format_is_one_note(tmp_path: Path) -> None:
    rows = [(f"{a} {i}", b, score.replace(".", ",")) for i in range(12) for a, b, score in FRENCH]
    path = written(tmp_path / "a.csv", [HEADER, *rows], ";", "cp1252")
    task = load_task(path, format="delimiter=;")
    assert task.notes[0] == f"{path}: read as cp1252 text, decimal commas; --format chooses otherwise"
    assert (task.kind, task.score_range) == ("sts", (0, 5))
    whole = Format(delimiter="semicolon", encoding="cp1252", decimal=",", header=True)
    assert load_task(path, format=whole).notes[:1] == task.notes[1:2]
    assert load_task(path, format=whole).digest == task.digest


cells = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters=",;|\t\"'"), max_size=9)
tables = st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=9)


@FEW
@given(rows=tables)
def test_csv_is_read_as_by_python(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    """A second reader, of files with commas that are quoted where needed."""
    rows = [row for row in rows if any(row)]
    path = written(tmp_path / "a.csv", [HEADER, *rows])
    assert read_grid(path, Format(decimal=".")).rows == (HEADER, *rows)


@FEW
@given(rows=tables)
def test_tsv_without_quotes_is_split_at_tabs(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    rows = [tuple(cell.replace("\t", " ").lstrip('"') for cell in row) for row in rows]
    rows = [row for row in rows if any(row)]
    (tmp_path / "a.tsv").write_text("\n".join(map("\t".join, [HEADER, *rows])), encoding="utf-8", newline="")
    assert read_grid(tmp_path / "a.tsv", Format(decimal=".")).rows == (HEADER, *rows)


def test_csv_has_quotes_and_the_places_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('"one, ""two""",b,1\r\n\r\n"three\nlines\nlong",NA,2\nx,null,3\n', newline="")
    grid = read_grid(path)
    assert grid.rows == (('one, "two"', "b", "1"), ("three\nlines\nlong", "NA", "2"), ("x", "null", "3"))
    assert grid.numbers == (1, 3, 6)
    assert grid.place(2) == f"{path}, line 6"
    path.write_text('"a",b"\n"c",d"\n')
    assert read_grid(path, Format(quotes=False)).rows == (('"a"', 'b"'), ('"c"', 'd"'))
    before = csv.field_size_limit()
    path.write_text("x" * 200_000 + ",1")
    assert len(read_grid(path).rows[0][0]) == 200_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".TSV"])
def test_a_lone_quote_of_a_tsv_is_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text('\ufeffsay "hi\t"b\t1\r\nline\u2028separator\x85\tc\t2', encoding="utf-8", newline="")
    assert read_grid(path).rows == (('say "hi', '"b', "1"), ("line\u2028separator\x85", "c", "2"))


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_a_tsv_that_a_program_has_quoted(tmp_path: Path, quoting: int) -> None:
    rows = (HEADER, ('Elle a dit "oui"', "a", "1"), ('"b"', "c d", "2"))
    path = written(tmp_path / "a.tsv", rows, "\t", quoting=quoting)
    assert read_grid(path).rows == rows
    assert read_grid(path).notes == (f"{path}: read as quoted fields; --format chooses otherwise",)
    assert read_grid(path, Format(quotes=False)).rows[1][0] == '"Elle a dit ""oui"""'
    assert read_grid(path, Format(quotes=True)).notes == ()
    rows = (HEADER, ("a\nb", "c", "1"), ("d", "e", "2"))
    assert read_grid(written(path, rows, "\t")).rows == rows, "a line break in quotes"


@pytest.mark.parametrize(
    "text",
    [
        '"s1"\t"score"\n"Oui."\t1.5\n"Elle ""dit"" non."\tNA\n',  # of write.table in R
        's1\tscore\n"Oui, oui."\t1\nNon "non" non\t2\n',  # of Excel, which quotes fields with commas
        '"Oui."\tb\n"Non."\te\n',
    ],
)
def test_every_field_that_a_quote_begins_is_quoted(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    grid = read_grid(tmp_path / "a.tsv")
    assert not any(cell.startswith('"') for row in grid.rows for cell in row)
    assert grid.notes == (f"{tmp_path / 'a.tsv'}: read as quoted fields; --format chooses otherwise",)
    (tmp_path / "a.tsv").write_text(text + '"lone\t3\n')
    assert read_grid(tmp_path / "a.tsv").rows[1][0] in text.splitlines()[1]


def test_thousands_or_decimals_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b,score\nc,d,"1,234"\ne,f,12\n')
    read_grid(path).with_header().check_cells([0, 1])
    with pytest.raises(
        TaskError, match=r"1,234 in score could be 1\.234 or 1234: .*decimal=,' or --format decimal=\.$"
    ):
        load_task(path, columns="a,b,score", kind="sts")
    for decimal, number in ((",", "1.234"), (".", "1234")):
        assert read_grid(path, Format(decimal=decimal)).rows[1][2] == number  # type: ignore[arg-type]
    rows = (("a", "0,5 euros"), ("b", "1,5"), ("c", "x"))
    assert read_grid(written(path, rows)).rows == rows, "text with commas is no number"


def test_jsonl_and_parquet_name_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\\ny", "s": 1.5}\n\n{"s": 2, "a": null}\n{"a": "z", "b": 1}')
    grid = read_grid(path)
    assert grid.header == ("a", "s", "b")
    assert grid.rows == (("x\ny", "1.5", ""), ("", "2", ""), ("z", "", "1"))
    assert grid.numbers == (1, 3, 4)
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"a": ["x", None, "NA"], "s": [1.0, 2.5, None]}).to_parquet(path)
    grid = read_grid(path)
    assert (grid.header, grid.rows) == (("a", "s"), (("x", "1.0"), ("", "2.5"), ("NA", "")))
    assert grid.place(1) == f"{path}, row 2"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("a,b,1")
    path.chmod(0)
    with pytest.raises(TaskError, match="cannot be read: Permission denied"):
        read_grid(path)


def test_lines_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Où est-il ?\nÀ l'école, près du château.\n".encode("cp1252"))
    texts = load_texts(tmp_path / "a.txt")
    assert texts.texts == ("Où est-il ?", "À l'école, près du château.")
    assert texts.notes == (f"{tmp_path / 'a.txt'}: read as cp1252 text; --format chooses otherwise",)
    assert load_texts(tmp_path / "a.txt", format=Format(encoding="cp1252")).notes == ()
    with pytest.raises(TaskError, match=r"is not ascii after line 0 .*: name another encoding with --format encoding="):
        load_texts(tmp_path / "a.txt", format=Format(encoding="ascii"))


@pytest.mark.parametrize(("language", "encoding"), [("de", "cp1252"), ("es", "latin-1"), ("ko", "euc-kr")])
def test_encodings_of_real_texts(shared_data: Path, tmp_path: Path, language: str, encoding: str) -> None:
    source = next((shared_data / "stsb").glob(f"{language}-train.*"))
    lines = source.read_text(encoding="utf-8").splitlines()
    for start in range(0, 1000, 100):
        data = "\n".join(lines[start : start + 100]).encode(encoding, "replace")
        (tmp_path / "a.txt").write_bytes(data)
        assert data.decode(find_encoding(tmp_path / "a.txt")) == data.decode(encoding)
