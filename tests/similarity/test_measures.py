"""The registry of measures: what each declares is tested from the declaration; maps and z-scores."""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe import context
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.similarity.maps import layer_similarity, measure_layers, zscored
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import Invariance, Normalize, measure_class
from tests.similarity.beside_cka import BESIDE_CKA, NEIGHBOUR_MEASURES, measure_map, measured, svcca

Array = NDArray[np.float64]
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


def rotation(rng: np.random.Generator, d: int) -> Array:
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


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
def test_rows_in_another_order_are_less_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    assert value(name, X, rng.permutation(X)) < 0.2


def test_every_measure_has_a_name_and_a_source() -> None:
    for name in BESIDE_CKA:
        assert measured(name).name == name
        assert measured(name).source


@pytest.mark.parametrize("name", [*NEIGHBOUR_MEASURES])
def test_neighbours_are_at_least_one(name: str) -> None:
    with pytest.raises(DataError, match="expected at least one neighbour, got 0"):
        measured(name, neighbours=0)


@pytest.mark.parametrize("name", ["cka", *BESIDE_CKA])
def test_features_are_raw_or_zscored(name: str) -> None:
    with pytest.raises(DataError, match="normalize is 'unit', expected one of 'raw', 'zscore'"):
        measure_class(name)(normalize="unit")


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


def test_a_map_reports_the_layers_that_are_done() -> None:
    model, reports = np.random.default_rng(0).normal(size=(3, 20, 4)), []
    with context.settings(progress=lambda *report: reports.append(report)):
        measure_map(model, iter(model), measured("procrustes"))
    assert reports == [("comparing layers", pytest.approx(done / 3), 1) for done in (1, 2, 3)]


def test_layers_of_the_model_are_prepared_one_at_a_time() -> None:
    """The second layer is broken, and the first was already compared when it is read."""
    X, reports = np.random.default_rng(0).normal(size=(20, 4)), []
    broken = pytest.raises(DegenerateLayerError, match="layer 1 of bert is the same for all 20 samples")
    with broken, context.settings(progress=lambda *report: reports.append(report)):
        measure_map([X, np.ones((20, 3))], [X], measured("procrustes"), model_name="bert")
    assert len(reports) == 1


@measures
@pytest.mark.parametrize("normalize", ["raw", "zscore"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (np.full((40, 3), 0.1), "is the same for all 40 samples"),
        (np.full((40, 3), np.nan), "has 120 NaN or infinite values, the first in row 0"),
        (np.ones((40, 3, 2)), r"has shape \(40, 3, 2\), expected \(samples, features\)"),
        (np.array([["a"] * 3] * 40), "has dtype <U1, expected real numbers"),
        (np.eye(3), "has 3 samples, expected at least 4"),
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
def test_layers_of_different_samples_are_refused(name: str) -> None:
    X = np.random.default_rng(0).normal(size=(40, 5))
    with pytest.raises(MisalignedSamplesError, match="X has 40 samples, expected the 39 of Y: embed the same texts"):
        value(name, X, X[:39])
    with pytest.raises(MisalignedSamplesError, match="layer 1 of bert has 38 samples, expected the 40 of layer 0 of "):
        measure_map([X, X[:38]], [X], measured(name), model_name="bert")


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


@pytest.mark.parametrize("variance", [0.0, -1.0, 1.1, float("nan")])
def test_the_share_of_variance_is_checked(variance: float) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(DataError, match=f"variance is {variance}, expected a share above 0 and at most 1"):
        svcca(X, X, variance=variance)


@pytest.mark.parametrize("side", ["model_name", "reference_name"])
def test_a_model_without_layers_is_refused(side: str) -> None:
    X = np.random.default_rng(0).normal(size=(1, 20, 3))
    model, reference = ([], X) if side == "model_name" else (X, [])
    with pytest.raises(DataError, match="bert has no layers, expected at least one"):
        measure_map(model, reference, measured("procrustes"), **{side: "bert"})


def test_cka_is_sent_to_its_own_map() -> None:
    X = np.random.default_rng(0).normal(size=(1, 20, 3))
    with pytest.raises(DataError, match=r"expected a measure of two layers, got CKA\(.*\); for CKA use estimate_cka"):
        measure_layers(X, X, CKA())


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


def test_a_name_is_no_measure() -> None:
    with pytest.raises(DataError, match=r"expected a measure of two layers, got 'procrustes'"):
        measure_map([np.eye(9, 3)], [np.eye(9, 4)], "procrustes")  # type: ignore[arg-type]
