import csv
import os
from pathlib import Path

import pandas
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.formats import read_grid


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_is_quoted(tmp_path):
    table = read_grid(written(tmp_path, "a.csv", '"one, ""two""",b,1\r\n\r\n"three\nlines\nlong",NA,2\nx,null,3\n'))
    assert table.rows == (('one, "two"', "b", "1"), ("three\nlines\nlong", "NA", "2"), ("x", "null", "3"))
    assert table.numbers == (1, 3, 6)
    assert table.place(2) == f"{tmp_path / 'a.csv'}, line 6"


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".TSV"])
def test_tsv_has_no_quotes(tmp_path, suffix):
    path = written(tmp_path, f"a{suffix}", 'say "hi\t"b\t1\r\nline\u2028separator\x85\tc\t2')
    assert read_grid(path).rows == (('say "hi', '"b', "1"), ("line\u2028separator\x85", "c", "2"))


def test_byte_order_mark_is_no_text(tmp_path):
    assert read_grid(written(tmp_path, "a.tsv", b"\xef\xbb\xbfscore\ta\n1\tb")).rows[0] == ("score", "a")


def test_fields_may_be_long(tmp_path):
    before = csv.field_size_limit()
    assert len(read_grid(written(tmp_path, "a.csv", "x" * 200_000 + ",1")).rows[0][0]) == 200_000
    assert csv.field_size_limit() == before


def test_jsonl(tmp_path):
    table = read_grid(
        written(tmp_path, "a.jsonl", '{"a": "x\\ny", "s": 1.5}\n\n{"s": 2, "a": null}\n{"a": "z", "b": 1}')
    )
    assert table.header == ("a", "s", "b")
    assert table.rows == (("x\ny", "1.5", ""), ("", "2", ""), ("z", "", "1"))
    assert table.numbers == (1, 3, 4)


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"a": ["x", None, "NA"], "s": [1.0, 2.5, None]}).to_parquet(path)
    table = read_grid(path)
    assert (table.header, table.rows) == (("a", "s"), (("x", "1.0"), ("", "2.5"), ("NA", "")))
    assert table.place(1).endswith("a.parquet, row 2")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file_is_named(tmp_path):
    path = written(tmp_path, "a.csv", "a,b,1")
    path.chmod(0)
    with pytest.raises(TaskError, match="cannot be read: Permission denied"):
        read_grid(path)
