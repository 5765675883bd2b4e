"""The weighted sum of layers is that of scikit-learn's standard features, and its weights go where the signal is."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layerprobe.comparison.arrays import as_layers
from layerprobe.probing import run
from layerprobe.probing.linear import scaled
from layerprobe.probing.probes import Problem
from layerprobe.probing.run import summed_layer, summed_outputs
from layerprobe.probing.targets import as_targets
from layerprobe.probing.values import ProbeSettings
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
    fitted, mean_weights = summed_outputs(problem, LAYERS)
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
