"""Estimates of transferability against second formulas, what they do not depend on, and what they refuse."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import Ridge

from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.scoring.transferability import (
    NEIGHBOURS,
    SCALE,
    class_columns,
    contrastive_loss,
    h_score,
    linear_mse,
    log_evidence,
    neighbour_predictions,
)

Array = NDArray[np.float64]
SHAPES = [(30, 4), (40, 39), (12, 12), (12, 40)]
"""Fewer features than items, as many, and more."""
seeds = st.integers(0, 2**32 - 1)


def data(n: int, d: int, *, seed: int = 0, noise: float = 1.0) -> tuple[Array, Array]:
    """Features of different sizes that do not lie around 0, and scores that partly follow from them."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d)) * rng.gamma(1.0, size=d) + rng.normal(size=d)
    return features, features @ rng.normal(size=d) / math.sqrt(d) + noise * rng.normal(size=n)


def three_classes(scores: Array) -> Array:
    return np.searchsorted(np.quantile(scores, [0.3, 0.8]), scores).astype(float)


def rotation(d: int, seed: int) -> Array:
    return np.asarray(stats.ortho_group.rvs(d, random_state=seed)) if d > 1 else np.eye(1)


# ---- LogME ---------------------------------------------------------------------------------------------


def gaussian_log_density(features: Array, y: Array, alpha: float, beta: float) -> float:
    """log p(y) with the weights integrated out: y ~ N(0, 1 / beta + F F^T / alpha)."""
    covariance = np.eye(len(y)) / beta + features @ features.T / alpha
    return float(stats.multivariate_normal.logpdf(y, np.zeros(len(y)), covariance))


def largest_evidence(features: Array, y: Array) -> float:
    def loss(logs: Array) -> float:  # beyond these bounds it has reached its limits
        return -gaussian_log_density(features, y, *np.exp(np.clip(logs, -20, 20))) / len(y)

    starts = [(0.0, 0.0), (-3.0, 3.0), (3.0, -3.0)]
    tries = [
        optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
        for start in starts
    ]
    return -min(float(each.fun) for each in tries)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_log_evidence_is_the_largest_over_both_precisions(n: int, d: int) -> None:
    features, scores = data(n, d)
    assert log_evidence(features, scores) == pytest.approx(largest_evidence(features, scores), abs=1e-7)


@pytest.mark.parametrize(("n", "d"), [(12, 12), (12, 40)])
def test_log_evidence_of_scores_that_any_features_explain(n: int, d: int) -> None:
    features, scores = data(n, d, noise=0.0)
    assert log_evidence(features, scores) == pytest.approx(largest_evidence(features, scores), abs=1e-5)


def test_log_evidence_of_scores_without_noise_is_finite() -> None:
    features = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    noisy = log_evidence(features, features @ [1.0, 2.0] + [1e-6, 0.0, 0.0, 0.0])
    assert noisy < log_evidence(features, features @ [1.0, 2.0]) < 40


def test_log_evidence_of_classes_is_the_mean_over_them() -> None:
    features, scores = data(25, 3)
    columns = class_columns(three_classes(scores))
    assert columns.shape == (25, 3)
    each = [largest_evidence(features, column) for column in columns.T]
    assert log_evidence(features, columns) == pytest.approx(np.mean(each), abs=1e-7)


def test_log_evidence_where_features_say_nothing() -> None:
    """The precision of the weights goes to infinity, and noise is left."""
    features = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    scores = np.array([1.0, 1.0, -1.0, -1.0])
    assert log_evidence(features, scores) == pytest.approx(-(math.log(2 * math.pi) + 1) / 2)
    noise, unrelated = np.random.default_rng(1).normal(size=(2, 40))
    assert log_evidence(noise[:, None], unrelated) == pytest.approx(
        largest_evidence(noise[:, None], unrelated), abs=1e-6
    )


def test_log_evidence_prefers_the_features_that_carry_the_scores() -> None:
    features, scores = data(60, 8, noise=0.1)
    other, _ = data(60, 8, seed=5)
    assert log_evidence(features, scores) > log_evidence(other, scores) + 0.5


# ---- H-score -------------------------------------------------------------------------------------------


