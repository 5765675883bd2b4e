"""A second formula for each measure, written out in loops or by another route."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg

from layerprobe.similarity import measures
from layerprobe.similarity.measures import principal_subspace
from tests.similarity.beside_cka import mutual_knn, procrustes, svcca

Array = NDArray[np.float64]
sizes = pytest.mark.parametrize(("n", "d", "e"), [(9, 3, 4), (12, 2, 3), (11, 20, 5)])


def layers(n: int, d: int, e: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d)) + 1
    return X, np.tanh(X @ rng.normal(size=(d, e))) + 0.5 * rng.normal(size=(n, e))


def nearest(X: Array, i: int, k: int) -> set[int]:
    cosines = {j: X[i] @ X[j] / np.sqrt(X[i] @ X[i] * (X[j] @ X[j])) for j in range(len(X)) if j != i}
    return set(sorted(cosines, key=cosines.__getitem__)[-k:])


@sizes
@pytest.mark.parametrize("k", [1, 3, 8])
def test_mutual_knn_counts_common_neighbours(n: int, d: int, e: int, k: int) -> None:
    X, Y = layers(n, d, e)
    shares = [len(nearest(X, i, k) & nearest(Y, i, k)) / k for i in range(n)]
    np.testing.assert_allclose(mutual_knn(X, Y, neighbours=k), np.mean(shares), rtol=0, atol=1e-15)


@pytest.mark.parametrize("block", [1, 7, 30, 64])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = layers(30, 6, 4)
    expected = mutual_knn(X, Y, neighbours=4)
    monkeypatch.setattr(measures, "BLOCK", block)
    np.testing.assert_allclose(mutual_knn(X, Y, neighbours=4), expected, rtol=1e-12)


def centred_unit(X: Array) -> Array:
    centred = X - X.mean(axis=0)
    return centred / np.linalg.norm(centred)


@pytest.mark.parametrize(("n", "d", "e"), [(9, 3, 4), (12, 6, 3), (11, 20, 5), (10, 30, 40)])
def test_procrustes_is_the_fidelity_of_gram_matrices(n: int, d: int, e: int) -> None:
    """The trace of sqrt(sqrt(K) L sqrt(K)), as the Bures distance has it."""
    X, Y = map(centred_unit, layers(n, d, e))
    values, vectors = np.linalg.eigh(X @ X.T)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    expected = np.sqrt(np.linalg.eigvalsh(root @ (Y @ Y.T) @ root).clip(0)).sum()
    np.testing.assert_allclose(procrustes(X, Y), expected, rtol=0, atol=1e-6)


def test_procrustes_is_the_best_rotation() -> None:
    X, Y = map(centred_unit, layers(12, 5, 5))
    best, overlap = linalg.orthogonal_procrustes(X, Y)
    np.testing.assert_allclose(procrustes(X, Y), overlap, rtol=1e-12)
    np.testing.assert_allclose(2 - 2 * procrustes(X, Y), np.linalg.norm(X @ best - Y) ** 2, rtol=1e-10)


def reduced(X: Array, variance: float) -> Array:
    """Scores on the fewest eigenvectors of the covariance that reach the share."""
    values, vectors = np.linalg.eigh(np.cov(X.T))
    kept = next(k for k in range(1, len(values) + 1) if values[-k:].sum() >= variance * values.sum())
    return (X - X.mean(axis=0)) @ vectors[:, -kept:]


def canonical_correlations(X: Array, Y: Array) -> Array:
    """Roots of the eigenvalues of Sxx^-1 Sxy Syy^-1 Syx."""
    d = X.shape[1]
    S = np.cov(X.T, Y.T)
    product = np.linalg.solve(S[:d, :d], S[:d, d:]) @ np.linalg.solve(S[d:, d:], S[d:, :d])
    squares = np.sort(np.linalg.eigvals(product).real)[::-1][: min(d, Y.shape[1])]
    return np.sqrt(squares)


@pytest.mark.parametrize("variance", [0.3, 0.6, 0.9, 0.99])
def test_svcca_is_the_mean_canonical_correlation_of_principal_components(variance: float) -> None:
    X, Y = layers(40, 6, 4)
    expected = canonical_correlations(reduced(X, variance), reduced(Y, variance)).mean()
    np.testing.assert_allclose(svcca(X, Y, variance=variance), expected, rtol=0, atol=1e-9)


def test_svcca_of_all_variance_is_the_same_for_any_invertible_map() -> None:
    rng = np.random.default_rng(0)
    X, Y = layers(40, 6, 4)
    moved = X @ rng.normal(size=(6, 6)) - 3
    np.testing.assert_allclose(svcca(moved, Y, variance=1), svcca(X, Y, variance=1), rtol=0, atol=1e-10)
    np.testing.assert_allclose(svcca(X, Y, variance=1), canonical_correlations(X, Y).mean(), rtol=0, atol=1e-10)


def test_svcca_keeps_the_fewest_components_that_reach_the_share() -> None:
    X = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 4)) - 0.0)[0]
    X -= X.mean(axis=0)
    X = np.linalg.svd(X, full_matrices=False)[0] * np.sqrt([60, 30, 9, 1])
    dimensions = [
        principal_subspace(X, name="X", variance=share).shape[1] for share in (0.59, 0.61, 0.89, 0.91, 0.995, 1.0)
    ]
    assert dimensions == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_that_are_sums_of_others_are_no_dimensions(dtype: type[np.floating]) -> None:
    """In float32 the sum is rounded, and its rounding correlates with nothing."""
    X, Y = layers(60, 6, 4)
    twice = np.column_stack([X, X]).astype(dtype)
    assert principal_subspace(twice, name="X", variance=1).shape[1] == 6
    dependent = np.column_stack([X, X.sum(axis=1) / 3]).astype(dtype)
    assert principal_subspace(dependent, name="X", variance=1).shape[1] == 6
    np.testing.assert_allclose(svcca(dependent, Y, variance=1), svcca(X, Y, variance=1), rtol=0, atol=1e-6)
