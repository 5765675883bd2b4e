"""A caution appears if and only if its cause is there, says where, and is one line."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.similarity.cautions import _inflation, cautions
from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.measures import CKA, SVCCA, MutualKNN, Procrustes
from layerprobe.similarity.values import LayerDiagnostics, Measure
from tests.similarity import oracle

HEALTHY = LayerDiagnostics(
    n_samples=2758,
    n_features=768,
    dtype="float32",
    norm="none",
    duplicates=3,
    constant_features=3,
    mean_norm=15.0,
    mean_cosine=0.6,
    top_dimension_share=0.005,
    top_three_share=0.012,
    effective_rank=120.0,
    intrinsic_dimension=12.0,
    chance_cka=0.02,
)
DEBIASED = CKA()
BIASED = CKA(estimator="biased")
RBF = CKA(kernel="rbf", bandwidth_multiplier=1.0)
NEIGHBOURS = MutualKNN(neighbours=10)
CCA = (SVCCA(),)
UNBIASED = (DEBIASED, BIASED, RBF, NEIGHBOURS)


def zscored(measure: Measure) -> Measure:
    return dataclasses.replace(measure, normalize="zscore")


def layers(*changed: int, **changes: Any) -> tuple[LayerDiagnostics, ...]:
    """Thirteen layers, of which some are changed."""
    return tuple(dataclasses.replace(HEALTHY, **changes) if i in changed else HEALTHY for i in range(13))


def told(measure: Measure, model: tuple[LayerDiagnostics, ...], *, n: int = 2758) -> tuple[str, ...]:
    found = cautions(measure, n, ("electra", model), ("bert", layers()))
    assert all("\n" not in line and line == line.strip() for line in found)
    return found


def gaussian(n: int, d: int, *, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(n, d))


OUTLIER = {"top_dimension_share": 0.3, "top_three_share": 0.32, "chance_cka": 0.003}
THREE_OUTLIERS = {"top_dimension_share": 0.14, "top_three_share": 0.42, "chance_cka": 0.004}
CAUTIONS: list[tuple[Measure, Sequence[int], dict[str, Any], str]] = [
    (
        DEBIASED,
        [4],
        {"duplicates": 28},
        "layer 4 of electra: up to 28 of 2758 texts (layer 4) have the embedding of an",
    ),
    (DEBIASED, [4], {"duplicates": 9, "chance_cka": 0.7}, "layer 4 of electra: up to 9 of 2758 texts"),
    (zscored(BIASED), [3], {"chance_cka": 0.5}, "layer 3 of electra and layer 12 of bert: independent layers"),
    (DEBIASED, [0, *range(9, 13)], OUTLIER, "layers 0 and 9 to 12 of electra: one of 768 features holds 30 % of the"),
    (
        DEBIASED,
        [5],
        THREE_OUTLIERS,
        "layer 5 of electra: three of 768 features hold 42 % of the variance (layer 5) and",
    ),
    (zscored(DEBIASED), [0], {"constant_features": 100}, "layer 0 of electra: up to 100 of 768 features (layer 0) are"),
    (
        NEIGHBOURS,
        [10, 11, 12],
        {"mean_cosine": 0.97},
        "layers 10 to 12 of electra: embeddings point the same way, with",
    ),
    (DEBIASED, range(13), {"dtype": "float16"}, "layers 0 to 12 of electra: embeddings are in float16, with at most"),
    (
        RBF,
        range(13),
        {"dtype": "bfloat16"},
        "layers 0 to 12 of electra: embeddings are in bfloat16, with at most three",
    ),
]
"""Diagnostics just beyond what is healthy."""
NO_CAUTIONS: list[tuple[Measure, dict[str, Any]]] = [
    *((measure, {}) for measure in (*UNBIASED, *map(zscored, UNBIASED))),
    (DEBIASED, {"duplicates": 27}),
    (DEBIASED, {"duplicates": 3, "chance_cka": 0.7}),
    *((zscored(measure), OUTLIER) for measure in UNBIASED if measure != BIASED),
    (DEBIASED, {"constant_features": 100}),
    (zscored(DEBIASED), {"constant_features": 76}),
    (NEIGHBOURS, {"mean_cosine": 0.9}),
    (DEBIASED, {"mean_cosine": 0.97}),
    (RBF, {"mean_cosine": 0.97}),
    (DEBIASED, {"dtype": "float64"}),
]


@pytest.mark.parametrize(("measure", "where", "changes", "start"), CAUTIONS)
def test_a_cause_is_told_with_its_layers(
    measure: Measure, where: Sequence[int], changes: dict[str, Any], start: str
) -> None:
    (line,) = told(measure, layers(*where, **changes))
    assert line.startswith(start)


@pytest.mark.parametrize(("measure", "changes"), NO_CAUTIONS)
def test_healthy_layers_and_causes_that_do_not_matter_have_none(measure: Measure, changes: dict[str, Any]) -> None:
    assert told(measure, layers(4, **changes)) == ()


@pytest.mark.parametrize(
    ("measure", "remedy"),
    [(DEBIASED, "with the kernel rbf, where no text weighs much more"), (RBF, "on more texts")],
)
def test_a_few_texts_that_decide_are_told(measure: Measure, remedy: str) -> None:
    models = ("electra", layers()), ("bert", layers())
    shares = [0.9] * 13, [0.41] * 5 + [0.39, 0.12] + [0.6] * 6
    (line,) = cautions(measure, 2758, *models, effective_shares=shares)
    assert line.startswith("layers 5 and 6 of bert: a few texts dominate: the effective sample")
    assert "12 % of them (layer 6)" in line
    assert f"or compare {remedy}" in line
    (line,) = cautions(measure, 2758, *models, n_groups=300, effective_shares=shares)
    assert "bert: a few groups dominate" in line
    assert cautions(measure, 2758, *models, effective_shares=([0.4] * 13, [1.0] * 13)) == ()


def test_models_without_diagnostics_have_none() -> None:
    for measure in (*UNBIASED, *CCA, Procrustes()):
        assert cautions(measure, 2758, ("electra", ()), ("bert", ())) == ()


@pytest.mark.parametrize("measure", UNBIASED)
def test_few_samples_are_told_whatever_the_measure(measure: Measure) -> None:
    few = [line for line in told(measure, layers(), n=99) if "99 texts are few" in line]
    assert len(few) == 1
    assert not any("are few" in line for line in told(measure, layers(), n=100))


@pytest.mark.parametrize(
    ("n", "alignment", "expected"), [(999, "best-match", 1), (1000, "best-match", 0), (999, None, 0)]
)
def test_a_choice_among_many_is_told(n: int, alignment: Any, expected: int) -> None:
    model = ("electra", layers()), ("bert", layers())
    lines = cautions(DEBIASED, n, *model, alignment=alignment)
    assert sum("largest of several values" in line for line in lines) == expected
    assert cautions(DEBIASED, n, model[0], ("bert", layers()[:1]), alignment=alignment) == ()


def test_the_largest_of_thirteen_independent_layers_is_too_high_as_said() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(30):
        X, Y = rng.normal(size=(100, 32)), rng.normal(size=(13, 100, 32))
        (estimate,) = estimate_cka([("a", [X]), ("b", list(Y))])
        curve = estimate.curve("best-match")
        assert curve.uncertainty is not None
        found.append((curve.values[0], curve.uncertainty.lower[0] > 0))
    excess, above = np.mean(found, axis=0)
    assert 0.02 < excess < 0.03
    assert 0.15 < above < 0.45


@pytest.mark.parametrize(("n", "expected"), [(99, 1), (100, 0), (None, 0)])
def test_few_groups_are_told(n: int | None, expected: int) -> None:
    lines = cautions(DEBIASED, 2758, ("electra", layers()), ("bert", layers()), n_groups=n)
    assert sum(f"{n} groups are few" in line for line in lines) == expected


@pytest.mark.parametrize(("n", "d", "share"), [(300, 200, 0.02), (300, 50, 0.05), (400, 400, 0.05)])
def test_copies_inflate_debiased_cka_as_said(n: int, d: int, share: float) -> None:
    rng = np.random.default_rng(0)
    copies = round(n * share)
    values, predicted = [], []
    for _ in range(40):
        rows = np.concatenate([np.arange(n - copies), rng.choice(n - copies, copies, replace=False)])
        X, Y = rng.normal(size=(2, n - copies, d))[:, rows]
        values.append(oracle.cka(X, Y))
        predicted.append(_inflation(diagnose(X, name="X", norm="none")))
    np.testing.assert_allclose(np.mean(values), np.mean(predicted), rtol=0.2)


def test_the_biased_estimator_is_told_its_chance_level() -> None:
    models = ("electra", layers(3, chance_cka=0.4)), ("bert", layers(7, chance_cka=0.1))
    (line,) = cautions(BIASED, 2758, *models)
    assert line.startswith("layer 3 of electra and layer 7 of bert: independent layers with these spectra would show")
    assert "a biased CKA of 0.20, a baseline of all values: compare with --estimator debiased" in line
    assert cautions(DEBIASED, 2758, *models) == ()
    # layer 0, which is left out, repeats layer 1
    without = ("electra", layers(0, 1, chance_cka=0.4)), ("bert", layers(0, 1, chance_cka=0.1))
    (line,) = cautions(BIASED, 2758, *without, layers=(range(1, 2), range(1, 2)))
    assert line.startswith("layer 1 of electra and layer 1 of bert: ")


@pytest.mark.parametrize(("n", "expected"), [(200, 1), (202, 0)])
def test_many_neighbours_of_few_samples_are_told(n: int, expected: int) -> None:
    lines = told(NEIGHBOURS, layers(), n=n)
    assert len(lines) == expected
    assert all(line.startswith("10 neighbours among 200 texts are many") for line in lines)


@pytest.mark.parametrize("measure", CCA)
def test_canonical_correlations_need_many_more_samples_than_features(measure: Measure) -> None:
    (line,) = told(measure, layers(), n=2758)
    assert line.startswith("electra has 768 features on 2758 texts: independent layers would show canonical corr")
    assert "0.53" in line
    (line,) = told(measure, layers(), n=768)
    assert f"any two layers of full rank then correlate fully, so {measure.title} is meaningless" in line
    assert "use cka, or at least 15361 texts" in line
    assert told(measure, layers(), n=15361) == ()


def test_procrustes_is_told_its_chance_level() -> None:
    (line,) = told(Procrustes(), layers())
    assert line.startswith("electra and bert have layers of effective rank 120 or more: on 2758 texts independent")
    assert "Procrustes similarity of 0.18 or more" in line
    assert told(Procrustes(), layers(), n=40000) == ()


@pytest.mark.parametrize(("n", "d"), [(690, 192), (500, 20), (300, 300)])
def test_the_chance_level_of_procrustes_is_a_little_below_the_truth(n: int, d: int) -> None:
    X = gaussian(n, d)
    others = [gaussian(n, d, seed=seed) for seed in range(1, 11)]
    overlap = np.mean(
        [np.linalg.svd(X.T @ Y, compute_uv=False).sum() / np.linalg.norm(X) / np.linalg.norm(Y) for Y in others]
    )
    told = 8 / (3 * np.pi) * np.sqrt(diagnose(X, name="X", norm="none").effective_rank / (n - 1))
    assert 0.8 * overlap < told < 1.01 * overlap


def test_narrow_models_have_no_outliers() -> None:
    for d in (2, 4, 8, 16):
        layer = diagnose(gaussian(500, d), name="X", norm="none")
        assert cautions(DEBIASED, 500, ("a", (layer,)), ("b", (layer,))) == ()


@pytest.mark.parametrize(("scale", "expected"), [(1, 0), (2, 0), (10, 1), (30, 1)])
def test_a_shared_outlier_is_told_where_it_decides_cka(scale: float, expected: int) -> None:
    """All else independent, the value is what the caution says that the feature makes up."""
    X, Y = gaussian(800, 96), gaussian(800, 96, seed=1)
    Y[:, 0] = X[:, 0] = scale * X[:, 0]
    found = diagnose(X, name="X", norm="none")
    lines = cautions(DEBIASED, 800, ("electra", (found,)), ("bert", (found,)))
    assert len(lines) == 2 * expected
    assert (oracle.cka(X, Y) > 0.25) == bool(expected)


def test_each_model_has_a_line_of_its_own_for_each_cause() -> None:
    model = layers(2, 4, duplicates=300, dtype="float16")
    found = cautions(DEBIASED, 2758, ("electra", model), ("bert", model))
    assert [line.split(": up to")[0].split(": emb")[0] for line in found] == [
        f"layers 2 and 4 of {name}" for name in ("electra", "electra", "bert", "bert")
    ]


def test_a_model_compared_with_itself_is_told_once() -> None:
    model = layers(2, duplicates=300)
    assert len(cautions(DEBIASED, 2758, ("electra", model), ("electra", model))) == 1
