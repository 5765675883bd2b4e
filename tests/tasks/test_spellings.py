"""One class in several spellings: the classes stay separate, and one line says so, with counts."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import layerprobe as lp
from layerprobe.errors import TaskError
from layerprobe.probing.targets import as_targets
from layerprobe.tasks.cells import spelled_alike

N = 120
ONE_CLASS: list[tuple[Any, Any]] = [
    (True, "1"),
    ("yes", "Yes"),
    ("caf\u00e9", "cafe\u0301"),
    ("New York", "New\u00a0York"),
    ("sci-fi", "Sci_Fi"),
    ("01", "1"),
    ("\uff11", "1"),
    ("a\u200bb", "ab"),
    ("don't", "don\u2019t"),
    ('"yes"', "yes"),
    ("\u201cnew york\u201d", "New York"),
    ("yes.", "yes"),
]
SEPARATE = [
    ("A", "A-"),
    ("c", "c++"),
    ("9007199254740993", "9007199254740992"),
    ("1", "-1"),
    ("1e999", "1e998"),
    ("-", "_"),
    ("'", '"'),
    ("5'", "5"),
    ("a.", "a"),
]


def frame(*labels: Any) -> pd.DataFrame:
    texts = [f"word {i} and {i * 7 % 13}" for i in range(N)]
    return pd.DataFrame({"text": texts, "label": [labels[i % len(labels)] for i in range(N)]}, dtype=object)


@pytest.mark.parametrize(("first", "second"), ONE_CLASS)
def test_spellings_are_warned_of(first: Any, second: Any) -> None:
    task = lp.load_task(frame(first, second, "none"), kind="classification")
    assert len(task.labels) == 3
    (warning,) = task.warnings
    assert warning.startswith("2 classes may be spellings of 1: ")
    assert warning.count(f"({N // 3})") == 2


@pytest.mark.parametrize(("first", "second"), [*ONE_CLASS, ("yes", "yes "), ("yes", "yes\u00a0")])
def test_targets_of_probe_are_warned_of_too(first: Any, second: Any) -> None:
    (note,) = as_targets(frame(first, second, "none")["label"], N, kind="classes").remarks
    assert note.startswith("2 classes may be spellings of 1: ")


@pytest.mark.parametrize(("first", "second"), SEPARATE)
def test_what_is_no_spelling_is_not_said(first: str, second: str) -> None:
    assert spelled_alike({first: 3, second: 2}) == ()


def test_tags_are_said_too(tmp_path: Path) -> None:
    tags = ("B-PER", "B-Per", "B-LOC")
    file = tmp_path / "tags.conll"
    file.write_text("".join(f"word{i} O\nname{i} {tags[i % 3]}\n\n" for i in range(N)))
    assert any(
        "2 tags may be spellings of 1: 'B-PER' (40), 'B-Per' (40)" in line for line in lp.load_task(file).warnings
    )


def test_a_label_of_another_spelling_in_the_test_split_says_so() -> None:
    with pytest.raises(TaskError, match=r"'Yes' .*the train split has no, yes; 2 classes may be spellings of 1"):
        lp.load_task(frame("yes", "no"), test=frame("Yes", "no"), kind="classification")