def h_score_by_loops(features: Array, classes: Array) -> float:
    x = features - features.mean(axis=0)
    n, d = x.shape
    covariance = sum(np.outer(row, row) for row in x) / n
    scale = np.trace(covariance) / d
    spread = np.sum((covariance - scale * np.eye(d)) ** 2)
    noise = sum(np.sum((np.outer(row, row) - covariance) ** 2) for row in x) / n**2
    shrinkage = min(1.0, noise / spread)
    between = np.zeros((d, d))
    for number in classes:  # once an item
        mean = x[classes == number].mean(axis=0)
        between += np.outer(mean, mean) / n
    shrunken = (1 - shrinkage) * covariance + shrinkage * scale * np.eye(d)
    return float(np.trace(np.linalg.pinv(shrunken) @ ((1 - shrinkage) * between)))


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_h_score_is_the_trace_of_its_covariances(n: int, d: int) -> None:
    features, scores = data(n, d)
    classes = three_classes(scores)
    assert h_score(features, classes) == pytest.approx(h_score_by_loops(features, classes))
    estimate = LedoitWolf().fit(features)
    means = class_columns(classes) @ (class_columns(classes).T @ features / class_columns(classes).sum(axis=0)[:, None])
    between = np.cov(means, rowvar=False, bias=True).reshape(d, d)
    expected = np.trace(np.linalg.solve(estimate.covariance_, (1 - estimate.shrinkage_) * between))
    assert h_score(features, classes) == pytest.approx(expected)


def test_h_score_of_classes_that_are_apart_nears_its_bound() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat([0.0, 1.0, 2.0], 200)
    corners = np.eye(3)[classes.astype(int)] * 100
    assert 1.99 < h_score(corners + rng.normal(size=(600, 3)), classes) < 2
    assert h_score(rng.normal(size=(600, 3)), classes) < 0.05


def test_h_score_without_an_inverse_is_refused() -> None:
    """Rows that are two opposite ones leave the shrinkage nothing to do."""
    features = np.array([[1.0, 2.0], [-1.0, -2.0]] * 4)
    with pytest.raises(DegenerateLayerError, match="the covariance of layer 3 has no inverse, expected features that"):
        h_score(features, [0, 1] * 4, name="layer 3")


# ---- LinMSE --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_linear_mse_is_the_objective_of_ridge_regression(n: int, d: int) -> None:
    features, scores = data(n, d)
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    model = Ridge(alpha=n).fit(z, scores)
    expected = -np.mean((scores - model.predict(z)) ** 2) - np.sum(model.coef_**2)
    assert linear_mse(features, scores) == pytest.approx(expected)
    assert -np.var(scores) < linear_mse(features, scores) < 0


def test_a_feature_that_is_the_same_everywhere_changes_no_linear_mse() -> None:
    features, scores = data(30, 4)
    assert linear_mse(np.c_[features, np.full(30, 0.1)], scores) == pytest.approx(linear_mse(features, scores))


# ---- kNN -----------------------------------------------------------------------------------------------


def nearest_by_loops(features: Array, i: int) -> list[int]:
    others = [j for j in range(len(features)) if j != i]
    return sorted(others, key=lambda j: float(np.linalg.norm(features[i] - features[j])))[:NEIGHBOURS]


