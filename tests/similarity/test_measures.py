"""Measures other than CKA: what each declares, second formulas, values of other packages, errors of curves, and JSON.

A peer that is wrong is reproduced to the last digit by its mistake, so that the cause is known and not guessed.
"""

import json
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import linalg, stats

from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.similarity import measures as module
from layerprobe.similarity.maps import PARTS, MapEstimate, layer_similarity, measure_layers, zscored
from layerprobe.similarity.measures import CKA, SVCCA, MutualKNN, Procrustes, principal_subspace
from layerprobe.similarity.values import (
    MEASURES,
    CurveUncertainty,
    Invariance,
    LayerMeasure,
    Matrix,
    Measure,
    Normalize,
    measure_class,
)
from tests.plugins import install
from tests.similarity.test_diagnostics import rotation
from tests.sources import naming

Array = NDArray[np.float64]
BESIDE_CKA = [name for name in MEASURES if name != "cka"]
NEIGHBOURS = 5


NEIGHBOUR_MEASURES = [name for name in BESIDE_CKA if "neighbours" in measure_class(name).__dataclass_fields__]


def measured(name: str, normalize: Normalize = "raw", neighbours: int = NEIGHBOURS) -> LayerMeasure[Any]:
    """The measure of a name."""
    settings = {"neighbours": neighbours} if name in NEIGHBOUR_MEASURES else {}
    return measure_class(name)(normalize=normalize, **settings)


def measure_map(model: Iterable[Any], reference: Iterable[Any], measure: LayerMeasure[Any], **names: str) -> Matrix:
    return measure_layers(list(model), list(reference), measure, level=None, **names).map.values


def mutual_knn(X: Any, Y: Any, *, neighbours: int = 10) -> float:
    return layer_similarity(X, Y, MutualKNN(neighbours=neighbours))


def svcca(X: Any, Y: Any, *, variance: float = 0.99) -> float:
    return layer_similarity(X, Y, SVCCA(variance=variance))


def procrustes(X: Any, Y: Any) -> float:
    return layer_similarity(X, Y, Procrustes())


INVARIANCES: tuple[Invariance, ...] = typing.get_args(Invariance)
DECLARED = [(name, kind) for name in BESIDE_CKA for kind in INVARIANCES if kind in measured(name).invariances]
NOT_DECLARED = [(name, kind) for name in BESIDE_CKA for kind in INVARIANCES if kind not in measured(name).invariances]
measures = pytest.mark.parametrize("name", BESIDE_CKA)
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)


def value(name: str, X: Any, Y: Any) -> float:
    return layer_similarity(X, Y, measured(name))


def layers(seed: int) -> tuple[Array, Array, np.random.Generator]:
    """Two related layers of random size, enough samples for CCA, and the source of chance for what comes next."""
    rng = np.random.default_rng(seed)
    n, d, e = rng.integers(24, 40), *rng.integers(3, 10, size=2)
    X = rng.normal(size=(n, d)) + rng.normal(size=d)
    return X, np.tanh(X @ rng.normal(size=(d, e))) + rng.normal(size=(n, e)), rng


def changed(X: Array, kind: Invariance, rng: np.random.Generator) -> Array:
    n, d = X.shape
    changes: dict[Invariance, Callable[[], Array]] = {
        "translation": lambda: X + 3 * rng.normal(size=d),
        "isotropic-scaling": lambda: X * 10 ** rng.uniform(-6, 6),
        "permutation": lambda: X[:, rng.permutation(d)],
        "orthogonal": lambda: X @ rotation(rng, d),
        "invertible-linear": lambda: X @ rotation(rng, d) * np.geomspace(1, 30, d) @ rotation(rng, d),
        "row-scaling": lambda: X * np.exp(rng.normal(size=(n, 1))),
    }
    return changes[kind]()


