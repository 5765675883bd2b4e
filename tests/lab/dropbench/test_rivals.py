"""What others choose a layer by: the numbers of their own code on small arrays, and second formulas.

Reference values: `loes/api.py` of github.com/arnesh2212/loes (MIT), run on these arrays in float64 (isotropy) and
float32 (its first layer's score); the power law of `reptrix/alpha.py` of github.com/arnab39/reptrix, on the eigenvalues
of `np.cov` and the ranks that are said. KITE and what follows LRD have no public code that we know: second formulas.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from scipy import linalg, optimize, stats

from benchmarks.rival_readings import READINGS as OF_RIVALS
from benchmarks.rival_readings import (
    dataset_entropy,
    decay,
    dime,
    displacement,
    isotropy,
    item_features,
    kite,
    lidar,
    loes,
    log_evidence,
    retention,
)
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.lab.dropbench.bench import RIVALS, published_rules
from layerprobe.prediction.rule import ModelCurves, Rule
from layerprobe.readings.reading import READINGS, LayerCurve
from layerprobe.readings.source import read_curves, text_views
from layerprobe.similarity.checks import Array
from layerprobe.tasks.kind import KINDS
from tests.models import N_BLOCKS, TEXTS, given, save_tiny
from tests.similarity.test_diagnostics import unit, views_of
from tests.toy_task import toy_task_of


def arrays() -> tuple[Array, Array, Array, Array]:
    """Features of 40 items, wide ones of 12, scores and classes of the 40."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 5)) * [3, 2, 1, 0.5, 0.1] + 1
    wide = rng.normal(size=(12, 600))
    scores = features @ [1.0, -1.0, 0.5, 0.0, 2.0] + rng.normal(size=40)
    return features, wide, scores, rng.integers(3, size=40)


def class_columns(classes: Array) -> Array:
    return (classes[:, None] == np.unique(classes)).astype(float)


def rotation(width: int) -> Array:
    return np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0]


def test_isotropy_is_that_of_its_authors() -> None:
    features, wide, *_ = arrays()
    assert isotropy(features) == pytest.approx(0.9331059892796132, rel=1e-9)
    assert isotropy(wide) == pytest.approx(3.0380057359655726, rel=1e-9)


def test_loes_is_that_of_its_authors() -> None:
    features, _, scores, classes = arrays()
    assert loes(features, scores) == pytest.approx(0.9420729875564575, rel=1e-6)
    assert loes(features, class_columns(classes)) == pytest.approx(0.23551256954669952, rel=1e-6)


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


def test_the_decay_is_that_of_reptrix() -> None:
    """Ranks 6 to 54 of 64 eigenvalues, and 6 to 100 of 140."""
    rng = np.random.default_rng(1)
    narrow = rng.normal(size=(300, 64)) * np.arange(1, 65) ** -0.6
    wide = rng.normal(size=(300, 140)) * np.arange(1, 141) ** -0.4
    assert decay(narrow) == pytest.approx(1.2417887552057538, rel=1e-6)
    assert decay(wide) == pytest.approx(0.9027690030067939, rel=1e-6)


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


SHAPES = [(30, 4), (40, 39), (12, 12), (12, 40)]
"""Fewer features than items, as many, and more."""


