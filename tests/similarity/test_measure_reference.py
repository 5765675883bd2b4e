"""What public implementations return for the measures beside CKA, and why some of them are wrong.

A peer that is wrong is reproduced to the last digit by its mistake, so that the cause is known and not guessed.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.measures.cca import principal_subspace
from layerprobe.similarity.measures.neighbours import CKNNA
from tests.similarity.beside_cka import cknna, mutual_knn, procrustes, pwcca, rsa, svcca

Array = NDArray[np.float64]
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


def test_rsa_agrees_with_resi(case: Case) -> None:
    X, Y, peers = case
    np.testing.assert_allclose(rsa(X, Y), peers["ReSi RSA corr/spearman"], rtol=0, atol=1e-10)


def test_mutual_knn_agrees_with_platonic_on_unit_rows(case: Case) -> None:
    X, Y, peers = case
    expected = peers["platonic mutual_knn k=10 (L2-normalised)"]  # a float32 mean
    np.testing.assert_allclose(mutual_knn(X, Y), expected, rtol=0, atol=1e-7)


def test_mutual_knn_of_inner_products_is_another_number(case: Case) -> None:
    """Platonic leaves the norms to its caller; without them, rows with a large one are everyone's neighbours."""
    X, Y, peers = case
    nearest = []
    for Z in (X, Y):
        products = Z @ Z.T
        np.fill_diagonal(products, -np.inf)
        nearest.append(np.argsort(-products, axis=1)[:, :10])
    shared = [len(set(first) & set(second)) / 10 for first, second in zip(*nearest, strict=True)]
    np.testing.assert_allclose(np.mean(shared), peers["platonic mutual_knn k=10"], rtol=0, atol=1e-7)
    assert abs(np.mean(shared) - mutual_knn(X, Y)) > 1e-3


def test_cknna_is_that_of_platonic_but_for_its_epsilon(case: Case) -> None:
    X, Y, peers = case
    n = len(X)
    x, y = (CKNNA(neighbours=10).prepare(Z, name="Z")[1] / (n * (n - 3)) for Z in (X, Y))
    with_epsilon = cknna(X, Y) * np.sqrt(x * y) / (np.sqrt(x * y) + 1e-6)
    np.testing.assert_allclose(with_epsilon, peers["platonic cknna k=10 (L2-normalised)"], rtol=0, atol=1e-6)


def test_resi_keeps_one_component_where_svcca_keeps_dozens(tall: Case) -> None:
    """It compares a cumulative share with 0.99 times the total variance: never reached, so argmax gives the first."""
    X, Y, peers = tall
    np.testing.assert_allclose(svcca(X, Y, variance=1e-9), peers["ReSi SVCCA"], rtol=0, atol=1e-6)
    assert min(principal_subspace(Z, name="Z", variance=0.99).basis.shape[1] for Z in (X, Y)) >= 32
    assert svcca(X, Y) > 0.44


def test_svcca_of_the_first_case() -> None:
    X, Y, _ = load(TALL[0])
    np.testing.assert_allclose(svcca(X, Y), 0.8699613818473892, rtol=0, atol=1e-10)


def test_anatome_takes_another_share_for_svcca(tall: Case) -> None:
    """Of singular values, not of their squares; of the layer as it is, not centred; and stops one short of it."""
    X, Y, peers = tall
    reduced = []
    for Z in (X, Y):
        _, scales, right = np.linalg.svd(Z, full_matrices=False)
        scores = Z @ right[: int((np.cumsum(scales) / scales.sum() < 0.99).sum())].T
        reduced.append(scores - scores.mean(axis=0))
    value = svcca(*reduced, variance=1)
    np.testing.assert_allclose(value, peers["anatome svcca sim 0.99"], rtol=0, atol=1e-10)
    assert abs(value - svcca(X, Y)) > 5e-4