# ---- what is declared ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), DECLARED)
@given(seed=seeds)
@quick
def test_what_is_declared_leaves_the_value_of_either_layer_as_it_is(name: str, kind: Invariance, seed: int) -> None:
    X, Y, rng = layers(seed)
    expected = value(name, X, Y)
    np.testing.assert_allclose(value(name, changed(X, kind, rng), Y), expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(value(name, X, changed(Y, kind, rng)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "kind"), NOT_DECLARED)
def test_what_is_not_declared_changes_the_value(name: str, kind: Invariance) -> None:
    X, Y, rng = layers(3)
    assert abs(value(name, changed(X, kind, rng), Y) - value(name, X, Y)) > 1e-3


@measures
@given(seed=seeds)
@quick
def test_values_are_in_the_declared_range_and_those_of_a_layer_with_itself_are_one(name: str, seed: int) -> None:
    X, Y, _ = layers(seed)
    lowest, highest = measured(name).range
    assert lowest - 1e-12 <= value(name, X, Y) <= highest + 1e-12
    np.testing.assert_allclose(value(name, X, X), 1, rtol=0, atol=1e-12)


@measures
@given(seed=seeds)
@quick
def test_order_of_samples_changes_nothing(name: str, seed: int) -> None:
    X, Y, rng = layers(seed)
    order = rng.permutation(len(X))
    np.testing.assert_allclose(value(name, X[order], Y[order]), value(name, X, Y), rtol=0, atol=1e-10)


@measures
@given(seed=seeds)
@quick
def test_measures_are_symmetric(name: str, seed: int) -> None:
    X, Y, _ = layers(seed)
    np.testing.assert_allclose(value(name, Y, X), value(name, X, Y), rtol=0, atol=1e-12)


@measures
def test_a_map_holds_the_value_of_every_pair(name: str) -> None:
    rng = np.random.default_rng(0)
    model = [rng.normal(size=(40, d)) for d in (3, 4, 5)]
    reference = [model[1] + 0.5 * rng.normal(size=(40, 4)), model[2]]
    found = measure_map(model, reference, measured(name))
    expected = [[value(name, X, Y) for Y in reference] for X in model]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    assert isinstance(found[0][0], float)


@measures
def test_a_map_of_zscored_features_does_not_know_their_scales(name: str) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 40, 4))
    Y += X
    expected = value(name, (X - X.mean(0)) / X.std(0), (Y - Y.mean(0)) / Y.std(0))
    stretched = np.column_stack([X * [100, 1, 1, 0.01] + 7, np.full(40, 0.1)])
    np.testing.assert_allclose(measure_map([stretched], [Y], measured(name, "zscore"))[0][0], expected, atol=1e-9)


def test_zscores_leave_out_features_that_vary_by_rounding() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(30, 2)), 5 * (1 + 1e-7 * rng.normal(size=30))]).astype(np.float32)
    scores = zscored(X, name="X")
    assert scores.shape == (30, 2)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(scores.std(axis=0), 1, rtol=1e-14)


@measures
def test_arguments_are_left_as_they_were(name: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 4)) + 1
    X.setflags(write=False)
    value(name, X, X)
    measure_map([X], [X], measured(name, "zscore"))


@measures
def test_float16_does_not_overflow(name: str) -> None:
    X = (300 * np.random.default_rng(0).normal(size=(40, 8))).astype(np.float16)
    assert value(name, X, X[:, :5]) == value(name, X.astype(np.float64), X[:, :5].astype(np.float64))


# ---- second formulas -------------------------------------------------------------------------------------


sizes = pytest.mark.parametrize(("n", "d", "e"), [(9, 3, 4), (12, 2, 3), (11, 20, 5)])


def related(n: int, d: int, e: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d)) + 1
    return X, np.tanh(X @ rng.normal(size=(d, e))) + 0.5 * rng.normal(size=(n, e))


def nearest(X: Array, i: int, k: int) -> set[int]:
    cosines = {j: X[i] @ X[j] / np.sqrt(X[i] @ X[i] * (X[j] @ X[j])) for j in range(len(X)) if j != i}
    return set(sorted(cosines, key=cosines.__getitem__)[-k:])


@sizes
@pytest.mark.parametrize("k", [1, 3, 8])
def test_mutual_knn_counts_common_neighbours(n: int, d: int, e: int, k: int) -> None:
    X, Y = related(n, d, e)
    shares = [len(nearest(X, i, k) & nearest(Y, i, k)) / k for i in range(n)]
    np.testing.assert_allclose(mutual_knn(X, Y, neighbours=k), np.mean(shares), rtol=0, atol=1e-15)


@pytest.mark.parametrize("block", [1, 7, 30, 64])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = related(30, 6, 4)
    expected = mutual_knn(X, Y, neighbours=4)
    monkeypatch.setattr(module, "BLOCK", block)
    np.testing.assert_allclose(mutual_knn(X, Y, neighbours=4), expected, rtol=1e-12)


