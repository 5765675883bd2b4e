"""What items add to a score, by probes that are fitted again without them, is what scikit-learn gives."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layerprobe.comparison.arrays import as_layers
from layerprobe.metrics.scores import class_scores, spearman
from layerprobe.probing import probes
from layerprobe.probing.linear import refitted
from layerprobe.probing.probes import Problem, jackknife
from layerprobe.probing.targets import as_targets
from layerprobe.probing.values import ProbeSettings
from layerprobe.stats.crossed import Links
from tests.probing.data import layered, scores_of

N = 30
EMBEDDINGS, SIGNAL = layered(N, width=6, strengths=(1.0,))
(LAYER,) = as_layers(EMBEDDINGS)
SCORES = scores_of(SIGNAL)


def problem_of(targets: np.ndarray, groups: np.ndarray | None = None) -> Problem:
    return as_targets(targets, N).folded(groups, ProbeSettings(foldings=1, folds=3))


@pytest.mark.parametrize(("width", "together"), [(4, 2**19), (40, 2**19), (4, 1)])
def test_ridge_is_fitted_again_as_scikit_learn_does(width: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.probing.linear.REFITTED", together)
    embeddings, signal = layered(25, width=width, strengths=(1.0,))
    rows, targets = 5 + 2 * embeddings[:, 0], signal[:, 0]
    expected = make_pipeline(StandardScaler(), Ridge(alpha=3.0)).fit(rows[:20], targets[:20]).predict(rows[20:])
    included = np.ones((2, 20), dtype=bool)
    included[1, 3] = False
    outputs = refitted(rows[:20], included, targets[:20], rows[20:], 3.0)
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-9)
    less = np.flatnonzero(included[1])
    expected = make_pipeline(StandardScaler(), Ridge(alpha=3.0)).fit(rows[less], targets[less]).predict(rows[20:])
    np.testing.assert_allclose(outputs[1], expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 3])
def test_influences_are_those_of_explicit_fits_without_items_or_groups(size: int) -> None:
    groups = None if size == 1 else np.arange(N) // size
    problem = problem_of(SCORES, groups)
    fitted = problem.outputs(LAYER)
    units, folds, rows = np.arange(N) // size, problem.foldings[0], EMBEDDINGS[:, 0]
    changes = []
    for unit in range(N // size):
        outputs, left = np.empty(N), units != unit
        for fold in range(3):
            train = left & (folds != fold)
            model = make_pipeline(StandardScaler(), Ridge(alpha=fitted.penalties[0, fold, 0]))
            outputs[folds == fold] = model.fit(rows[train], SCORES[train]).predict(rows[folds == fold])
        changes.append(100 * (spearman(fitted.outputs[0], SCORES) - spearman(outputs[left], SCORES[left])))
    expected = (N // size - 1) * (np.array(changes) - np.mean(changes))
    found = jackknife(problem, LAYER, fitted, "spearman")
    assert found is not None
    np.testing.assert_allclose(found, np.repeat(expected, size), rtol=1e-6, atol=1e-8)


def test_logistic_regression_is_fitted_again_with_the_penalty_that_was_chosen() -> None:
    problem = problem_of(np.where(SCORES > 0, "high", "low"))
    fitted, rows, fold = problem.outputs(LAYER), EMBEDDINGS[:, 0], problem.foldings[0]
    included = np.ones((1, N), dtype=bool)
    included[0, np.flatnonzero(fold == 1)[0]] = False
    (again,) = problem.refitted(rows, included, fitted)
    train, inside = included[0] & (fold != 0), fold == 0
    scaler = StandardScaler().fit(rows[train])
    model = LogisticRegression(C=fitted.penalties[0, 0, 0], max_iter=1000)
    model.fit(scaler.transform(rows[train]), SCORES[train] < 0)
    np.testing.assert_allclose(again[inside], model.predict_proba(scaler.transform(rows[inside])), atol=1e-4)
    np.testing.assert_array_equal(again[fold == 1], fitted.outputs[0][fold == 1])


@pytest.mark.parametrize("metric", ["accuracy", "macro f1"])
def test_classes_have_what_training_adds_beside_what_is_scored(metric: str) -> None:
    """Smoothed: the share of right classes jumps with every fit, which as it is would be five times the error."""
    problem = problem_of(np.where(SCORES > 0, "high", "low"))
    fitted = problem.outputs(LAYER)
    found = jackknife(problem, LAYER, fitted, metric)
    assert found is not None
    assert found.mean() == pytest.approx(0, abs=1e-9)
    alone = problem.influences(fitted.outputs[0], metric)
    assert alone.std() < found.std() < 2 * alone.std()


def test_shares_of_classes_become_the_classes_themselves() -> None:
    rng = np.random.default_rng(0)
    probabilities, classes = rng.dirichlet(np.ones(3), size=50), rng.integers(0, 3, 50)
    scores = class_scores(probabilities, classes.astype(float))
    for metric, score in scores.items():
        assert probes._smoothed(probabilities, classes, metric, 1e-6) == pytest.approx(100 * score)


def test_many_items_are_left_out_in_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(SCORES)
    fitted = problem.outputs(LAYER)
    monkeypatch.setattr(probes, "SETS", 10)
    found = jackknife(problem, LAYER, fitted, "spearman")
    assert found is not None
    assert len(set(found.round(9))) == 10


def test_nothing_is_fitted_again_where_it_says_nothing_or_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(SCORES)
    fitted = problem.outputs(LAYER)
    two = Links(sides=(np.arange(N), np.arange(N) // 2))
    assert jackknife(replace(problem, links=two), LAYER, fitted, "spearman") is None
    assert jackknife(replace(problem, kind="pairs"), LAYER, fitted, "spearman") is None
    monkeypatch.setattr(probes, "REFITTED_NUMBERS", 10)
    assert jackknife(problem, LAYER, fitted, "spearman") is None