@pytest.mark.parametrize(("n", "d"), [*SHAPES, (1100, 2)])
def test_neighbours_are_the_nearest_others(n: int, d: int) -> None:
    """More rows than are in memory at a time are among the cases."""
    features, scores = data(n, d)
    classes = three_classes(scores)
    means = neighbour_predictions(features, scores, classes=False)
    winners = neighbour_predictions(features, classes, classes=True)
    for i in range(0, n, max(1, n // 40)):
        near = nearest_by_loops(features, i)
        assert means[i] == pytest.approx(np.mean(scores[near]))
        votes = classes[near].tolist()
        assert winners[i] == max(votes, key=votes.count)  # the first, so the nearest, of equals


# ---- the loss of contrastive training --------------------------------------------------------------------


def test_contrastive_loss_is_the_cross_entropy_of_softmax() -> None:
    rng = np.random.default_rng(0)
    queries, candidates = rng.normal(size=(5, 30)), rng.normal(size=(7, 30))
    positive = np.eye(5, 7, dtype=bool)
    losses = []
    for i in range(5):
        cosines = [
            q @ c / np.linalg.norm(q) / np.linalg.norm(c) for q, c in zip([queries[i]] * 7, candidates, strict=True)
        ]
        shares = np.exp(SCALE * np.array(cosines))
        losses.append(-math.log(shares[i] / shares.sum()))
    assert contrastive_loss(queries, candidates, positive) == pytest.approx(np.mean(losses))
    assert contrastive_loss(3 * queries, candidates, positive) == pytest.approx(np.mean(losses))


def test_contrastive_loss_of_classes_takes_all_of_a_class_as_positive() -> None:
    texts = np.random.default_rng(1).normal(size=(6, 20))
    classes = np.array([0, 0, 0, 1, 1, 2])
    units = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    losses = []
    for i in range(5):  # the last one is alone in its class
        others = [j for j in range(6) if j != i]
        total = sum(math.exp(SCALE * float(units[i] @ units[j])) for j in others)
        same = [j for j in others if classes[j] == classes[i]]
        losses.append(np.mean([math.log(total) - SCALE * float(units[i] @ units[j]) for j in same]))
    others = ~np.eye(6, dtype=bool)
    same = (classes[:, None] == classes) & others
    assert contrastive_loss(texts, texts, same, others) == pytest.approx(np.mean(losses))


def test_contrastive_loss_lies_between_certainty_and_the_opposite() -> None:
    positive = np.eye(4, dtype=bool)
    assert contrastive_loss(np.eye(4), np.eye(4), positive) == pytest.approx(0, abs=1e-12)
    assert contrastive_loss(np.eye(4), np.ones((4, 4)), positive) == pytest.approx(math.log(4))
    with pytest.raises(DataError, match="expected a positive pair for a contrastive loss, got none"):
        contrastive_loss(np.eye(4), np.eye(4), np.zeros((4, 4), dtype=bool))
    with pytest.raises(DegenerateLayerError, match="layer 2 is zero in row 1"):
        contrastive_loss(np.diag([1.0, 0.0, 1.0, 1.0]), np.eye(4), positive, name="layer 2")


# ---- what nothing depends on, and what is refused ----------------------------------------------------------

Estimate = Callable[[Array, Array], float]
ESTIMATES: dict[str, Estimate] = {
    "log evidence": log_evidence,
    "h score": lambda features, scores: h_score(features, three_classes(scores)),
    "linear mse": linear_mse,
    "neighbours": lambda features, scores: float(neighbour_predictions(features, scores, classes=False) @ scores),
}
TURNED = ("log evidence", "h score", "neighbours")
SHIFTED = ("h score", "linear mse", "neighbours")


@pytest.mark.parametrize("estimate", ESTIMATES)
@given(seed=seeds)
def test_the_order_of_items_does_not_matter(estimate: str, seed: int) -> None:
    features, scores = data(20, 5, seed=seed)
    order = np.random.default_rng(seed).permutation(20)
    expected = ESTIMATES[estimate](features, scores)
    assert ESTIMATES[estimate](features[order], scores[order]) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("estimate", TURNED)
@given(seed=seeds)
def test_turning_features_does_not_matter(estimate: str, seed: int) -> None:
    features, scores = data(20, 5, seed=seed)
    turned = features @ rotation(5, seed)
    assert ESTIMATES[estimate](turned, scores) == pytest.approx(ESTIMATES[estimate](features, scores), rel=1e-6)


@pytest.mark.parametrize("estimate", SHIFTED)
@given(seed=seeds)
def test_shifting_and_scaling_features_does_not_matter(estimate: str, seed: int) -> None:
    features, scores = data(20, 5, seed=seed)
    moved = 7 * features + np.arange(5)
    assert ESTIMATES[estimate](moved, scores) == pytest.approx(ESTIMATES[estimate](features, scores), rel=1e-6)


def test_log_evidence_knows_no_scale_of_features_and_shifts_with_that_of_scores() -> None:
    features, scores = data(40, 6)
    expected = log_evidence(features, scores)
    assert log_evidence(7 * features, scores) == pytest.approx(expected, abs=1e-6)
    assert log_evidence(features, 3 * scores) == pytest.approx(expected - math.log(3), abs=1e-6)


def test_a_scale_of_its_own_for_each_feature_changes_all_but_linear_mse() -> None:
    features, scores = data(30, 4)
    scaled = features * np.array([1.0, 10.0, 0.1, 3.0])
    for name, estimate in ESTIMATES.items():
        same = estimate(scaled, scores) == pytest.approx(estimate(features, scores), rel=1e-4)
        assert same == (name == "linear mse"), name


@pytest.mark.parametrize("estimate", [log_evidence, linear_mse, h_score])
def test_bad_input_is_told(estimate: Callable[..., float]) -> None:
    features, scores = data(10, 3)
    y = three_classes(scores)
    with pytest.raises(DegenerateLayerError, match="layer 4 is the same for all 10 samples, expected embeddings that"):
        estimate(np.ones((10, 3)), y, name="layer 4")
    with pytest.raises(DegenerateLayerError, match="the layer has 1 NaN or infinite values"):
        estimate(np.where(np.arange(30).reshape(10, 3) == 4, np.nan, features), y)
    with pytest.raises(DegenerateLayerError, match="the layer has 3 samples, expected at least 4"):
        estimate(features[:3], y[:3])
    with pytest.raises(MisalignedSamplesError, match="the targets has 9 samples, expected the 10 of the layer"):
        estimate(features, y[:9])
    with pytest.raises(DataError, match=r"or at least two classes, got \[1.0\] for all 10 items"):
        estimate(features, np.ones(10))
    with pytest.raises(DataError, match="expected finite targets"):
        linear_mse(features, np.where(y == 0, np.nan, y))