def centred_unit(X: Array) -> Array:
    centred = X - X.mean(axis=0)
    return centred / np.linalg.norm(centred)


@pytest.mark.parametrize(("n", "d", "e"), [(9, 3, 4), (12, 6, 3), (11, 20, 5), (10, 30, 40)])
def test_procrustes_is_the_fidelity_of_gram_matrices(n: int, d: int, e: int) -> None:
    """The trace of sqrt(sqrt(K) L sqrt(K)), as the Bures distance has it."""
    X, Y = map(centred_unit, related(n, d, e))
    values, vectors = np.linalg.eigh(X @ X.T)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    expected = np.sqrt(np.linalg.eigvalsh(root @ (Y @ Y.T) @ root).clip(0)).sum()
    np.testing.assert_allclose(procrustes(X, Y), expected, rtol=0, atol=1e-6)


def test_procrustes_is_the_best_rotation() -> None:
    X, Y = map(centred_unit, related(12, 5, 5))
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
    X, Y = related(40, 6, 4)
    expected = canonical_correlations(reduced(X, variance), reduced(Y, variance)).mean()
    np.testing.assert_allclose(svcca(X, Y, variance=variance), expected, rtol=0, atol=1e-9)


def test_svcca_of_all_variance_is_the_same_for_any_invertible_map() -> None:
    rng = np.random.default_rng(0)
    X, Y = related(40, 6, 4)
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
    X, Y = related(60, 6, 4)
    twice = np.column_stack([X, X]).astype(dtype)
    assert principal_subspace(twice, name="X", variance=1).shape[1] == 6
    dependent = np.column_stack([X, X.sum(axis=1) / 3]).astype(dtype)
    assert principal_subspace(dependent, name="X", variance=1).shape[1] == 6
    np.testing.assert_allclose(svcca(dependent, Y, variance=1), svcca(X, Y, variance=1), rtol=0, atol=1e-6)


# ---- values of other packages ----------------------------------------------------------------------------


Case = tuple[Array, Array, dict[str, float]]
REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
TALL = ["A_200x32_vs_200x48_correlated", "B_200x32_vs_200x48_independent", "D_300x64_outlier_dims"]
WIDE = "C_60x512_vs_60x512_independent_n_lt_d"


def load(name: str) -> Case:
    path = REFERENCE / "cka_peers.json"
    if not path.exists():
        pytest.skip(f"the reference values are not in {REFERENCE.name}/ beside the repository")
    with np.load(REFERENCE / f"{name}.npz") as arrays:
        return arrays["X"], arrays["Y"], json.loads(path.read_text())[name]["OTHER/float64"]


@pytest.fixture(params=[*TALL, WIDE], ids=lambda case: case[0])
def case(request: pytest.FixtureRequest) -> Case:
    return load(request.param)


@pytest.fixture(params=TALL, ids=lambda case: case[0])
def tall(request: pytest.FixtureRequest) -> Case:
    return load(request.param)


