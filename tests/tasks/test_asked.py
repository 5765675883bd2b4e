"""What could be understood in two ways is asked, and what was changed is said."""

import json
import logging
import os
from pathlib import Path

import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.loading import load_task, load_texts
from layerprobe.tasks.quality import distinct_texts
from tests.tasks.refused import SNAPSHOT, calls, snapshot

TEXTS = [f"text number {i}" for i in range(200)]


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
    for data in ({"text": TEXTS, "label": numbers}, list(zip(TEXTS, numbers, strict=True))):
        with pytest.raises(TaskError, match=r"45 different whole .* --kind classification or --kind regression"):
            load_task(data)
        assert len(load_task(data, kind="classification").labels) == 45
    assert load_task({"text": TEXTS, "rating": numbers}).kind == "regression"


def test_a_lone_surrogate_in_a_list_is_mended_and_told(caplog: pytest.LogCaptureFixture) -> None:
    texts = json.loads(r'["a dog", "a man \ud83d runs", "a cat"]')
    with caplog.at_level(logging.WARNING):
        assert distinct_texts(texts) == ("a dog", "a man   runs", "a cat")
    assert caplog.messages == ["replaced lone surrogates (halves of characters) by a space in 1 text: number 1"]
