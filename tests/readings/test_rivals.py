"""What others choose a layer by: the numbers of their own code on small arrays, and second formulas.

Reference values: `loes/api.py` of github.com/arnesh2212/loes (MIT), run on these arrays in float64 (isotropy) and
float32 (its first layer's score); the power law of `reptrix/alpha.py` of github.com/arnab39/reptrix, on the eigenvalues
of `np.cov` and the ranks that are said. KITE and what follows LRD have no public code that we know: second formulas.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from scipy import linalg

from layerprobe.encoders.model import Model
from layerprobe.errors import DegenerateLayerError
from layerprobe.extraction.embeddings import extract
from layerprobe.readings.registry import READINGS, RIVALS, alone
from layerprobe.readings.rivals import decay, displacement, isotropy, kite, loes, retention
from layerprobe.readings.source import read_curves
from layerprobe.readings.transferability import item_features
from layerprobe.scoring.transferability import class_columns
from layerprobe.similarity.checks import Array
from layerprobe.tasks.kind import KINDS
from tests.models import N_BLOCKS, TEXTS, given, save_tiny
from tests.toy_task import toy_task_of


def arrays() -> tuple[Array, Array, Array, Array]:
    """Features of 40 items, wide ones of 12, scores and classes of the 40."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 5)) * [3, 2, 1, 0.5, 0.1] + 1
    wide = rng.normal(size=(12, 600))
    scores = features @ [1.0, -1.0, 0.5, 0.0, 2.0] + rng.normal(size=40)
    return features, wide, scores, rng.integers(3, size=40)


def rotation(width: int) -> Array:
    return np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0]


# ---- LOES ------------------------------------------------------------------------------------------------------


def test_isotropy_is_that_of_its_authors() -> None:
    features, wide, *_ = arrays()
    assert isotropy(features) == pytest.approx(0.9331059892796132, rel=1e-9)
    assert isotropy(wide) == pytest.approx(3.0380057359655726, rel=1e-9)


def test_loes_is_that_of_its_authors() -> None:
    features, _, scores, classes = arrays()
    assert loes(features, scores) == pytest.approx(0.9420729875564575, rel=1e-6)
    assert loes(features, class_columns(classes)) == pytest.approx(0.23551256954669952, rel=1e-6)


@drawn(st.floats(-3, 3))
def test_isotropy_does_not_depend_on_axes_or_place(shift: float) -> None:
    features = arrays()[0]
    assert isotropy(features @ rotation(5) + shift) == pytest.approx(isotropy(features), rel=1e-6)
    assert isotropy(features * [1, 1, 1, 1, 9]) != pytest.approx(isotropy(features), rel=0.01)


# ---- KITE ------------------------------------------------------------------------------------------------------


def test_kite_is_a_ratio_of_alignments_of_kernels() -> None:
    features, _, scores, classes = arrays()
    random = np.random.default_rng(3).normal(size=(40, 7))
    centring = np.eye(40) - 1 / 40

    def alignment(first: Array, second: Array) -> float:
        k, other = centring @ first @ first.T @ centring, centring @ second @ second.T @ centring
        return float((k * other).sum() / np.linalg.norm(k) / np.linalg.norm(other))

    for targets in (scores[:, None], class_columns(classes)):
        expected = alignment(features, targets) / alignment(features, random)
        assert kite(features, targets, random) == pytest.approx(expected)
    assert kite(features @ rotation(5), scores, random) == pytest.approx(kite(features, scores, random))


# ---- alpha-ReQ -------------------------------------------------------------------------------------------------


def test_the_decay_is_that_of_reptrix() -> None:
    """Ranks 6 to 54 of 64 eigenvalues, and 6 to 100 of 140."""
    rng = np.random.default_rng(1)
    narrow = rng.normal(size=(300, 64)) * np.arange(1, 65) ** -0.6
    wide = rng.normal(size=(300, 140)) * np.arange(1, 141) ** -0.4
    assert decay(narrow) == pytest.approx(1.2417887552057538, rel=1e-6)
    assert decay(wide) == pytest.approx(0.9027690030067939, rel=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_a_power_law_is_found_again(alpha: float) -> None:
    directions = linalg.hadamard(64)[:, 1:41] * np.arange(1, 41) ** (-alpha / 2)
    assert decay(directions) == pytest.approx(alpha)
    assert decay(7 * directions) == pytest.approx(alpha)


def test_few_eigenvalues_have_no_decay() -> None:
    rng = np.random.default_rng(2)
    assert decay(rng.normal(size=(50, 16))) is None
    assert decay(rng.normal(size=(50, 17))) is not None


# ---- after LRD -------------------------------------------------------------------------------------------------


def test_displacement_is_the_norm_of_the_principal_angles() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=(60, 20)), rng.normal(size=(60, 30))
    spans = [np.linalg.svd(each - each.mean(axis=0), full_matrices=False)[0][:, :10] for each in (first, second)]
    assert displacement(second, first) == pytest.approx(np.linalg.norm(linalg.subspace_angles(*spans)))
    assert displacement(3 * first @ rotation(20) + 1, first) == pytest.approx(0, abs=1e-5)
    assert displacement(second, first) == pytest.approx(displacement(first, second))