def data(n: int, d: int, *, seed: int = 0, noise: float = 1.0) -> tuple[Array, Array]:
    """Features of different sizes that do not lie around 0, and scores that partly follow from them."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d)) * rng.gamma(1.0, size=d) + rng.normal(size=d)
    return features, features @ rng.normal(size=d) / math.sqrt(d) + noise * rng.normal(size=n)


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


def entropy_by_hand(matrix: Array) -> float:
    shares = np.linalg.eigvals(matrix / np.trace(matrix)).real
    return -sum(share * math.log(share) for share in shares if share > 1e-13)


@settings(deadline=None)
@drawn(seed=st.integers(0, 2**32 - 1))
def test_dataset_entropy_is_that_of_the_cosines(seed: int) -> None:
    layer = views_of(seed)[0]
    cosines = np.array([[unit(x) @ unit(y) for y in layer] for x in layer])
    assert dataset_entropy(layer) == pytest.approx(entropy_by_hand(cosines), abs=1e-9)


@settings(deadline=None)
@drawn(seed=st.integers(0, 2**32 - 1))
def test_lidar_is_the_rank_of_the_whitened_scatter(seed: int) -> None:
    views = np.apply_along_axis(unit, 2, views_of(seed))
    q, n, d = views.shape
    means = views.mean(axis=0)
    between = sum(np.outer(mean - means.mean(axis=0), mean - means.mean(axis=0)) for mean in means) / n
    within = sum(np.outer(views[v, i] - means[i], views[v, i] - means[i]) for v in range(q) for i in range(n)) / (n * q)
    # a product in another order has the same eigenvalues
    expected = math.exp(entropy_by_hand(np.linalg.inv(within + 1e-4 * np.eye(d)) @ between))
    assert lidar(views) == pytest.approx(expected, rel=1e-6)
    assert 1 - 1e-9 <= lidar(views) <= min(n - 1, d) + 1e-6


@settings(deadline=None)
@drawn(seed=st.integers(0, 2**32 - 1))
def test_dime_is_a_difference_of_joint_entropies(seed: int) -> None:
    views = np.apply_along_axis(unit, 2, views_of(seed))
    n = views.shape[1]
    first, second = views[0] @ views[0].T, views[1] @ views[1].T
    rng = np.random.default_rng(5)
    apart = []
    for _ in range(10):
        moved = np.eye(n)[rng.permutation(n)]
        apart.append(entropy_by_hand(first * (moved @ second @ moved.T)))
    assert dime(views, seed=5) == pytest.approx(sum(apart) / 10 - entropy_by_hand(first * second), abs=1e-9)


def test_they_are_read_beside_those_that_are_registered(tmp_path: Path) -> None:
    assert not set(RIVALS) & set(READINGS)
    model, options = str(save_tiny("bert", tmp_path / "bert")), Model(device="cpu", cache_dir=tmp_path / "cache")
    task = toy_task_of("sts", train=48, validation=8, test=8)
    curves = read_curves(given(model, options), TEXTS, ["mean cosine"], task=task, others=OF_RIVALS)
    # no decay of so few features
    assert list(curves) == ["mean cosine", *(name for name in OF_RIVALS if name != "alpha-ReQ")]
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
        assert curves["LogME"].values[layer] == pytest.approx(log_evidence(features, train.targets), rel=1e-4)
    copies = text_views(list(dict.fromkeys(TEXTS)), n_views=4)
    seen = extract(given(model, options), tuple(dict.fromkeys(copy for each in copies for copy in each)))
    for layer in range(N_BLOCKS + 1):
        rows = np.array([seen.layer(layer)[seen.rows(each)] for each in copies])
        assert curves["LiDAR"].values[layer] == pytest.approx(lidar(rows), rel=1e-4)
        assert curves["DiME"].values[layer] == pytest.approx(dime(rows[:2]), abs=1e-4)


def rule(name: str) -> Rule:
    (found,) = (each for each in published_rules(RIVALS) if each.name == name)
    return found


def kept(name: str, **curves: tuple[float, ...]) -> int:
    names = {"logme": "LogME", "loss": "contrastive loss"}
    model = ModelCurves(
        n_blocks=len(next(iter(curves.values()))) - 1,
        curves={names[each]: LayerCurve(values=values) for each, values in curves.items()},
    )
    (only,) = rule(name).fit([])(model)
    return only


def test_l3prune_takes_the_lowest_loss_of_each_half() -> None:
    losses = (0.0, 5.0, 2.0, 3.0, 1.0, 4.0, 0.5)
    assert kept("L3Prune small", loss=losses) == 2
    assert kept("L3Prune large", loss=losses) == 6
    # of seven blocks the first three are the first half
    assert kept("L3Prune small", loss=(*losses[:4], 0.1, 4.0, 0.5, 9.0)) == 2
    assert kept("L3Prune large", loss=(*losses[:4], 0.1, 4.0, 0.5, 9.0)) == 4


def test_transformer_ranker_takes_the_best_block_by_logme() -> None:
    name = "TransformerRanker bestlayer"
    assert kept(name, logme=(9.0, 1.0, 3.0, 2.0)) == 2
    assert kept(name, logme=(0.0, 1.00001, 1.00004, 0.5)) == 1, "expected four decimals"
