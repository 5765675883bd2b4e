"""Scores over seeds, and which seed is the best."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.stats.values import seed_scores


def outcome(validation: tuple[float, ...], test: tuple[float, ...]) -> LayerOutcome:
    return LayerOutcome(
        layer=2,
        parameters=10,
        seeds=(3, 5, 8),
        primary="spearman",
        test={"spearman": test},
        validation={"spearman": validation},
    )


def test_the_best_seed_is_chosen_on_validation_and_not_on_test() -> None:
    result = outcome(validation=(80.0, 84.0, 82.0), test=(77.0, 71.0, 79.0))
    assert (result.best_seed, result.best_seed_score) == (5, 71.0)
    assert result.mean == pytest.approx(np.mean([77, 71, 79]))


def test_of_equal_seeds_the_first_is_the_best() -> None:
    assert outcome(validation=(80.0, 84.0, 84.0), test=(1.0, 2.0, 3.0)).best_seed == 5


def test_mean_deviation_and_interval_are_those_of_scipy() -> None:
    values = [77.0, 71.5, 79.25, 78.0]
    scores = seed_scores(values, 0.9, metric="spearman")
    interval = stats.t.interval(0.9, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (scores.mean, scores.std) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert scores.interval == pytest.approx(interval)


def test_one_seed_has_neither_deviation_nor_interval() -> None:
    assert dataclasses.astuple(seed_scores([70.0], metric="spearman")) == ((70.0,), 70.0, None, None)
