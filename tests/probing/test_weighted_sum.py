"""The weighted sum of layers is that of scikit-learn's standard features, and its weights go where the signal is."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import layerprobe as lp
from layerprobe.comparison.arrays import as_layers
from layerprobe.errors import DataError
from layerprobe.probing import run
from layerprobe.probing.linear import scaled
from layerprobe.probing.probes import Problem
from layerprobe.probing.run import summed_layer, summed_outputs
from layerprobe.probing.targets import as_targets
from layerprobe.probing.values import ProbeSettings
from layerprobe.results.shown import read_result
from tests.probing.data import layered, scores_of

N = 150
EMBEDDINGS, SIGNAL = layered(N, width=6, strengths=(0.0, 1.0, 0.0))
SCORES = scores_of(SIGNAL)
LAYERS = [scaled(layer, shifted=True)[0] for layer in as_layers(3 + 5 * EMBEDDINGS)]


def problem_of(targets: np.ndarray) -> Problem:
    return as_targets(targets, N).folded(None, ProbeSettings(foldings=1, folds=3))


def summed_explicitly(weights: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return (n, d) the sum of layers that are standardised on the training rows."""
    parts = [StandardScaler().fit(rows[train]).transform(rows) for rows in EMBEDDINGS.swapaxes(0, 1)]
    return np.tensordot(weights, np.stack(parts), 1)


def test_the_sum_is_one_of_standard_features() -> None:
    train = np.arange(100)
    summed, weights, *_ = summed_layer(problem_of(SCORES), LAYERS, train, seed=[0, 0])
    assert weights.sum() == pytest.approx(1)
    assert weights.argmax() == 1
    np.testing.assert_allclose(summed.rows(slice(0, N)), summed_explicitly(weights, train), atol=1e-9)


def test_each_fold_is_predicted_by_the_sum_that_was_learned_without_it() -> None:
    problem = problem_of(SCORES)
    fitted, mean_weights = summed_outputs(problem, lambda rows, seed: summed_layer(problem, LAYERS, rows, seed=seed))
    assert mean_weights.argmax() == 1
    for fold in range(3):
        train = problem.foldings[0] != fold
        weights = summed_layer(problem, LAYERS, np.flatnonzero(train), seed=[0, fold])[1]
        rows = summed_explicitly(weights, train)
        model = make_pipeline(StandardScaler(), Ridge(alpha=fitted.penalties[0, fold, 0]))
        expected = model.fit(rows[train], problem.targets[train]).predict(rows[~train])
        np.testing.assert_allclose(fitted.outputs[0, ~train], expected, atol=1e-9)


def test_weights_stay_where_nothing_is_left_to_explain() -> None:
    logits = np.array([0.5, -0.5])
    np.testing.assert_array_equal(run._fitted_logits(np.zeros((4, 2)), np.zeros(4), logits), logits)


@pytest.mark.parametrize("kind", ["scores", "classes"])
def test_the_mean_is_one_of_layers_as_they_are(kind: str) -> None:
    """Weights are those of the sum over a layer's deviation, and the probe is scikit-learn's of the mean."""
    targets = SCORES if kind == "scores" else np.where(SCORES > 0, "high", "low")
    embeddings = EMBEDDINGS * np.array([1.0, 100.0, 0.01])[:, None] + 3
    result = lp.probe(embeddings, targets, cv=3, foldings=1, weighted_mean=True)
    weights = np.array(list(result.layer_weights.values()))
    summed = lp.probe(embeddings, targets, cv=3, foldings=1)
    learned = np.array([layer.weight for layer in summed.layers])
    expected = np.where(learned < run.LEAST_WEIGHT, 0, learned) / embeddings.std(axis=0).mean(axis=1)
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6)
    rows, probe = np.tensordot(embeddings, weights, (1, 0)), result.estimator("weighted mean")
    model = make_pipeline(StandardScaler(), clone(probe[-1])).fit(rows, targets)
    outputs, expected = (
        fit.predict(rows) if kind == "scores" else fit.decision_function(rows) for fit in (probe, model)
    )
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-2)
    assert result.summed is not None
    assert result.summed.name == "weighted mean"
    assert result.to_pandas()["weight"].dropna().sum() == pytest.approx(1)
    assert read_result(result.to_json()) == result
    with pytest.raises(DataError, match="no weighted mean of layers: probe with weighted_mean=True"):
        _ = summed.layer_weights


def test_small_weights_of_a_mean_are_none() -> None:
    scales = [scaled(layer, shifted=True)[1] for layer in as_layers(EMBEDDINGS)]
    spreads = np.ones((3, 6))
    learned = LAYERS[0], np.array([0.005, 0.495, 0.5]), np.zeros((3, 6)), spreads
    layer, weights, _ = run.mean_layer(problem_of(SCORES), as_layers(EMBEDDINGS), scales, learned)
    assert weights[0] == 0
    assert weights.sum() == pytest.approx(1)
    assert layer.shape == (N, 6)
    scored = list(zip(LAYERS, scales, as_layers(EMBEDDINGS), strict=True))
    with pytest.raises(DataError, match="regression on pairs of texts reads products"):
        run._summed(replace(problem_of(SCORES), pairs="ridge"), scored, anyway=False, mean=True)
