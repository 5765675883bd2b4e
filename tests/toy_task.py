"""Sentence pairs that a tiny model learns in seconds: words are letters, the gold score is the share in common."""

from __future__ import annotations

import random

from layerprobe.results import Examples, Task

LETTERS = "abcdefghijklmnop"
N_WORDS = 4


def toy_pairs(n: int, seed: int) -> Examples:
    """`n` pairs of sentences of four letters."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        first = rng.sample(LETTERS, N_WORDS)
        n_common = rng.randint(0, N_WORDS)
        second = first[:n_common] + rng.sample([a for a in LETTERS if a not in first], N_WORDS - n_common)
        rng.shuffle(second)
        rows.append((" ".join(first), " ".join(second), n_common / N_WORDS))
    first_ones, second_ones, scores = zip(*rows, strict=True)
    return Examples(first=first_ones, second=second_ones, targets=scores)


def toy_task(*, train: int = 64, validation: int = 32, test: int = 32) -> Task:
    """A task with as many pairs."""
    return Task(
        name="toy",
        kind="sts",
        train=toy_pairs(train, 1),
        validation=toy_pairs(validation, 2),
        test=toy_pairs(test, 3),
        score_range=(0.0, 1.0),
    )