def test_canonical_correlations_are_those_of_netrep(tall: Case) -> None:
    """Its cosine is their sum over the root of the two numbers of features, not their mean."""
    X, Y, peers = tall
    d, e = X.shape[1], Y.shape[1]
    cosine = svcca(X, Y, variance=1) * min(d, e) / np.sqrt(d * e)
    np.testing.assert_allclose(
        np.arccos(cosine), peers["netrep LinearMetric(alpha=0) angular (CCA)"], rtol=0, atol=1e-8
    )


def variates(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """Maps from X to its canonical variates, the same without whitening, and the correlations."""
    first, second = (np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False) for Z in (X, Y))
    directions, correlations, _ = np.linalg.svd(first.U.T @ second.U, full_matrices=False)
    return first.Vh.T / first.S @ directions, first.Vh.T @ directions, correlations


def weighted(weights: Array, correlations: Array) -> float:
    return float(weights @ correlations / weights.sum())


def projections(directions: Array, X: Array) -> Array:
    """Sum over features of |<q, x_j>|, for directions over samples after Gram-Schmidt."""
    return np.asarray(np.abs(np.linalg.qr(directions).Q.T @ X).sum(axis=1))


def test_pwcca_is_that_of_the_first_google_code_on_centred_layers(tall: Case) -> None:
    """That code adds the means to the variates and leaves them in the layer; centred, it is the paper's formula."""
    X, Y, _ = tall
    x = X - X.mean(axis=0)
    maps, _, correlations = variates(X, Y)
    np.testing.assert_allclose(pwcca(X, Y), weighted(projections(x @ maps, x), correlations), rtol=0, atol=1e-10)


def test_resi_and_the_last_google_code_weight_what_are_no_canonical_variates(tall: Case) -> None:
    """Their `coef_x` lacks the whitening, and means are added, so that the arbitrary signs of an SVD count.

    With the signs of their own chain of np.cov, pinv, eigh and svd the peer's value comes out to 1e-14; here other
    signs are tried.
    """
    X, Y, peers = tall
    _, unwhitened, correlations = variates(X, Y)
    rng = np.random.default_rng(0)
    values = []
    for _ in range(20):
        directions = (X - X.mean(axis=0)) @ (unwhitened * rng.choice([-1, 1], size=unwhitened.shape[1]))
        values.append(weighted(projections(directions + X.mean(axis=0), X), correlations))
    assert np.ptp(values) > 1e-4
    assert min(values) - 0.003 < peers["ReSi PWCCA"] < max(values) + 0.003
    assert abs(peers["ReSi PWCCA"] - pwcca(X, Y)) > 5e-3


def test_anatome_sums_over_samples_where_the_paper_sums_over_features(tall: Case) -> None:
    """Its weights are sum_i |(X q)_i|, with Gram-Schmidt on the maps and the layer not centred."""
    X, Y, peers = tall
    maps, _, correlations = variates(X, Y)
    weights = np.abs(X @ np.linalg.qr(maps).Q).sum(axis=0)
    np.testing.assert_allclose(weighted(weights, correlations), peers["anatome pwcca sim (svd)"], rtol=0, atol=1e-10)
    assert abs(weighted(weights, correlations) - pwcca(X, Y)) > 1e-3


def test_pwcca_of_the_first_case() -> None:
    X, Y, _ = load(TALL[0])
    np.testing.assert_allclose(pwcca(X, Y), 0.8792223166743343, rtol=0, atol=1e-10)


def test_fewer_samples_than_features_have_no_canonical_correlations() -> None:
    """Independent layers: anatome calls them the same layer, netrep finds an angle of 0; two peers refuse as well."""
    X, Y, peers = load(WIDE)
    assert peers["anatome svcca sim 0.99"] > 1 - 1e-12
    assert peers["netrep LinearMetric(alpha=0) angular (CCA)"] < 1e-7
    with pytest.raises(DegenerateLayerError, match="X and Y keep 58 and 58 dimensions of 60 samples, expected at most"):
        svcca(X, Y)
    with pytest.raises(DegenerateLayerError, match="X and Y keep 59 and 59 dimensions of 60 samples, expected at most"):
        pwcca(X, Y)
