"""Texts in a temporary file are those that were put there."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.files import inputs as module
from layerprobe.files.inputs import SpooledTexts, spooled
from layerprobe.store.manifest import first_rows, sample_ids

TEXTS = st.lists(st.text(max_size=9), min_size=1, max_size=40).filter(any)


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Several chunks and files, for hypothesis too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "IN_MEMORY", 0)
        patch.setattr(module, "CHUNK", 3)
        yield


@given(texts=TEXTS, data=st.data())
def test_a_file_of_texts_reads_as_their_list(texts, data):
    kept = spooled(iter(texts))
    assert isinstance(kept, SpooledTexts)
    assert kept == texts
    assert texts == list(kept)
    assert kept == tuple(texts)
    assert kept != [*texts, "x"]
    start, stop = data.draw(st.tuples(st.integers(-5, 50), st.integers(-5, 50)))
    assert kept[start:stop] == tuple(texts[start:stop])
    assert kept[::-2] == tuple(texts[::-2])
    assert [kept[row] for row in range(-len(texts), len(texts))] == texts * 2
    rows = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9)), dtype=np.intp)
    assert kept.take(rows) == [texts[row] for row in rows]


@given(texts=st.lists(st.sampled_from("abc"), max_size=12))
def test_first_rows_are_those_of_a_dict(texts):
    assert [texts[row] for row in first_rows(texts, sample_ids(texts))] == list(dict.fromkeys(texts))
    # even if all had the same id
    same = np.zeros(len(texts), dtype=np.uint64)
    assert [texts[row] for row in first_rows(texts, same)] == list(dict.fromkeys(texts))


def test_lone_surrogates_come_back():
    assert list(spooled(["a\ud800", "b"])) == ["a\ud800", "b"]


def test_a_few_texts_stay_a_tuple(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 10)
    assert spooled(iter(["ab", "c" * 8])) == ("ab", "c" * 8)
    assert type(spooled(iter(["ab", "c" * 8]))) is tuple
    assert type(spooled(["ab", "c" * 9])) is SpooledTexts
    assert spooled([]) == ()


def test_a_row_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="out of bounds"):
        spooled(["a", "b"])[2]


def test_threads_read_side_by_side():
    texts = [f"text {i}" for i in range(300)]
    kept = spooled(texts)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda row: kept[row], [*range(300)] * 5)) == texts * 5


def test_no_room_for_the_file_is_one_line(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.tempfile, "TemporaryFile", full)
    with pytest.raises(DataError, match=r"temporary file in .* \(No space left on device\): free space, or name"):
        spooled(["a"])
