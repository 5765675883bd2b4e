"""Files of every kind of task with something wrong in them: one line and exit code 1, or a warning with the count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .conftest import QUICK, Layerprobe

LABELS: dict[str, tuple[str, ...]] = {
    "sts": ("0", "1", "2.5", "5"),
    "paraphrase": ("0", "1"),
    "entailment": ("no", "some", "yes"),
    "classification": ("good", "bad"),
}
HEADERS: dict[str, str] = {
    **dict.fromkeys(LABELS, "sentence1,sentence2,label"),
    "sts": "sentence1,sentence2,score",
    "classification": "text,label",
}
Splits = dict[str, list[list[str]]]


def rows(kind: str, n: int, seed: int) -> list[list[str]]:
    rng, labels = random.Random(seed), LABELS[kind]
    n_texts = 1 if kind == "classification" else 2
    return [
        [*(" ".join(rng.sample("abcdefghijklmnop", 6)) for _ in range(n_texts)), labels[i % len(labels)]]
        for i in range(n)
    ]


def splits_of(kind: str) -> Splits:
    return {name: rows(kind, n, n) for name, n in (("train", 24), ("dev", 12), ("test", 13))}


def write(kind: str, splits: Splits, folder: Path) -> Path:
    for name, split in splits.items():
        lines = [HEADERS[kind], *(",".join(row) for row in split)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def missing(splits: Splits) -> None:
    splits["test"][3][-1] = ""


def unknown(splits: Splits) -> None:
    splits["test"][3][-1] = "neither"


def one_class(split: str) -> object:
    def change(splits: Splits) -> None:
        for row in splits[split]:
            row[-1] = splits[split][0][-1]

    return change


def empty(splits: Splits) -> None:
    splits["test"] = []


NO_NUMBER = "test.csv, line 5: expected a number as the score, got"
IS_MISSING = "test.csv: 1 in label (line 5): fill or leave out"
NOT_IN_TRAIN = "1 label of the test split is not in the train split: 'neither'"


@pytest.mark.parametrize("given", [True, False], ids=["kind given", "kind found"])
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (missing, "sts", "test.csv: 1 in score (line 5): fill or leave out"),
        (missing, "paraphrase", IS_MISSING),
        (missing, "entailment", IS_MISSING),
        (missing, "classification", IS_MISSING),
        (unknown, "sts", NO_NUMBER),
        (
            unknown,
            "paraphrase",
            "line 5: expected 0 or 1 as the label of a paraphrase, got 'neither': mend it, or choose",
        ),
        (unknown, "entailment", NOT_IN_TRAIN),
        (unknown, "classification", NOT_IN_TRAIN),
        (one_class("dev"), "sts", "all 12 scores of the validation split are 0"),
        (one_class("dev"), "paraphrase", "all 12 labels of the validation split are '0'"),
        (one_class("train"), "entailment", "all 24 labels of the train split are 'no'"),
        (one_class("test"), "classification", "all 13 labels of the test split are 'good'"),
        (empty, "sts", "the test split has 0 pairs, expected at least 4"),
        (empty, "paraphrase", "the test split has 0 pairs, expected at least 4"),
        (empty, "entailment", "the test split has 0 pairs, expected at least 4"),
        (empty, "classification", "the test split has 0 texts, expected at least 4"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(
    layerprobe: Layerprobe,
    pair: tuple[Path, Path],
    tmp_path: Path,
    change: object,
    kind: str,
    words: str,
    given: bool,
) -> None:
    splits = splits_of(kind)
    change(splits)  # type: ignore[operator]
    source = ("-t", write(kind, splits, tmp_path), *(("--kind", kind) if given else ()))
    done = layerprobe("finetune", pair[0], *source, *QUICK, "--layers", "1")
    assert done.code == 1
    assert words in done.error


@pytest.mark.parametrize("odd", ["2", "0.5"])
def test_a_number_among_the_labels_of_another_split_does_not_change_the_kind(
    layerprobe: Layerprobe, pair: tuple[Path, Path], tmp_path: Path, odd: str
) -> None:
    splits = splits_of("paraphrase")
    splits["test"][0][-1] = odd
    done = layerprobe("finetune", pair[0], "-t", write("paraphrase", splits, tmp_path), *QUICK, "--layers", "1")
    assert done.code == 1
    assert f"line 2: expected 0 or 1 as the label of a paraphrase, got '{odd}'" in done.error


@pytest.mark.parametrize("kind", LABELS)
def test_what_train_and_test_share_is_counted(
    layerprobe: Layerprobe, pair: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    splits = splits_of(kind)
    splits["test"] += [row.copy() for row in splits["train"][:3]]
    if kind != "classification":
        splits["test"][-1][:2] = reversed(splits["test"][-1][:2])
    done = layerprobe("extract", pair[0], "-t", write(kind, splits, tmp_path))
    assert done.code == 0
    unit = "text" if kind == "classification" else "pair"
    assert f"warning: left out 3 of {len(splits['train'])} {unit}s of the train split that are in the " in done.err
    kept = layerprobe("extract", pair[0], "-t", write(kind, splits, tmp_path), "--keep-overlaps")
    assert f"3 of {len(splits['train'])} {unit}s of the train split are in the test split too and kept" in kept.err


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(("layers", "given"), [("1,4", "4"), ("0-9", "9")])
def test_a_layer_that_is_not_there(
    layerprobe: Layerprobe, pair: tuple[Path, Path], tmp_path: Path, kind: str, layers: str, given: str
) -> None:
    done = layerprobe("finetune", pair[0], "-t", write(kind, splits_of(kind), tmp_path), "--layers", layers)
    assert done.code == 1
    assert f"expected layers from 0 to 3 of {pair[0]}, got {given}" in done.error
