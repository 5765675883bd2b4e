"""Tasks of every kind from files and the Hub: found out, asked for, and refused."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from layerprobe.errors import TaskError
from layerprobe.names import counted, plural
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.splitting import spoilt_items
from layerprobe.tasks.values import Task

PAIR_HEADER = ("sentence1", "sentence2", "label")


def write(path: Path, rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*([header] if header else []), *rows])
    return path


def pairs(labels: Sequence[Any], word: str = "text") -> list[tuple[str, str, Any]]:
    return [(f"{word} {i}", f"other {word} {i}", label) for i, label in enumerate(labels)]


def texts(labels: Sequence[Any], word: str = "text") -> list[tuple[str, Any]]:
    return [(f"{word} {i}", label) for i, label in enumerate(labels)]


def splits(folder: Path, header: Sequence[str], **rows: Sequence[Sequence[Any]]) -> Path:
    for name, split in rows.items():
        write(folder / f"{name}.csv", split, header)
    return folder


def test_pairs_of_zeros_and_ones_are_paraphrase(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "a.csv", pairs([0, 1, 1, 1] * 15)))
    assert (task.kind, task.labels, task.score_range) == ("paraphrase", ("0", "1"), None)
    assert set(task.train.targets) == {0.0, 1.0}
    assert task.notes[-1].startswith("read as paraphrase; labels of the train split: ")
    other = load_task(write(tmp_path / "b.csv", pairs(["false", "True", "1.0", "1"] * 15), PAIR_HEADER))
    assert other.train.targets == task.train.targets


def test_pairs_with_words_as_labels_are_entailment(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "a.csv", pairs(["yes", "no", " maybe ", "no"] * 15), PAIR_HEADER))
    assert (task.kind, task.labels) == ("entailment", ("maybe", "no", "yes"))
    names = [task.labels[int(target)] for target in task.test.targets]
    gold = {f"text {i}": ("yes", "no", "maybe", "no")[i % 4] for i in range(60)}
    assert names == [gold[text] for text in task.test.first]


def test_single_texts_are_classified(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "a.csv", texts(["good", "bad"] * 60), ("sentence", "label")))
    assert (task.kind, task.labels, task.test.second) == ("classification", ("bad", "good"), None)
    assert task.test.texts == task.test.first
    assert "120 texts at random" in task.notes[0]
    assert "duplicates are in one split" in task.notes[0]
    unnamed = load_task(write(tmp_path / "b.csv", texts([1, 0] * 60)))
    assert (unnamed.kind, unnamed.labels) == ("classification", ("0", "1"))


@pytest.mark.parametrize("columns", ["body,stars", "1,2"])
def test_two_columns_are_a_text_and_its_label(tmp_path: Path, columns: str) -> None:
    rows = [(i, f"text {i}", i % 3) for i in range(60)]
    task = load_task(write(tmp_path / "a.csv", rows, ("id", "body", "stars")), columns=columns)
    assert (task.kind, task.labels, len(task.train)) == ("classification", ("0", "1", "2"), 48)


def test_the_kind_can_be_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", pairs([0, 1, 1, 1] * 15))
    assert load_task(path, kind="sts").score_range == (0, 1)
    assert load_task(path, kind="entailment").labels == ("0", "1")
    numbers = write(tmp_path / "b.csv", pairs([10, 2, 2, 10] * 15))
    assert load_task(numbers, kind="entailment").labels == ("2", "10")
    single = load_task(path, kind="classification", columns="1,2")
    assert single.train.first == load_task(path).train.second


ENOUGH = ["yes", "no"] * 4


def test_texts_that_test_and_train_share_are_left_out_of_train_and_counted(tmp_path: Path) -> None:
    train = [*pairs(["yes", "no"] * 4, "train"), ("both", "sides", "yes")]
    test = [*pairs(["yes", "no"] * 2, "test"), ("sides", "both", "no"), ("train 0", "new", "no")]
    folder = splits(tmp_path, PAIR_HEADER, train=train, dev=pairs(ENOUGH, "dev"), test=test)
    task = load_task(folder)
    assert (len(task.train), len(task.test)) == (8, 6)
    assert task.warnings == (
        "left out 1 of 9 pairs of the train split that is also in the test split; --keep-overlaps keeps such pairs",
        "1 of 12 texts of the test split are also in the train split, in other pairs, and stay there: scores on new "
        "texts may be lower; to measure those, give splits that share none",
    )
    single = splits(
        tmp_path,
        ("text", "label"),
        train=texts(ENOUGH, "a"),
        dev=texts(ENOUGH, "b"),
        test=[*texts(ENOUGH, "c"), ("a 1", "no")],
    )
    assert load_task(single).warnings == (
        "left out 1 of 8 texts of the train split that is also in the test split; --keep-overlaps keeps such texts",
    )


@pytest.mark.parametrize(
    ("unit", "header", "records"),
    [
        ("pair", PAIR_HEADER, pairs(["yes", "no"] * 40)),
        ("text", ("text", "label"), texts(["yes", "no"] * 40)),
        ("query", ("query", "document"), [(f"Frage {i}", f"Antwort {i}") for i in range(80)]),
    ],
)
def test_a_validation_split_that_is_the_test_split_is_drawn_from_train(
    tmp_path: Path, unit: str, header: tuple[str, ...], records: list[Any]
) -> None:
    cells = 2 if unit == "pair" else 1
    train = [(*(f"train {cell}" for cell in record[:cells]), *record[cells:]) for record in records]
    folder = splits(tmp_path, header, train=train, dev=records[:40], test=records[:40])
    kind = "retrieval" if unit == "query" else None
    task = load_task(folder, kind=kind)
    assert [len(task.split(split)) for split in ("train", "validation", "test")] == [71, 9, 40]
    assert task.warnings[:2] == (
        f"left out 40 of {counted(40, unit)} of the validation split that are also in the test split; --keep-overlaps "
        f"keeps such {plural(unit)}",
        f"too few validation items are left: split {counted(80, unit)} at random with seed 0 into 71 train, "
        "9 validation",
    )
    assert not set(task.train.alike) & set(task.validation.alike)
    kept = load_task(folder, kind=kind, keep_overlaps=True)
    assert [len(kept.split(split)) for split in ("train", "validation", "test")] == [80, 40, 40]
    message = (
        f"40 of {counted(40, unit)} of the validation split are also in the test split and kept: scores are unreliable"
    )
    assert message in kept.warnings
    assert (spoilt_items(kept), spoilt_items(task)) == (40, 0)
    with pytest.raises(TaskError, match=r"^without items of other splits, the train split has 0 .*--keep-overlaps"):
        load_task(folder / "train.csv", test=folder / "train.csv", kind=kind)


def hub_split(columns: dict[str, list[Any]], names: list[str]) -> datasets.Dataset:
    found = datasets.Dataset.from_dict(columns)
    return found.cast_column("label", datasets.ClassLabel(names=names))


def load_from_hub(monkeypatch: pytest.MonkeyPatch, name: str, names: list[str], **columns: list[Any]) -> Task:
    texts = [column for column, cells in columns.items() if cells in (A, B)]
    parts = {
        split: hub_split(columns | {column: [f"{split} {cell}" for cell in columns[column]] for column in texts}, names)
        for split in ("train", "validation", "test")
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: datasets.DatasetDict(parts))
    return load_task(name)


A, B = [f"a {i}" for i in range(8)], [f"b {i}" for i in range(8)]


@pytest.mark.parametrize(
    ("columns", "names", "kind", "labels"),
    [
        ({"sentence1": A, "sentence2": B, "idx": A}, ["not_equivalent", "equivalent"], "paraphrase", ("0", "1")),
        ({"idx": list(range(8)), "sentence": A}, ["negative", "positive"], "classification", ("0", "1")),
        (
            {"id": A, "sentence_A": A, "sentence_B": B, "relatedness_score": [1.0, 2.5, 5.0, 4.0] * 2},
            ["neutral", "contradiction"],
            "sts",
            (),
        ),
    ],
    ids=["mrpc", "sst2", "sick"],
)
def test_data_sets_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]], names: list[str], kind: str, labels: tuple[str, ...]
) -> None:
    task = load_from_hub(monkeypatch, "org/name", names, **columns, label=[0, 1] * 4)
    assert (task.kind, task.labels) == (kind, labels)
    assert not labels or task.test.gold.tolist() == [0.0, 1.0] * 4
    assert labels or task.score_range == (1, 5)


def test_classes_of_the_hub_go_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"premise": A, "hypothesis": B, "label": [0, 1, 2, 1] * 2}
    names = ["entailment", "neutral", "contradiction"]
    task = load_from_hub(monkeypatch, "stanfordnlp/snli", names, **columns)
    assert (task.kind, task.labels) == ("entailment", ("contradiction", "entailment", "neutral"))
    columns["label"] = [0, -1, 2, 1] * 2
    with pytest.raises(
        TaskError, match=r"6 rows cannot be used: .*snli train: 2 with an empty label \(rows 2, 6\); .*snli valid"
    ):
        load_from_hub(monkeypatch, "stanfordnlp/snli", names, **columns)


def test_a_label_that_annotators_did_not_agree_on_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", pairs([*"abcd" * 15, "-"]), PAIR_HEADER)
    with pytest.raises(TaskError, match=r"1 of 61 labels of the train data are missing \(first: .*line 62\)"):
        load_task(path)
    assert load_task(path, skip_empty=True).labels == ("a", "b", "c", "d")


def test_mrpc(shared_data: Path) -> None:
    task = load_task(shared_data / "mrpc")
    assert (task.kind, len(task.train), len(task.validation), len(task.test)) == ("paraphrase", 3576, 500, 1725)
    assert task.train.first[0].startswith('Amrozi accused his brother, whom he called "the witness"')
    assert (sum(task.test.targets), sum(task.train.targets)) == (1147, 2407)


def test_sick_entailment(shared_data: Path) -> None:
    task = load_task(shared_data / "sick", kind="entailment")
    assert task.labels == ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")
    assert [task.test.targets.count(number) for number in range(3)] == [720, 1414, 2793]
    columns = "sentence_A,sentence_B,entailment_judgment"
    by_name = load_task(shared_data / "sick" / "SICK_train.txt", columns=columns)
    assert by_name.digest == task.digest
    assert re.search("2536 NEUTRAL", by_name.notes[-1])
