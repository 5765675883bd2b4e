"""What detects a drop and what looks like the test scores: by hand, and against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from layerprobe.lab.dropbench.scores import (
    Redraws,
    alikeness,
    area_under,
    best_threshold,
    curves,
    detectors,
    joint_scores,
)
from layerprobe.lab.dropbench.strategies import Recorded
from layerprobe.lab.dropbench.truth import truth
from layerprobe.readings.registry import READINGS

from .zoos import DROPPING, RISING, recorded


def records(*models: Any) -> list[Recorded]:
    return [Recorded(entry=each, tuned=each.budgets["converged"]) for each in models]


def test_the_area_is_that_of_the_roc_curve_whatever_models_weigh() -> None:
    rng = np.random.default_rng(0)
    falls, drops = rng.integers(0, 5, size=30).astype(float), rng.random(30) < 0.4
    counts = np.vstack([np.ones(30), rng.integers(0, 3, size=(4, 30))])
    expected = [roc_auc_score(drops, falls, sample_weight=row) for row in counts]
    np.testing.assert_allclose(area_under(falls, drops, counts), expected)
    assert np.isnan(area_under(falls, np.zeros(30, dtype=bool), counts)).all()


def test_the_threshold_has_the_best_f1() -> None:
    falls = np.array([0.1, 0.2, 0.3, 0.4])
    assert best_threshold(falls, np.array([False, False, True, True])) == pytest.approx(0.25)
    assert best_threshold(falls, np.array([True] * 4)) == -np.inf
    assert best_threshold(np.ones(3), np.array([True, False, True])) == -np.inf


@pytest.fixture(scope="module")
def models() -> list[Recorded]:
    """A reading that falls with the scores, and one that falls where they do not."""
    made = []
    for number in range(6):
        quality = (DROPPING, RISING)[number % 2]
        other = (RISING, DROPPING)[number % 2]
        metrics = {"InfoNCE": quality, "effective rank": other}
        made.append(recorded(f"m{number}", "ab"[number // 3], quality, seed=number, metrics=metrics))
    return records(*made)


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return curves({name: READINGS[name] for name in ("InfoNCE", "effective rank")})


def test_a_fall_tells_a_drop(models: list[Recorded], known: dict[str, Any]) -> None:
    truths = [truth(model.tuned) for model in models]
    assert [each.drop for each in truths] == [True, False] * 3
    scored = {each.name: each for each in detectors(models, truths, known, Redraws(counts=np.ones((3, 6)), level=0.9))}
    assert set(scored) == {"scan, falling", "scan, equal", "sweep, 1 seed", "InfoNCE", "effective rank"}
    for name in ("scan, falling", "sweep, 1 seed", "InfoNCE"):
        area, precision, recall = scored[name].area, scored[name].precision, scored[name].recall
        assert area is not None
        assert precision is not None
        assert recall is not None
        assert (area.value, precision.value, recall.value) == (1, 1, 1)
        effect = scored[name].effect
        assert effect is not None
        assert effect > 0.5
    wrong = scored["effective rank"].area
    assert wrong is not None
    assert wrong.value == 0
    assert (scored["InfoNCE"].models, scored["InfoNCE"].drops) == (6, 3)


def test_one_family_has_no_threshold_of_others(models: list[Recorded], known: dict[str, Any]) -> None:
    alone = models[:3]
    truths = [truth(model.tuned) for model in alone]
    for each in detectors(alone, truths, known, Redraws(counts=np.ones((1, 3)), level=0.9)):
        assert (each.precision, each.recall) == (None, None)


def test_curves_are_held_against_the_mean_test_scores(models: list[Recorded], known: dict[str, Any]) -> None:
    scored = {each.name: each for each in alikeness(models, known, Redraws(counts=np.ones((1, 6)), level=0.9))}
    expected = []
    for model in models:
        test = np.array(model.tuned.test).mean(axis=1)
        expected.append(stats.spearmanr(model.entry.metrics["effective rank"].values, test).statistic)
    assert scored["effective rank"].mean.value == pytest.approx(np.mean(expected))
    assert scored["effective rank"].median.value == pytest.approx(np.median(expected))
    one = [
        stats.spearmanr(np.array(m.tuned.validation)[:, 0], np.array(m.tuned.test)[:, 1:].mean(axis=1)).statistic
        for m in models
    ]
    assert scored["sweep, 1 seed"].mean.value == pytest.approx(np.mean(one))


def test_scans_are_held_against_tmft(models: list[Recorded]) -> None:
    scored = {each.name: each for each in joint_scores(models, Redraws(counts=np.ones((1, 6)), level=0.9))}
    assert set(scored) == {"falling", "equal"}
    last = []
    for model in models:
        scans = [run.test[-1] for run in model.tuned.scans if run.weighting == "falling"]
        last.append(np.mean(np.array(scans, dtype=float)) - np.mean(model.tuned.test[-1]))
    assert scored["falling"].at_last.value == pytest.approx(np.mean(last))
    assert scored["falling"].models == 6
