"""Ridge regression from sums and products is scikit-learn's, fitted fold by fold."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layerprobe.comparison.arrays import as_layers
from layerprobe.probing import linear
from layerprobe.probing.linear import Array, ridge_outputs
from layerprobe.scoring.probes import PENALTIES
from tests.probing.data import layered, scores_of


def explicit(rows: Array, targets: Array, folds: np.ndarray, n_folds: int) -> Array:
    """Fit every penalty on all but two folds, choose by their sum of errors, and fit all but one."""
    outputs = np.empty_like(targets)
    for fold in range(n_folds):
        errors = dict.fromkeys(PENALTIES, 0.0)
        for inner in set(range(n_folds)) - {fold}:
            train, held_out = (folds != fold) & (folds != inner), folds == inner
            for penalty in PENALTIES:
                model = make_pipeline(StandardScaler(), Ridge(alpha=penalty)).fit(rows[train], targets[train])
                predicted = model.predict(rows[held_out]).reshape(-1, targets.shape[1])
                errors[penalty] += float(np.square(predicted - targets[held_out]).sum())
        best = min(errors, key=errors.__getitem__)
        model = make_pipeline(StandardScaler(), Ridge(alpha=best)).fit(rows[folds != fold], targets[folds != fold])
        outputs[folds == fold] = model.predict(rows[folds == fold]).reshape(-1, targets.shape[1])
    return outputs


def folds_of(n: int, seed: int, n_folds: int = 5) -> np.ndarray:
    folds = np.empty(n, dtype=np.intp)
    for fold, (_, inside) in enumerate(KFold(n_folds, shuffle=True, random_state=seed).split(folds)):
        folds[inside] = fold
    return folds


@pytest.mark.parametrize(("n", "width", "m"), [(120, 10, 1), (60, 80, 2)])
def test_outputs_are_those_of_an_explicit_cross_fit(n: int, width: int, m: int) -> None:
    embeddings, signal = layered(n, width=width)
    rows = 100 + 3 * embeddings[:, 2]
    targets = signal[:, :m] + 0.3 * signal[:, 2 : 2 + m] + 7
    foldings = np.stack([folds_of(n, 0), folds_of(n, 1)])
    outputs, *_ = ridge_outputs(as_layers([rows])[0], targets, foldings, 5, range(5))
    for folding, folds in enumerate(foldings):
        np.testing.assert_allclose(outputs[folding], explicit(rows, targets, folds, 5), rtol=1e-6, atol=1e-6)


def test_a_feature_that_is_the_same_everywhere_says_nothing() -> None:
    embeddings, signal = layered(80)
    rows = np.concatenate([embeddings[:, 2], np.full((80, 1), 1e4)], axis=1)
    folds = folds_of(80, 0)[None]
    with_it, *_ = ridge_outputs(as_layers([rows])[0], signal[:, :1], folds, 5, range(5))
    without, *_ = ridge_outputs(as_layers([rows[:, :-1]])[0], signal[:, :1], folds, 5, range(5))
    np.testing.assert_allclose(with_it, without, rtol=1e-9, atol=1e-9)


def test_blocks_and_float32_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, signal = layered(200)
    layer, folds = as_layers([embeddings[:, 3].astype(np.float32)])[0], folds_of(200, 0)[None]
    whole, *_ = ridge_outputs(layer, signal, folds, 5, range(5))
    monkeypatch.setattr("layerprobe.comparison.arrays.NUMBERS", 24 * 7)
    in_blocks, *_ = ridge_outputs(layer, signal, folds, 5, range(5))
    np.testing.assert_allclose(in_blocks, whole, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(linear, "FLOAT32_FROM", 1)
    in_float32, *_ = ridge_outputs(layer, signal, folds, 5, range(5))
    assert 0 < np.abs(in_float32 - whole).max() < 1e-4


def test_a_group_is_predicted_by_others_alone() -> None:
    """Rows of a group are copies of each other with targets of their own: what is left in is remembered."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 4)
    rows, targets = rng.standard_normal((30, 200))[groups], rng.standard_normal((30, 1))[groups]
    layer = as_layers([rows])[0]
    split = np.empty(120, dtype=np.intp)
    for fold, (_, inside) in enumerate(GroupKFold(5, shuffle=True, random_state=0).split(rows, groups=groups)):
        split[inside] = fold
    apart, *_ = ridge_outputs(layer, targets, split[None], 5, range(5))
    mixed, *_ = ridge_outputs(layer, targets, folds_of(120, 0)[None], 5, range(5))
    assert np.corrcoef(apart[0, :, 0], targets[:, 0])[0, 1] < 0.3
    assert np.corrcoef(mixed[0, :, 0], targets[:, 0])[0, 1] > 0.9


def test_a_training_row_sways_the_correlation_as_if_it_were_weighted() -> None:
    """The influence through the fits is the slope of the correlation by the weight that a row has in training alone."""
    embeddings, signal = layered(150, width=6)
    rows, targets = embeddings[:, 3], scores_of(signal)
    folds = folds_of(150, 0)
    _, swayed, (penalties,) = ridge_outputs(as_layers([rows])[0], targets[:, None], folds[None], 5, range(5))

    def correlation(weights: np.ndarray) -> float:
        outputs = np.empty(150)
        for fold in range(5):
            train = folds != fold
            centre, spread = rows[train].mean(axis=0), rows[train].std(axis=0)
            scaled = (rows - centre) / spread
            model = Ridge(alpha=penalties[fold]).fit(scaled[train], targets[train], sample_weight=weights[train])
            outputs[~train] = model.predict(scaled[~train])
        return float(np.corrcoef(outputs, targets)[0, 1])

    step = 1e-4
    for row in (3, 40, 77, 149):
        more, less = np.ones(150), np.ones(150)
        more[row], less[row] = 1 + step, 1 - step
        slope = 150 * (correlation(more) - correlation(less)) / (2 * step)
        assert swayed[0, row] == pytest.approx(slope, rel=1e-3, abs=1e-4)
