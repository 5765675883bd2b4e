"""InfoNCE is its definition, and knows the answers that are known."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.similarity.diagnostics import TEMPERATURE, infonce_influences
from layerprobe.similarity.inference import curve_uncertainty, mean_spread

Array = NDArray[np.float64]
quick = settings(deadline=None)
seeds = st.integers(0, 2**32 - 1)


def views_of(seed: int, *, noise: float = 0.5) -> Array:
    """More texts than features or fewer; views are a text and noise."""
    rng = np.random.default_rng(seed)
    q, n, d = rng.integers(2, 5), rng.integers(3, 20), rng.integers(3, 20)
    return rng.normal(size=(n, d)) + 1 + noise * rng.normal(size=(q, n, d))


def infonce(views: Array, **settings: Any) -> float:
    return infonce_influences(views, **settings)[0]


def unit(x: Array) -> Array:
    return x / math.sqrt(sum(value**2 for value in x))


# ---- definitions ---------------------------------------------------------------------------------------------


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
        told.append(curve_uncertainty(values[-1], [mean_spread(each) for _, each in found], level=0.95).covariance)
    true, mean = np.cov(np.array(values).T), np.mean(told, axis=0)
    np.testing.assert_allclose(np.sqrt(np.diag(mean)), np.sqrt(np.diag(true)), rtol=0.12)
    together = [each[0, 1] / np.sqrt(each[0, 0] * each[1, 1]) for each in (mean, true)]
    assert together[0] == pytest.approx(together[1], abs=0.15)


# ---- known answers and what they do not depend on ------------------------------------------------------------


def test_known_answers() -> None:
    assert infonce(np.stack([np.eye(30)] * 2), competing=30) == pytest.approx(math.log(30), abs=0.01)
    assert infonce(np.random.default_rng(0).normal(size=(2, 200, 100))) < 0.1


@quick
@given(seed=seeds)
def test_rotations_and_lengths_do_not_matter(seed: int) -> None:
    views = views_of(seed)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(views.shape[2],) * 2))[0]
    scale = rng.gamma(2, size=(*views.shape[:2], 1)) + 0.1
    assert infonce(scale * views @ turn) == pytest.approx(infonce(views), rel=1e-6, abs=1e-9)


# ---- bad input -----------------------------------------------------------------------------------------------


def test_rows_without_a_direction_are_named() -> None:
    views = np.ones((2, 4, 3))
    views[1, 2] = 0
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert is zero in row 2"):
        infonce(views, name="layer 3 of bert")
    views[1, 2] = np.nan
    with pytest.raises(DegenerateLayerError, match="layer 3 of bert"):
        infonce(views, name="layer 3 of bert")


def test_too_few_views_are_refused() -> None:
    with pytest.raises(DataError, match="expected at least two views of two texts of layer 1"):
        infonce(np.ones((1, 4, 3)), name="layer 1")
