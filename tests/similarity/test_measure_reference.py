"""What public implementations return for the measures beside CKA, and why some of them are wrong.

A peer that is wrong is reproduced to the last digit by its mistake, so that the cause is known and not guessed.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.measures import principal_subspace
from tests.similarity.beside_cka import mutual_knn, procrustes, svcca

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


def test_resi_keeps_one_component_where_svcca_keeps_dozens(tall: Case) -> None:
    """It compares a cumulative share with 0.99 times the total variance: never reached, so argmax gives the first."""
    X, Y, peers = tall
    np.testing.assert_allclose(svcca(X, Y, variance=1e-9), peers["ReSi SVCCA"], rtol=0, atol=1e-6)
    assert min(principal_subspace(Z, name="Z", variance=0.99).shape[1] for Z in (X, Y)) >= 32
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


def test_fewer_samples_than_features_have_no_canonical_correlations() -> None:
    """Independent layers: anatome calls them the same layer, netrep finds an angle of 0; two peers refuse as well."""
    X, Y, peers = load(WIDE)
    assert peers["anatome svcca sim 0.99"] > 1 - 1e-12
    assert peers["netrep LinearMetric(alpha=0) angular (CCA)"] < 1e-7
    with pytest.raises(DegenerateLayerError, match="X and Y keep 58 and 58 dimensions of 60 samples, expected at most"):
        svcca(X, Y)
