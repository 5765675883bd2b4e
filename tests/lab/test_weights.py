"""Weights against an exhaustive search."""

import itertools

import numpy as np
import pytest

from layerprobe.lab.averages import PARTS, greedy_selection, line_search


def test_of_equals_one_alone_is_taken_and_of_averages_the_most_even() -> None:
    assert line_search(lambda weights: weights[0]).tolist() == [1.0, 0.0]
    assert line_search(lambda weights: weights[1]).tolist() == [0.0, 1.0]
    assert line_search(lambda weights: 0.0).tolist() == [1.0, 0.0]
    assert line_search(lambda weights: float(weights[0] < 1)).tolist() == [0.0, 1.0]
    assert line_search(lambda weights: float(0 < weights[0] < 1)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_selection_scores_as_an_exhaustive_search_of_a_concave_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, gold = rng.normal(size=(3, 40)), rng.normal(size=40)
    outputs += gold

    def score(weights: np.ndarray) -> float:
        return -float(np.mean((weights @ outputs - gold) ** 2))

    found = greedy_selection(score, 3)
    everywhere = [
        np.array([a, b, PARTS - a - b]) / PARTS
        for a, b in itertools.product(range(PARTS + 1), repeat=2)
        if a + b <= PARTS
    ]
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    best = max(map(score, everywhere))
    assert max(map(score, np.eye(3))) <= score(found)
    assert score(found) == pytest.approx(best, rel=0.01)
