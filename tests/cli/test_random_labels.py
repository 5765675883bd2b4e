"""Labels drawn at random: no layer can be better than another, and `find` calls none worse."""

import csv
import random
from pathlib import Path

import pytest

from layerprobe.embedded import Language, embedded_model
from tests.cli.conftest import Layerprobe

SEARCHES, ALLOWED = 16, 2
"""With 5 % of false claims, more than two of sixteen come in 4 % of tries."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_run_at_a_time")
def test_random_labels_give_no_worse_layers(layerprobe: Layerprobe, tmp_path: Path) -> None:
    language, false = Language(seed=0), []
    for seed in range(SEARCHES):
        rng = random.Random(seed)
        for split, n in (("train", 100), ("validation", 60), ("test", 60)):
            rows = [(a, b, rng.randint(0, 50) / 10) for a, b, _ in language.pairs(n, seed=100 * seed + n + len(split))]
            with (tmp_path / f"{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
        found = layerprobe(
            *("find", embedded_model("rtd"), "--task", tmp_path, "--epochs", "2", "--learning-rate", "3e-4", "--json")
        )
        assert found.code == 0, found.err
        false.append(found.json["answer"]["worse"])
    assert sum(bool(layers) for layers in false) <= ALLOWED, false
