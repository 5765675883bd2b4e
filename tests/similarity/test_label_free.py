"""Dataset entropy, InfoNCE, LiDAR and DiME are their definitions, and know the answers that are known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.inference import curve_uncertainty
from layerprobe.similarity.label_free import (
    RIDGE,
    SHUFFLES,
    TEMPERATURE,
    dataset_entropy,
    dime,
    infonce,
    infonce_influences,
    lidar,
)

Array = NDArray[np.float64]
quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
OF_VIEWS = (infonce, lidar, dime)


def views_of(seed: int, *, noise: float = 0.5) -> Array:
    """More texts than features or fewer; views are a text and noise."""
    rng = np.random.default_rng(seed)
    q, n, d = rng.integers(2, 5), rng.integers(3, 20), rng.integers(3, 20)
    return rng.normal(size=(n, d)) + 1 + noise * rng.normal(size=(q, n, d))


def unit(x: Array) -> Array:
    return x / math.sqrt(sum(value**2 for value in x))


def entropy_by_hand(matrix: Array) -> float:
    shares = np.linalg.eigvals(matrix / np.trace(matrix)).real
    return -sum(share * math.log(share) for share in shares if share > 1e-13)


# ---- definitions ---------------------------------------------------------------------------------------------


@quick
@given(seed=seeds)
def test_dataset_entropy_is_that_of_the_cosines(seed: int) -> None:
    layer = views_of(seed)[0]
    cosines = np.array([[unit(x) @ unit(y) for y in layer] for x in layer])
    assert dataset_entropy(layer) == pytest.approx(entropy_by_hand(cosines), abs=1e-9)


@quick
@given(seed=seeds)
def test_infonce_is_a_classification_of_the_other_view(seed: int) -> None:
    views = views_of(seed)
    n = views.shape[1]
    found = 0.0
    for x, y in ((views[0], views[1]), (views[1], views[0])):
        for i in range(n):
            weights = [math.exp(unit(x[i]) @ unit(other) / TEMPERATURE) for other in y]
            found += math.log(weights[i] / sum(weights)) / (2 * n)
    assert infonce(views, competing=n) == pytest.approx(math.log(n) + found, abs=1e-9)


def test_the_number_of_texts_does_not_change_what_infonce_is_of() -> None:
    """The mean over samples of 64, 128, 256 and 512 texts is that of 256 competing ones."""
    rng = np.random.default_rng(0)
    found = {}
    for n in (64, 128, 256, 512):
        texts = rng.standard_normal((40, 1, n, 16))
        samples = texts + 0.7 * rng.standard_normal((40, 2, n, 16))
        found[n] = np.mean([infonce(views, competing=256) for views in samples])
    np.testing.assert_allclose(list(found.values()), found[256], atol=0.08)
    own = np.mean([infonce(views[:, :64], competing=64) for views in samples])
    assert abs(own - found[256]) > 0.3  # of as many as there are, it is another number


def test_more_texts_than_compete_are_divided_at_random() -> None:
    views = views_of(3)[:, :12]
    value, influences = infonce_influences(views, competing=5)
    order = np.random.default_rng(0).permutation(views.shape[1])
    parts = np.array_split(order, -(-len(order) // 5))
    expected = np.average([infonce(views[:, rows], competing=5) for rows in parts], weights=list(map(len, parts)))
    assert value == pytest.approx(expected)
    assert influences.sum() == pytest.approx(0, abs=1e-9)


@quick
@given(seed=seeds)
def test_an_influence_on_infonce_is_what_leaving_out_a_text_takes_away(seed: int) -> None:
    views = views_of(seed)
    n = views.shape[1]
    found, influences = infonce_influences(views)
    assert found == infonce(views)
    left = np.array([infonce(np.delete(views, text, axis=1)) for text in range(n)])
    np.testing.assert_allclose(influences, (n - 1) * (left.mean() - left), atol=1e-8)


def test_copies_of_a_text_have_finite_influences() -> None:
    views = np.stack([np.repeat(np.eye(3), 4, axis=0)] * 2)
    found, influences = infonce_influences(views)
    # of 512 competing texts a quarter of the 11 others of 12 are copies
    assert found == pytest.approx(math.log(512 / (1 + 511 * 3 / 11)), abs=0.01)
    assert np.isfinite(influences).all()


def test_errors_of_infonce_are_those_of_other_texts() -> None:
    """InfoNCE of 300 samples varies as the errors say, and two layers together as they say."""
    values, told = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        texts = rng.standard_t(8, size=(150, 12))
        layers = [texts + noise * rng.standard_normal((2, 150, 12)) for noise in (0.5, 1.0)]
        found = [infonce_influences(layer) for layer in layers]
        values.append([value for value, _ in found])
        told.append(curve_uncertainty(values[-1], [each for _, each in found], level=0.95).covariance)
    true, mean = np.cov(np.array(values).T), np.mean(told, axis=0)
    np.testing.assert_allclose(np.sqrt(np.diag(mean)), np.sqrt(np.diag(true)), rtol=0.12)
    together = [each[0, 1] / np.sqrt(each[0, 0] * each[1, 1]) for each in (mean, true)]
    assert together[0] == pytest.approx(together[1], abs=0.15)


@quick
@given(seed=seeds)
def test_lidar_is_the_rank_of_the_whitened_scatter(seed: int) -> None:
    views = np.apply_along_axis(unit, 2, views_of(seed))
    q, n, d = views.shape
    means = views.mean(axis=0)
    between = sum(np.outer(mean - means.mean(axis=0), mean - means.mean(axis=0)) for mean in means) / n
    within = sum(np.outer(views[v, i] - means[i], views[v, i] - means[i]) for v in range(q) for i in range(n)) / (n * q)
    # a product in another order has the same eigenvalues
    expected = math.exp(entropy_by_hand(np.linalg.inv(within + RIDGE * np.eye(d)) @ between))
    assert lidar(views) == pytest.approx(expected, rel=1e-6)
    assert 1 - 1e-9 <= lidar(views) <= min(n - 1, d) + 1e-6


@quick
@given(seed=seeds)
def test_dime_is_a_difference_of_joint_entropies(seed: int) -> None:
    views = np.apply_along_axis(unit, 2, views_of(seed))
    n = views.shape[1]
    first, second = views[0] @ views[0].T, views[1] @ views[1].T
    rng = np.random.default_rng(5)
    apart = []
    for _ in range(SHUFFLES):
        moved = np.eye(n)[rng.permutation(n)]
        apart.append(entropy_by_hand(first * (moved @ second @ moved.T)))
    assert dime(views, seed=5) == pytest.approx(sum(apart) / SHUFFLES - entropy_by_hand(first * second), abs=1e-9)


# ---- known answers and what they do not depend on ------------------------------------------------------------


def test_known_answers() -> None:
    assert dataset_entropy(np.diag([1.0, 2.0, 3.0, 4.0])) == pytest.approx(math.log(4))
    assert dataset_entropy(np.outer([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 1.0])) == pytest.approx(0, abs=1e-12)
    same = np.stack([np.eye(30)] * 2)
    assert infonce(same, competing=30) == pytest.approx(math.log(30), abs=0.01)
    # ten topics of three texts: both views agree on them
    assert dime(np.repeat(same[:, :10], 3, axis=1)) == pytest.approx(math.log(30) - math.log(10), abs=0.2)
    rng = np.random.default_rng(0)
    unrelated = rng.normal(size=(2, 200, 100))
    assert infonce(unrelated) < 0.1
    assert dime(unrelated) == pytest.approx(0, abs=0.01)
    # texts that differ in three directions, whatever their views do in the others
    means = np.c_[rng.normal(size=(200, 3)), np.zeros((200, 5))]
    noise = 0.01 * rng.normal(size=(4, 200, 8))
    assert lidar(means + noise) == pytest.approx(3, abs=0.3)


@quick
@given(seed=seeds)
def test_rotations_and_lengths_do_not_matter(seed: int) -> None:
    views = views_of(seed)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(views.shape[2],) * 2))[0]
    scale = rng.gamma(2, size=(*views.shape[:2], 1)) + 0.1
    for measure in OF_VIEWS:
        assert measure(scale * views @ turn) == pytest.approx(measure(views), rel=1e-6, abs=1e-9)
    assert dataset_entropy((scale * views @ turn)[0]) == pytest.approx(dataset_entropy(views[0]), abs=1e-9)


def test_float32_blocks_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = np.random.default_rng(3).normal(size=(50, 7)).astype(np.float32)
    whole = dataset_entropy(layer)
    monkeypatch.setattr("layerprobe.similarity.diagnostics.BLOCK", 30)
    assert dataset_entropy(layer) == pytest.approx(whole, abs=1e-12)


# ---- bad input -----------------------------------------------------------------------------------------------


def test_rows_without_a_direction_are_named() -> None:
    layer = np.ones((4, 3))
    layer[2] = 0
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert has 1 rows of zeros"):
        dataset_entropy(layer, name="layer 3 of bert")
    layer[2] = np.nan
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert"):
        dataset_entropy(layer, name="layer 3 of bert")


@pytest.mark.parametrize("measure", OF_VIEWS)
def test_too_few_views_are_refused(measure: Callable[..., float]) -> None:
    with pytest.raises(DataError, match="expected at least two views of two texts of layer 1"):
        measure(np.ones((1, 4, 3)), name="layer 1")


def test_texts_that_do_not_differ_have_no_lidar() -> None:
    with pytest.raises(DegenerateLayerError, match="layer 1 has one mean"):
        lidar(np.ones((2, 4, 3)), name="layer 1")
