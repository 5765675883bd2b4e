"""What users bring is read within limits that name themselves, and refused with little of it in memory."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from layerprobe.errors import DataError, TaskError
from layerprobe.files.inputs import BYTES, text_lines
from layerprobe.files.serialisation import parse_json, read_toml
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.results.shown import load
from layerprobe.tasks.formats import read_grid
from layerprobe.tasks.loading import load_corpus
from layerprobe.tasks.sources import hub_grids


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=8), st.booleans())
def test_lines_are_those_of_the_file(tmp_path_factory: pytest.TempPathFactory, texts: list[str], packed: bool) -> None:
    path = tmp_path_factory.mktemp("lines") / ("a.txt.gz" if packed else "a.txt")
    data = b"\xef\xbb\xbf" + "".join(f"{text}\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert list(text_lines(path)) == ([(i, f"{text}\n") for i, text in enumerate(texts, 1)] or [(1, "")])


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize(
    ("variable", "limit", "message"),
    [
        ("LAYERPROBE_MAX_BYTES", 21, "has more than 21 bytes when unpacked, the limit: .* set LAYERPROBE_MAX_BYTES to"),
        ("LAYERPROBE_MAX_CELLS", 3, "has more than 3 lines or cells, the limit: .* or set LAYERPROBE_MAX_CELLS to"),
        ("LAYERPROBE_MAX_RECORD", 9, "a line of .* has more than 9 bytes in one piece, .* set LAYERPROBE_MAX_RECORD"),
    ],
)
def test_limits_hold_to_the_byte_and_can_be_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, variable: str, limit: int, message: str
) -> None:
    path, data = tmp_path / f"a{suffix}", b"abcdefgh\n123456789\n\nxy"  # 22 bytes, 4 lines, one of 9
    path.write_bytes(gzip.compress(data) if suffix == ".txt.gz" else data)
    number = limit - 1 if variable == "LAYERPROBE_MAX_RECORD" else limit
    monkeypatch.setenv(variable, str(number))
    with pytest.raises(TaskError, match=message.replace(str(limit), str(number))):
        load_corpus([path])
    monkeypatch.setenv(variable, str(number + 1))
    assert load_corpus([path]).texts == ("abcdefgh", "123456789", "xy")


@pytest.mark.parametrize("number", ["0", "-1", "many", "1e9", "٣", "9" * 30])
def test_a_limit_is_a_number(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv("LAYERPROBE_MAX_BYTES", number)
    with pytest.raises(DataError, match="expected LAYERPROBE_MAX_BYTES to be a whole number above 0, got"):
        BYTES.check(1, "a file")


@pytest.mark.parametrize(
    ("name", "content", "cells", "right"),
    [
        ("a.csv", "a,b\nc,d\n", 4, 2),
        ("a.csv", "a,b\rc,d", 4, 2),
        ("a.csv", '"a\na",b\nc,d\n', 4, 2),
        ("a.tsv", "a\tb\nc\td\n", 4, 2),
        ("a.jsonl", '{"a": 1}\n{"b": 2}\n{}\n', 6, 3),
    ],
)
def test_cells_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, cells: int, right: int
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", str(cells - 1))
    with pytest.raises(TaskError, match=f"has more than {cells - 1} lines or cells"):
        read_grid(tmp_path / name)
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", str(cells))
    assert len(read_grid(tmp_path / name).rows) == right


def test_a_quote_that_is_never_closed_takes_no_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text('a,"b\n' + "c,d\n" * 100)
    monkeypatch.setenv("LAYERPROBE_MAX_RECORD", "40")
    with pytest.raises(TaskError, match=r"a row of .* more than 40 bytes .* LAYERPROBE_MAX_RECORD .* quote not closed"):
        read_grid(tmp_path / "a.csv")


WORD = "w" * 1000
PARQUET: dict[str, Callable[[Path], None]] = {
    "rows": lambda path: parquet.write_table(pyarrow.table({"a": [1] * 2000}), path),
    "items of lists": lambda path: parquet.write_table(pyarrow.table({"a": [[1] * 2000]}), path),
    "a text again and again": lambda path: parquet.write_table(pyarrow.table({"a": [WORD] * 900}), path),
    "in lists": lambda path: parquet.write_table(pyarrow.table({"a": [[WORD] * 900]}), path),
    "in structs": lambda path: parquet.write_table(pyarrow.table({"a": [{"b": WORD}] * 900}), path),
    "of fixed length": lambda path: parquet.write_table(
        pyarrow.table({"a": pyarrow.array([WORD.encode()] * 900, pyarrow.binary(1000))}), path
    ),
    "deltas": lambda path: parquet.write_table(
        pyarrow.table({"a": [WORD + str(i) for i in range(900)]}),
        path,
        use_dictionary=False,
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
    ),
}


@pytest.mark.parametrize("write", PARQUET.values(), ids=PARQUET)
def test_parquet_is_measured_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 50_000
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", "1000")
    monkeypatch.setenv("LAYERPROBE_MAX_BYTES", "800000")
    with pytest.raises(TaskError, match=r"more than 1,000 lines or cells|more than 800,000 bytes when unpacked"):
        read_grid(tmp_path / "a.parquet")
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", "2000")
    monkeypatch.setenv("LAYERPROBE_MAX_BYTES", "950000")
    assert read_grid(tmp_path / "a.parquet").rows


def test_a_data_set_of_the_hub_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    split = datasets.Dataset.from_dict({"a": ["x"] * 10, "b": ["y"] * 10})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: datasets.DatasetDict(train=split))
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", "19")
    with pytest.raises(TaskError, match="org/data train has more than 19 lines or cells"):
        hub_grids("org/data")
    monkeypatch.setenv("LAYERPROBE_MAX_CELLS", "20")
    assert len(hub_grids("org/data")["train"].rows) == 10


READERS: dict[str, Callable[[Path], object]] = {
    "toml": lambda path: read_toml(path, "the chain"),
    "result": load,
    "zoo": read_zoo,
    "table": lambda path: read_grid(path.rename(path.with_suffix(".csv"))),
    "corpus": lambda path: load_corpus([path.rename(path.with_suffix(".txt.gz"))]),
}


@pytest.mark.skipif(os.name == "nt", reason="no pipes with names, no /dev/zero")
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object], kind: str) -> None:
    path = tmp_path / "x"
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](path)
    with pytest.raises(DataError, match=r"not a regular file|a pipe or a device|not a file|Is a directory"):
        read(path)


@pytest.mark.parametrize("read", [READERS["toml"], read_zoo], ids=["toml", "zoo"])
def test_documents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]) -> None:
    (tmp_path / "x").write_text("# " + "x" * 100)
    for variable in ("LAYERPROBE_MAX_RECORD", "LAYERPROBE_MAX_SETTINGS"):
        monkeypatch.setenv(variable, "101")
    with pytest.raises(DataError, match=r"more than 101 bytes (in one piece|of settings), .* set LAYERPROBE_MAX_"):
        read(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1" * 5000, "integer string conversion"),
        ("[NaN]", "expected a finite number or null, got NaN"),
        ('{"a": -Infinity}', "expected a finite number or null, got -Infinity"),
        ('{"a": 1, "b": {"c": 2, "c": 3}}', 'expected each key once, got "c" again'),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_json(text)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + (text or "?"))
    with pytest.raises(TaskError, match=r"a\.jsonl, line 2: expected (one|a) JSON object"):
        read_grid(tmp_path / "a.jsonl")
    (tmp_path / "finding.json").write_text(text)
    with pytest.raises(DataError, match=r"finding\.json: "):
        load(tmp_path / "finding.json")