def test_retention_counts_neighbours_that_stay() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=(30, 8)), rng.normal(size=(30, 8))
    assert retention(5 * first @ rotation(8), first) == 1

    def nearest(values: Array, text: int) -> set[int]:
        cosine = [values[text] @ other / np.linalg.norm(other) for other in values]
        return set(sorted((i for i in range(30) if i != text), key=lambda i: -cosine[i])[:10])

    kept = [len(nearest(first, text) & nearest(second, text)) / 10 for text in range(30)]
    assert retention(second, first) == pytest.approx(np.mean(kept))


# ---- as readings -----------------------------------------------------------------------------------------------


def test_a_layer_without_variance_is_named() -> None:
    flat, features = np.ones((20, 4)), np.random.default_rng(0).normal(size=(20, 4))
    for number in (isotropy, decay):
        with pytest.raises(DegenerateLayerError, match="layer 3"):
            number(flat, name="layer 3")
    with pytest.raises(DegenerateLayerError, match="layer 3"):
        displacement(flat, features, name="layer 3")
    with pytest.raises(DegenerateLayerError, match="random layer 3"):
        kite(features, features[:, 0], flat, name="layer 3")


def test_without_layer_0_the_first_that_retains_is_layer_2(tmp_path: Path) -> None:
    options = Model(device="cpu", cache_dir=tmp_path / "cache", pooling="cls")
    curve = read_curves(given(str(save_tiny("bert", tmp_path / "bert")), options), TEXTS, ["neighbour retention"])
    retained = curve["neighbour retention"]
    assert retained.first_layer == 2
    assert retained.values[1] == retained.values[2]


def test_they_are_read_by_name_and_stand_in_no_list(tmp_path: Path) -> None:
    assert not set(RIVALS) & {*alone(), *READINGS}
    model, options = str(save_tiny("bert", tmp_path / "bert")), Model(device="cpu", cache_dir=tmp_path / "cache")
    task = toy_task_of("sts", train=48, validation=8, test=8)
    curves = read_curves(given(model, options), TEXTS, list(RIVALS), task=task)
    assert list(curves) == [name for name in RIVALS if name != "alpha-ReQ"], "expected no decay of so few features"
    assert {len(curve.values) for curve in curves.values()} == {N_BLOCKS + 1}
    embedded = extract(given(model, options), list(dict.fromkeys(TEXTS)))
    for layer in range(N_BLOCKS + 1):
        values = embedded.layer(layer)
        assert curves["LOES without labels"].values[layer] == pytest.approx(isotropy(values), rel=1e-5)
        assert curves["neighbour retention"].values[layer] == pytest.approx(
            retention(embedded.layer(max(layer, 1)), embedded.layer(max(layer, 1) - 1))
        )
        moved = displacement(values, embedded.layer(0))
        assert curves["subspace displacement"].values[layer] == pytest.approx(moved, abs=1e-3)
    texts, train = task.train.texts, task.train
    fresh = Model.of(Model(model, random_init=0), options)
    pairs, untrained = extract(given(model, options), texts), extract(fresh, texts)
    kind = KINDS["sts"]
    for layer in range(N_BLOCKS + 1):
        features, random = (
            item_features(
                kind, each.layer(layer)[each.rows(train.first)], each.layer(layer)[each.rows(train.second)], name=""
            )
            for each in (pairs, untrained)
        )
        assert curves["LOES"].values[layer] == pytest.approx(loes(features, train.targets), rel=1e-4)
        assert curves["KITE"].values[layer] == pytest.approx(kite(features, train.targets, random), rel=1e-4)
