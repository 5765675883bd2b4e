"""The STS benchmark in four languages, read as it is written."""

import csv
import unicodedata
from pathlib import Path

import pytest

from layerprobe.tasks.loading import load_task

FILES = {"en": "en-train.csv", "de": "de-train.csv", "es": "es-train.csv", "ko": "ko-train.tsv"}


def in_file(file: Path) -> list[tuple[str, str, float]]:
    """The pairs of a file, read in another way."""
    with file.open(encoding="utf-8", newline="") as lines:
        if file.suffix == ".csv":
            return [(first, second, float(score)) for first, second, score in csv.reader(lines)]
        header, *rows = (line.rstrip("\r\n").split("\t") for line in lines)
        places = [header.index(name) for name in ("sentence1", "sentence2", "score")]
        return [(row[places[0]], row[places[1]], float(row[places[2]])) for row in rows]


@pytest.mark.parametrize("language", FILES)
def test_texts_and_scores_are_those_of_the_file(shared_data: Path, language: str) -> None:
    file = shared_data / "stsb" / FILES[language]
    task, expected = load_task(file, keep_overlaps=True), in_file(file)
    assert task.train.second is not None
    odd = {text for pair in expected for text in pair[:2] if any(unicodedata.category(each) == "Cc" for each in text)}
    rows = list(zip(task.train.first, task.train.second, task.train.targets, strict=True))
    assert len(rows) == len(expected) == 5749
    for (first, second, target), (one, other, gold) in zip(rows, expected, strict=True):
        assert target == pytest.approx(gold / 5)
        assert first == one or one in odd
        assert second == other or other in odd
    assert len(odd) < 3
