"""The theorems: what CKA does not depend on, what it does, and second formulas for each estimator."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe.similarity.cka import linear_cka
from layerprobe.similarity.diagnostics import squared_distances
from tests.similarity.definitions import centre, hsic, linear_gram, rbf_cka, rbf_gram

Array = NDArray[np.float64]
ESTIMATORS = ["biased", "debiased"]
cka_measures = pytest.mark.parametrize("cka", [linear_cka, rbf_cka])
estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)


def layers(seed: int) -> tuple[Array, Array, np.random.Generator]:
    """Two related layers of random size, and the source of chance for what comes next."""
    rng = np.random.default_rng(seed)
    n, d, e = rng.integers(8, 40), *rng.integers(2, 20, size=2)
    X = rng.normal(size=(n, d)) + rng.normal(size=d)
    return X, np.tanh(X @ rng.normal(size=(d, e))) + rng.normal(size=(n, e)), rng


@cka_measures
@estimators
@given(seed=seeds)
@quick
def test_a_layer_is_wholly_like_itself_and_never_more(cka: Callable[..., float], estimator: str, seed: int) -> None:
    X, Y, _ = layers(seed)
    np.testing.assert_allclose(cka(X, X, estimator=estimator), 1.0, rtol=0, atol=1e-12)
    lowest = 0 if estimator == "biased" else -1
    assert lowest - 1e-12 <= cka(X, Y, estimator=estimator) <= 1 + 1e-12


@given(seed=seeds)
@quick
def test_biased_linear_cka_is_its_feature_space_formula(seed: int) -> None:
    """CKA = |Y^T X|^2 / (|X^T X| |Y^T Y|), columns centred: Kornblith et al. 2019, section 3."""
    X, Y, _ = layers(seed)
    x, y = X - X.mean(0), Y - Y.mean(0)
    expected = np.linalg.norm(y.T @ x) ** 2 / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y)
    np.testing.assert_allclose(linear_cka(X, Y, estimator="biased"), expected, rtol=0, atol=1e-12)


@given(seed=seeds)
@quick
def test_biased_hsic_is_its_trace(seed: int) -> None:
    X, Y, _ = layers(seed)
    K, L, n = X @ X.T, rbf_gram(Y), len(X)
    H = np.eye(n) - 1 / n
    np.testing.assert_allclose(hsic(K, L, estimator="biased"), np.trace(K @ H @ L @ H) / (n - 1) ** 2, rtol=1e-10)


@given(seed=seeds)
@quick
def test_debiased_hsic_is_the_formula_of_song(seed: int) -> None:
    X, Y, _ = layers(seed)
    K, L, n = X @ X.T, rbf_gram(Y), len(X)
    k, m = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    expected = np.trace(k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k @ m).sum()
    scale = np.linalg.norm(k) * np.linalg.norm(m)
    np.testing.assert_allclose(
        hsic(K, L, estimator="debiased") * n * (n - 3) / scale, expected / scale, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("gram", [linear_gram, rbf_gram])
@given(seed=seeds)
@quick
def test_cka_is_the_ratio_of_hsics(gram: Callable[[Array], Array], seed: int) -> None:
    X, Y, _ = layers(seed)
    K, L = gram(X), gram(Y)
    cka = linear_cka if gram is linear_gram else rbf_cka
    for estimator in ("biased", "debiased"):
        ratio = hsic(K, L, estimator=estimator) / np.sqrt(
            hsic(K, K, estimator=estimator) * hsic(L, L, estimator=estimator)
        )
        np.testing.assert_allclose(cka(X, Y, estimator=estimator), ratio, rtol=0, atol=1e-11)


def test_centred_grams_have_rows_that_sum_to_zero() -> None:
    K = np.random.default_rng(0).normal(size=(9, 9))
    K += K.T
    biased, debiased = centre(K.copy(), estimator="biased"), centre(K.copy(), estimator="debiased")
    np.testing.assert_allclose(biased.sum(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(debiased.sum(axis=0), 0, atol=1e-13)
    np.testing.assert_array_equal(debiased.diagonal(), 0)


def test_debiased_value_of_independent_layers_is_zero_on_average() -> None:
    rng = np.random.default_rng(0)
    pairs = [rng.normal(size=(2, 20, 30)) for _ in range(300)]
    debiased = np.array([linear_cka(*pair) for pair in pairs])
    assert abs(debiased.mean()) < 4 * debiased.std() / np.sqrt(len(pairs))
    assert (debiased < 0).any()
    assert np.mean([linear_cka(*pair, estimator="biased") for pair in pairs[:20]]) > 0.5


def test_rows_equal_up_to_rounding_are_at_distance_zero() -> None:
    X = np.random.default_rng(0).normal(size=(20, 768)) + 100
    X[7] = X[3] * (1 + 1e-15)
    X[8] = X[3] * (1 - 1e-15)
    distances = squared_distances(X - X.mean(axis=0))
    assert distances[3, 7] == distances[3, 8] == distances[7, 8] == 0
    np.testing.assert_array_equal(distances.diagonal(), 0)
    assert distances.min() == 0
