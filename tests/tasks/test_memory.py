"""Tables in memory give the task that the same table in a file gives."""

import subprocess
import sys
from types import SimpleNamespace

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.formats import Format
from layerprobe.tasks.loading import load_task, load_texts
from tests.tasks.test_load_task import rows, sizes, write_csv

PAIRS = rows(60)
COLUMNS = {name: list(cells) for name, cells in zip(("s1", "s2", "score"), zip(*PAIRS, strict=True), strict=True)}
IN_MEMORY = {
    "DataFrame": pandas.DataFrame(COLUMNS, index=[7] * 60),
    "Dataset": datasets.Dataset.from_dict(COLUMNS),
    "DatasetDict with one split": datasets.DatasetDict(all=datasets.Dataset.from_dict(COLUMNS)),
    "Arrow": pyarrow.table(COLUMNS),
    "columns": COLUMNS,
    "arrays": {name: np.array(cells) for name, cells in COLUMNS.items()},
    "records": [dict(zip(COLUMNS, row, strict=True)) for row in PAIRS],
    "rows": PAIRS,
    "lists": [list(row) for row in PAIRS],
    "an array of rows": np.array(PAIRS, dtype=object),
}


@pytest.mark.parametrize("data", IN_MEMORY.values(), ids=IN_MEMORY)
def test_as_from_a_file(tmp_path, data):
    task = load_task(data, name="mine")
    assert task.digest == load_task(write_csv(tmp_path / "a.csv", PAIRS)).digest
    assert task.name == "mine"
    assert load_task(data).name == "data"


def test_splits():
    frames = {
        name: pandas.DataFrame(rows(n, name), columns=list(COLUMNS)) for name, n in zip("abc", (8, 5, 4), strict=True)
    }
    whole = load_task({"train": frames["a"], "dev": frames["b"], "test": frames["c"]})
    assert sizes(whole) == (8, 5, 4)
    assert load_task(frames["a"], validation=frames["b"], test=rows(4, "c")).digest == whole.digest
    parts = datasets.DatasetDict(
        train=datasets.Dataset.from_pandas(frames["a"]), validation=datasets.Dataset.from_pandas(frames["b"])
    )
    assert load_task(parts, test=frames["c"]).digest == whole.digest
    as_of_polars = lambda frame: SimpleNamespace(to_dicts=lambda: frame.to_dict("records"))  # noqa: E731
    for table in (as_of_polars, pyarrow.Table.from_pandas):
        parts = {role: table(frame) for role, frame in zip(("train", "dev", "test"), frames.values(), strict=True)}
        assert load_task(parts).digest == whole.digest
    exact = load_task({"train": frames["a"], "dev": frames["b"], "test_hard": frames["a"], "test": frames["c"]})
    assert exact.digest == whole.digest


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA, pandas.NaT, ""])
def test_missing_values_are_empty_cells(missing):
    frame = pandas.DataFrame({**COLUMNS, "s2": [*COLUMNS["s2"][:-1], missing]})
    with pytest.raises(TaskError, match=r"^1 row cannot be used: data: 1 with an empty s2 \(row 60\): fix or drop"):
        load_task(frame)
    assert sum(sizes(load_task(frame, skip_empty=True))) == 59


def test_decimal_commas_in_a_frame():
    frame = pandas.DataFrame({**COLUMNS, "score": [str(score).replace(".", ",") for score in COLUMNS["score"]]})
    task = load_task(frame)
    assert task.digest == load_task(COLUMNS).digest
    assert task.notes[0] == "data: read as decimal commas; --format chooses otherwise"
    with pytest.raises(TaskError, match="expected no delimiter with data"):
        load_task(frame, format=Format(delimiter=";"))


@pytest.mark.parametrize(
    "texts",
    [["a", "b"], ("a", "b"), pandas.Series(["a", "b"]), np.array(["a", "b"]), {"text": ["a", "b"]}, [("a",), ("b",)]],
)
def test_texts(texts):
    file = load_texts(texts, name="mine")
    assert (file.name, file.texts) == ("mine", ("a", "b"))


def test_rows_drawn_from_a_large_data_set_are_counted_alone(monkeypatch):
    large = datasets.Dataset.from_dict(COLUMNS)
    monkeypatch.setenv("LAYERPROBE_MAX_BYTES", str(large.data.nbytes * 2 // 3))
    few = large.shuffle(seed=0).select(range(30))
    assert sum(sizes(load_task(few, split_ratios=(0.5, 0.25, 0.25)))) == 30
    with pytest.raises(TaskError, match="LAYERPROBE_MAX_BYTES"):
        load_task(large)


def test_no_library_is_loaded():
    code = (
        "import sys, layerprobe as lp; lp.load_task([(f'a {i}', f'b {i}', i % 5 / 2) for i in range(60)]);"
        "assert not {'pandas', 'datasets', 'torch', 'pyarrow', 'chardet'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bytes_are_text_and_lists_of_other_columns_do_no_harm(tmp_path):
    texts = [f"grün {i}" for i in range(60)]
    frame = pandas.DataFrame(
        {"text": [text.encode() for text in texts], "meta": [{"a": [i]} for i in range(60)], "label": [0, 0, 1] * 20}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    for source in (frame, tmp_path / "a.parquet", datasets.Dataset.from_pandas(frame)):
        assert load_task(source).digest == load_task({"text": texts, "label": [0, 0, 1] * 20}).digest
        assert load_texts(source).texts == tuple(texts)
    with pytest.raises(TaskError, match="cannot tell which columns are first,second,score; it has the columns tokens"):
        load_task(pandas.DataFrame({"tokens": [["a"], ["b"]] * 4, "ner_tags": [[0], [1]] * 4}))