def test_procrustes_agrees_with_five_peers(case: Case) -> None:
    X, Y, peers = case
    value = procrustes(X, Y)
    np.testing.assert_allclose(value, peers["anatome orth. Procrustes sim"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.arccos(value), peers["netrep LinearMetric(alpha=1) angular"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.arccos(value), peers["ReSi OrthogonalAngularShapeMetricCentered"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(2 - 2 * value, peers["ReSi Procrustes (centred+normalised)"] ** 2, rtol=0, atol=1e-10)
    np.testing.assert_allclose(2 - 2 * value, peers["sim_metric procrustes (centred, unit norm)"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(value, peers["rsatoolbox bures"], rtol=0, atol=1e-6)  # roots of Gram matrices


def test_mutual_knn_agrees_with_platonic_on_unit_rows(case: Case) -> None:
    X, Y, peers = case
    expected = peers["platonic mutual_knn k=10 (L2-normalised)"]  # a float32 mean
    np.testing.assert_allclose(mutual_knn(X, Y), expected, rtol=0, atol=1e-7)


def test_resi_keeps_one_component_where_svcca_keeps_dozens(tall: Case) -> None:
    """It compares a cumulative share with 0.99 times the total variance: never reached, so argmax gives the first."""
    X, Y, peers = tall
    np.testing.assert_allclose(svcca(X, Y, variance=1e-9), peers["ReSi SVCCA"], rtol=0, atol=1e-6)
    assert min(principal_subspace(Z, name="Z", variance=0.99).shape[1] for Z in (X, Y)) >= 32
    assert svcca(X, Y) > 0.44


def test_svcca_of_the_first_case() -> None:
    X, Y, _ = load(TALL[0])
    np.testing.assert_allclose(svcca(X, Y), 0.8699613818473892, rtol=0, atol=1e-10)


def test_canonical_correlations_are_those_of_netrep(tall: Case) -> None:
    """Its cosine is their sum over the root of the two numbers of features, not their mean."""
    X, Y, peers = tall
    d, e = X.shape[1], Y.shape[1]
    cosine = svcca(X, Y, variance=1) * min(d, e) / np.sqrt(d * e)
    np.testing.assert_allclose(
        np.arccos(cosine), peers["netrep LinearMetric(alpha=0) angular (CCA)"], rtol=0, atol=1e-8
    )


# ---- errors of curves ------------------------------------------------------------------------------------


def pair(n: int, *, noise: float = 1.0, d: int = 4, layers: int = 2, seed: int = 0) -> tuple[Array, Array]:
    """(layers, n, d) of two related models."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(layers, n, d))
    return X, X + noise * rng.normal(size=X.shape)


def width(name: str) -> int:
    """Features with which a measure is defined on four samples."""
    return 1 if name == "svcca" else 4


def uncertainty(estimate: MapEstimate) -> CurveUncertainty:
    found = estimate.curve("same-index").uncertainty
    assert found is not None
    return found


def assert_no_errors(estimate: MapEstimate) -> None:
    curve = estimate.curve("same-index")
    assert curve.uncertainty is None
    assert estimate.differences(estimate, [((0, 0), (1, 1))]) == ()


@measures
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
@pytest.mark.parametrize("n", [43, 8])
def test_the_covariance_is_that_of_values_without_one_group(name: str, normalize: Normalize, n: int) -> None:
    X, Y = pair(n, d=width(name))
    measure = measured(name, normalize, neighbours=min(5, n - 3))
    n_groups = min(n, PARTS)
    groups = np.array_split(np.random.default_rng(0).permutation(n), n_groups)
    thetas = np.array(
        [
            [measure_map([np.delete(A, g, 0)], [np.delete(B, g, 0)], measure)[0][0] for A, B in zip(X, Y, strict=True)]
            for g in groups
        ]
    )
    expected = (n_groups - 1) ** 2 / n_groups * np.cov(thetas.T)
    found = uncertainty(measure_layers(X, Y, measure))
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-8, atol=1e-15)


def pairs_of_layers(n: int, repeats: int) -> Iterator[tuple[Array, Array]]:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 5))
    for _ in range(repeats):
        X = rng.normal(size=(n, 5))
        yield X, X @ mixing + 2 * rng.normal(size=(n, 5))


@pytest.mark.slow
@measures
def test_standard_errors_are_the_spread_over_samples(name: str) -> None:
    """Of measures by neighbours they are too large, as the docstring says."""
    found = [measure_layers([X], [Y], measured(name)) for X, Y in pairs_of_layers(150, 80)]
    spread = np.std([estimate.map.values[0][0] for estimate in found], ddof=1)
    variances = [uncertainty(estimate).covariance[0][0] for estimate in found]
    lowest, highest = (1.2, 2.0) if name in NEIGHBOUR_MEASURES else (0.75, 1.35)
    assert lowest < np.sqrt(np.mean(variances)) / spread < highest


@pytest.mark.parametrize("n", [5, 9, 10, 30])
def test_intervals_and_tests_have_the_degrees_of_freedom_of_their_groups(n: int) -> None:
    X, Y = pair(n, noise=2)
    estimate = measure_layers(X, Y, measured("procrustes"))
    curve = estimate.curve("same-index")
    found, freedom = uncertainty(estimate), min(n, PARTS) - 1
    half = stats.t(freedom).isf(0.025) * np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(found.lower, np.maximum(np.array(curve.values) - half, -1))
    np.testing.assert_allclose(found.upper, np.minimum(np.array(curve.values) + half, 1))
    (step,) = estimate.differences(estimate, [((0, 0), (1, 1))])
    first, second = (estimate.spread((i, i)) for i in (0, 1))
    assert first is not None
    assert second is not None
    error = np.sqrt(freedom * np.var(second.influences - first.influences))
    np.testing.assert_allclose(step.interval[1] - step.value, stats.t(freedom).isf(0.025) * error)
    np.testing.assert_allclose(step.p_value, 2 * stats.t(freedom).sf(abs(step.value) / error))


@measures
@pytest.mark.parametrize("n", [5, 6, 12])
def test_ends_are_in_the_range_of_the_measure_and_around_the_values(name: str, n: int) -> None:
    X, Y = pair(n, noise=0.2, d=width(name))
    estimate = measure_layers(X, np.concatenate([Y[:1], X[1:]]), measured(name, neighbours=2))
    lowest, highest = measured(name).range
    values, found = estimate.curve("same-index").values, uncertainty(estimate)
    for ends in (found.lower, found.band_lower):
        assert all(lowest - 1e-12 <= end <= value for end, value in zip(ends, values, strict=True))
    for ends in (found.upper, found.band_upper):
        assert all(value <= end <= highest + 1e-12 for end, value in zip(ends, values, strict=True))


@measures
def test_four_texts_have_values_and_no_intervals(name: str) -> None:
    X, Y = pair(4, d=width(name))
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=3)))


def test_one_document_that_holds_most_texts_leaves_no_intervals() -> None:
    groups = np.array([0] * 26 + [1, 2, 3, 4])
    assert_no_errors(measure_layers(*pair(30), measured("mutual-knn"), groups=groups))
    assert uncertainty(measure_layers(*pair(30), measured("procrustes"), groups=groups))


@pytest.mark.parametrize("name", NEIGHBOUR_MEASURES)
@pytest.mark.parametrize(("n", "most"), [(12, 8), (150, 133)])
def test_neighbours_that_are_too_many_without_a_group_leave_no_intervals(name: str, n: int, most: int) -> None:
    """The largest group of 12 texts has 2, so that 10 stay: with 9 neighbours all would be neighbours."""
    X, Y = pair(n)
    assert max(uncertainty(measure_layers(X, Y, measured(name, neighbours=most))).covariance[0]) > 0
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=most + 1)))
    assert_no_errors(measure_layers(X, Y, measured(name, neighbours=n - 1)))


def test_canonical_correlations_that_are_one_without_a_group_leave_no_intervals() -> None:
    """Of 30 texts two layers keep 14 + 14 dimensions, of 27 they would keep more than the 26 there are."""
    X, Y = np.random.default_rng(0).normal(size=(2, 2, 30, 14))
    estimate = measure_layers(X, Y, SVCCA(variance=1))
    assert estimate.map.values[0][0] < 1
    assert_no_errors(estimate)


# ---- what is refused -------------------------------------------------------------------------------------


WRONG = [
    (lambda: MutualKNN(neighbours=0), "expected at least one neighbour, got 0"),
    (lambda: SVCCA(variance=0.0), "variance is 0.0, expected a share above 0 and at most 1"),
    (lambda: SVCCA(variance=float("nan")), "variance is nan, expected a share above 0 and at most 1"),
    (lambda: Procrustes(normalize="unit"), "normalize is 'unit', expected one of 'raw', 'zscore'"),
    (lambda: CKA(kernel="cosine"), "kernel is 'cosine', expected one of 'linear', 'rbf'"),
    (lambda: CKA(estimator="unbiased"), "estimator is 'unbiased', expected one of 'debiased', 'biased'"),
    (lambda: CKA(kernel="rbf", bandwidth_multiplier=0.0), "bandwidth_multiplier is 0.0, expected a positive finite"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@measures
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (np.full((40, 3), 0.1), "is the same for all 40 samples"),
        (np.full((40, 3), np.nan), "has 120 NaN or infinite values, the first in row 0"),
        (np.ones((40, 3, 2)), r"has shape \(40, 3, 2\), expected \(samples, features\)"),
        (np.array([["a"] * 3] * 40), "has dtype <U1, expected real numbers"),
    ],
)
def test_a_broken_layer_is_refused_by_name(name: str, normalize: Normalize, broken: NDArray[Any], message: str) -> None:
    X = np.random.default_rng(0).normal(size=(40, 5))
    measure = measured(name, normalize)
    with pytest.raises(DataError, match="^layer 1 of bert " + message):
        measure_map([X, broken], [X], measure, model_name="bert")
    with pytest.raises(DataError, match="^layer 0 of roberta " + message):
        measure_map([X], [broken], measure, reference_name="roberta")
    with pytest.raises(DataError, match="^Y " + message):
        value(name, X, broken)


@measures
def test_models_of_different_samples_are_refused(name: str) -> None:
    X = np.random.default_rng(0).normal(size=(40, 5))
    with pytest.raises(MisalignedSamplesError, match="layer 0 of bert has 38 samples, expected the 40 of layer 0 of "):
        measure_map([X[:38]], [X], measured(name), model_name="bert")


@pytest.mark.parametrize("name", NEIGHBOUR_MEASURES)
@pytest.mark.parametrize("neighbours", [8, 10])
def test_there_are_as_many_neighbours_as_other_samples(name: str, neighbours: int) -> None:
    X = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(DataError, match=f"neighbours is {neighbours}, expected 1 to 7, the other samples of X"):
        layer_similarity(X, X, measured(name, neighbours=neighbours))


@pytest.mark.parametrize("name", NEIGHBOUR_MEASURES)
def test_a_row_of_zeros_has_no_neighbours(name: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    X[4] = 0
    with pytest.raises(DegenerateLayerError, match="X is zero in row 4, expected embeddings with a direction"):
        value(name, X, X)


def test_canonical_correlations_that_are_one_for_any_data_are_refused() -> None:
    """Independent layers: peers call them alike, at 1.0."""
    X, Y = (np.linalg.qr(Z)[0] for Z in np.random.default_rng(0).normal(size=(2, 30, 15)))
    message = "keep 15 and 15 dimensions of 30 samples, expected at most 29 together: 1 canonical correlations are 1"
    with pytest.raises(DegenerateLayerError, match=f"layer 0 of bert and layer 1 of roberta {message}"):
        measure_map([X], [Y[:, :3], Y], measured("svcca"), model_name="bert", reference_name="roberta")
    with pytest.raises(DegenerateLayerError, match="compare on at least 31 texts"):
        value("svcca", X, Y)
    assert value("svcca", X, Y[:, :14]) < 1 - 1e-3


# ---- by name ---------------------------------------------------------------------------------------------


NAMED: list[tuple[Measure, dict[str, Any]]] = [
    (MutualKNN(neighbours=7), {"name": "mutual-knn", "normalize": "raw", "neighbours": 7}),
    (Procrustes(normalize="zscore"), {"name": "procrustes", "normalize": "zscore"}),
    (
        CKA(kernel="rbf", bandwidth_multiplier=0.5),
        {"name": "cka", "normalize": "raw", "kernel": "rbf", "estimator": "debiased", "bandwidth_multiplier": 0.5},
    ),
    (CKA(), {"name": "cka", "kernel": "linear", "normalize": "raw", "estimator": "debiased"}),
]


@pytest.mark.parametrize(("measure", "settings"), NAMED)
def test_json_has_the_name_and_the_settings_of_a_measure_alone(measure: Measure, settings: dict[str, Any]) -> None:
    assert to_dict(measure) == settings
    assert from_json(Measure, json.dumps(settings)) == measure


WRONG_JSON: list[tuple[dict[str, Any], str]] = [
    ({}, "expected the name of a measure, got None"),
    (
        {"name": "cka", "kernel": "rbf", "neighbours": 3},
        "unknown key neighbours, expected normalize, kernel, estimator, bandwidth_multiplier",
    ),
    ({"name": "cka", "kernel": "cosine"}, 'expected kernel to be one of linear, rbf, got "cosine"'),
    ({"name": "procrustess"}, "expected a measure, one of cka, .*, got 'procrustess'; did you mean 'procrustes'"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG_JSON)
def test_wrong_json_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(Measure, json.dumps(settings))


def test_what_another_package_registers_is_a_measure_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "from layerprobe.similarity.measures import Procrustes\nclass Toy: name = 'toy'"
    install(monkeypatch, tmp_path, MEASURES, source, {"toy": "Toy", "other": "Procrustes"})
    for name, kind in (("toy", "toy_plugin:Toy"), ("other", "layerprobe.similarity.measures:Procrustes")):
        with pytest.raises(DataError, match=f"expected {kind} to be a Measure with the name '{name}'"):
            measure_class(name)
    monkeypatch.undo()
    MEASURES.reload()


def test_a_measure_is_named_in_its_module_and_its_row_alone() -> None:
    assert set(naming(BESIDE_CKA)) == {"layerprobe/similarity/values.py", "layerprobe/similarity/measures.py"}
