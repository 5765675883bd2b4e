import csv
import os
from pathlib import Path

import pandas
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.tables import read_table


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_is_quoted(tmp_path):
    table = read_table(written(tmp_path, "a.csv", '"one, ""two""",b,1\r\n\r\n"three\nlines\nlong",NA,2\nx,null,3\n'))
    assert table.rows == (('one, "two"', "b", "1"), ("three\nlines\nlong", "NA", "2"), ("x", "null", "3"))
    assert table.numbers == (1, 3, 6)
    assert table.place(2) == f"{tmp_path / 'a.csv'}, line 6"


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".TSV"])
def test_tsv_has_no_quotes(tmp_path, suffix):
    path = written(tmp_path, f"a{suffix}", 'say "hi\t"b\t1\r\nline\u2028separator\x85\tc\t2')
    assert read_table(path).rows == (('say "hi', '"b', "1"), ("line\u2028separator\x85", "c", "2"))


def test_byte_order_mark_is_no_text(tmp_path):
    assert read_table(written(tmp_path, "a.tsv", b"\xef\xbb\xbfscore\ta\n1\tb")).rows[0] == ("score", "a")


def test_fields_may_be_long(tmp_path):
    before = csv.field_size_limit()
    assert len(read_table(written(tmp_path, "a.csv", "x" * 200_000 + ",1")).rows[0][0]) == 200_000
    assert csv.field_size_limit() == before


def test_jsonl(tmp_path):
    table = read_table(
        written(tmp_path, "a.jsonl", '{"a": "x\\ny", "s": 1.5}\n\n{"s": 2, "a": null}\n{"a": "z", "b": 1}')
    )
    assert table.header == ("a", "s", "b")
    assert table.rows == (("x\ny", "1.5", ""), ("", "2", ""), ("z", "", "1"))
    assert table.numbers == (1, 3, 4)


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"a": ["x", None, "NA"], "s": [1.0, 2.5, None]}).to_parquet(path)
    table = read_table(path)
    assert (table.header, table.rows) == (("a", "s"), (("x", "1.0"), ("", "2.5"), ("NA", "")))
    assert table.place(1).endswith("a.parquet, row 2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\n\r\n,,\n", "is empty"),
        ("a.jsonl", "\n", "is empty"),
        ("a.csv", "a,b,1\nc,d\n", r"a\.csv, line 2: expected 3 fields as in line 1, got 2: put fields"),
        ("a.tsv", "a\tb\t1\n\nc\td\t2\te\n", r"a\.tsv, line 3: expected 3 fields as in line 1, got 4: separate"),
        ("a.csv", 'a,b,1\n"c"d,e,2\n', r"a\.csv, line 2: malformed CSV"),
        ("a.csv", 'a,b,1\n\n"never closed,e,2\n', r"a\.csv, line 3: malformed CSV"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"a\.jsonl, line 2: expected one JSON object"),
        ("a.jsonl", "[1]\n", r"a\.jsonl, line 1: expected a JSON object, got \[1\]"),
        ("a.parquet", "no", "cannot be read as Parquet"),
        (
            "a.conll",
            "no",
            r"'\.conll', which is only read as a word and its tag .*: expected one of \.csv, .*, or such",
        ),
        ("a.xlsx", "no", r"extension '\.xlsx': expected one of \.csv, \.tsv"),
        ("a.csv", b"a,b,1\na\xed\xa0\x80,d,2", r"not UTF-8 \(byte 0xed in line 2\): save it"),
        ("a.csv", "é,b,1\nè,d,2\n".encode() + b"\xe9,e,3", r"not UTF-8 \(byte 0xe9 in line 3\): save it"),
        ("a.csv", b"a,b,1\nc\0\xe9,d,2", r"not UTF-8 \(byte 0xe9 in line 2\): save it"),
        (
            "a.csv",
            "a,b,1".encode("utf-16")[:-1],
            r"is not utf-16 after line 0 \(.*truncated.*\): give another with --",
        ),
        ("a.csv", "a;b;1\nc;d,e\nf;g;2\n", r"line 2: expected 3 fields .*, got 2 separated by a semicolon: put"),
        ("a.tsv", 'a,b,1\n"c,d",e\nf,g,2\n', r"line 2: expected 3 fields .* got 2 separated by a comma: put fields"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, message):
    with pytest.raises(TaskError, match=message) as caught:
        read_table(written(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"no\.csv does not exist"):
        read_table(tmp_path / "no.csv")


def test_folder_is_no_file(tmp_path):
    with pytest.raises(TaskError, match="is not a file"):
        read_table(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file_is_named(tmp_path):
    path = written(tmp_path, "a.csv", "a,b,1")
    path.chmod(0)
    with pytest.raises(TaskError, match="cannot be read: Permission denied"):
        read_table(path)
