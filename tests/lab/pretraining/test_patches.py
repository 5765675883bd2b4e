"""Images as texts of patch codes."""

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks import image_patches as patches
from benchmarks.image_patches import cluttered, write_patches
from layerprobe.lab.pretraining.models import train_tokenizer

SMALL = {"train": 60, "validation": 20, "test": 40}


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
