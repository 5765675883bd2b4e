"""What a loss is at most is passed in about 5 %: of pairs drawn anew from a population whose loss is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layerprobe.shrinking.points_lost import Compared
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.values import Examples, Task

POPULATION, DRAWS = 50_000, 600


def scored(kind: str, outputs: np.ndarray, gold: np.ndarray) -> Any:
    return evaluate_outputs(kind, outputs, gold), item_influences(kind, outputs, gold)


def population(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gold, and what the whole and a worse model output, with errors in common, ties and a heavy tail."""
    gold = np.round(rng.uniform(0, 5, POPULATION)) / 5
    common, own = rng.standard_t(3, POPULATION), rng.standard_t(3, POPULATION)
    whole, small = gold + 0.2 * common, gold + 0.2 * common + 0.08 * own
    if kind == "triplets":
        return np.ones(POPULATION), whole - 0.3, small - 0.3
    return gold, whole, small


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n"), [("sts", 300), ("triplets", 300), ("sts", 60)])
def test_the_upper_end_is_exceeded_in_at_most_a_twentieth(kind: str, n: int) -> None:
    rng = np.random.default_rng(0)
    gold, whole, small = population(rng, kind)
    truth = [evaluate_outputs(kind, each, gold) for each in (whole, small)]
    primary = next(iter(truth[0].metrics))
    loss = truth[0].metrics[primary] - truth[1].metrics[primary]
    texts = tuple(map(str, range(2 * n)))
    pairs = Examples(first=texts[:n], second=texts[n:], targets=tuple(np.linspace(0, 1, n)))
    task = Task(name="drawn", kind="sts", train=pairs, validation=pairs, test=pairs, keep_overlaps=True)
    compared = Compared(whole=None, task=task, tuning=None, margin=loss)  # type: ignore[arg-type]
    if kind == "triplets":
        from types import SimpleNamespace

        compared.task = SimpleNamespace(kind=kind, primary=primary, split=lambda _: pairs)  # type: ignore[assignment]
    false = 0
    for _ in range(DRAWS):
        rows = rng.integers(0, POPULATION, n)
        found = compared._loss([scored(kind, whole[rows], gold[rows])], [scored(kind, small[rows], gold[rows])], "test")
        assert found.error is not None
        false += found.verdict == "within"
    # the margin is the true loss: that is the hardest; 5 % and two standard errors of so many draws
    assert 0.01 <= false / DRAWS <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / DRAWS), false / DRAWS
