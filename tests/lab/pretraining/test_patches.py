"""Images as texts of patch codes."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import image_patches as patches
from benchmarks.image_patches import PatchCodes, cluttered, fitted_codes, patches_of, write_patches
from layerprobe.lab.pretraining.models import train_tokenizer

SMALL = {"train": 60, "validation": 20, "test": 40}


def codes_of(n: int = 5, side: int = 2) -> PatchCodes:
    return PatchCodes(centres=np.random.default_rng(0).normal(size=(n, side * side)))


def test_patches_are_read_row_by_row() -> None:
    images = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    found = patches_of(images, 2)
    expected = [
        [images[n, y : y + 2, x : x + 2].ravel() for y in range(0, 4, 2) for x in range(0, 6, 2)] for n in range(2)
    ]
    np.testing.assert_array_equal(found, expected)


def test_the_code_of_a_patch_is_its_nearest_centre() -> None:
    codes, images = codes_of(), np.random.default_rng(1).normal(size=(3, 4, 6))
    distances = ((patches_of(images, 2)[:, :, None] - codes.centres) ** 2).sum(axis=3)
    letters = [[ord(letter) - patches.FIRST_LETTER for letter in text] for text in codes.texts(images)]
    np.testing.assert_array_equal(letters, distances.argmin(axis=2))


def test_codes_find_the_patches_that_there_are() -> None:
    codes = codes_of(4)
    texts = codes.texts(np.random.default_rng(1).normal(size=(30, 4, 4)))
    found = fitted_codes(codes.images(texts, width=2), n_codes=4, side=2, seed=0)
    for ours, true in zip(found.centres[:, 0].argsort(), codes.centres[:, 0].argsort(), strict=True):
        np.testing.assert_allclose(found.centres[ours], codes.centres[true])


def test_a_digit_lies_somewhere_among_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = np.random.default_rng(0).uniform(1, 2, size=(6, 4, 4))
    rows = np.array([5, 0, 5])
    monkeypatch.setattr(patches, "FRAGMENTS", 0)
    alone = cluttered(digits, rows, rng=np.random.default_rng(1))
    for image, row in zip(alone, rows, strict=True):
        (top, *_), (left, *_) = np.nonzero(image)
        np.testing.assert_array_equal(image[top : top + 4, left : left + 4], digits[row])
        assert image.sum() == pytest.approx(digits[row].sum())
    monkeypatch.setattr(patches, "FRAGMENTS", 1)
    more = cluttered(digits, rows[:1], rng=np.random.default_rng(1))  # the first digit lies in the same place
    assert (more >= alone[0]).all()
    assert 0 < (more > alone[0]).sum() <= 4


def test_no_digit_is_in_two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(digits: Any, chosen: Any, *, rng: Any) -> Any:
        seen.append({digit.tobytes() for digit in digits})
        return cluttered(digits, chosen, rng=rng)

    monkeypatch.setattr(patches, "cluttered", watched)
    codes = write_patches(tmp_path, corpus_size=2000, task_sizes=SMALL)
    corpus, train, validation, test = seen
    assert corpus == train
    assert not train & validation
    assert not (train | validation) & test
    assert sum(map(len, (train, validation, test))) == 1797
    assert codes.centres.shape == (128, 4)
    for split, n in SMALL.items():
        with (tmp_path / "digits" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == n
        assert {len(row["text"]) for row in rows} == {25}
        assert {row["label"] for row in rows} <= set("0123456789")
    texts = (tmp_path / "patches.txt").read_text(encoding="utf-8").split()
    assert len(texts) == 2000
    tokenizer = train_tokenizer(texts, vocab_size=8000, max_length=64)
    assert len(tokenizer) <= 5 + 128
    assert {len(ids) for ids in tokenizer(texts[:50])["input_ids"]} == {27}
