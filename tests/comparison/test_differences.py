"""Two saved results by layer: errors of shared items in pairs, and of all layers together."""

import base64
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import layerprobe as lp
from layerprobe.comparison.differences import Differences, compare_results
from layerprobe.errors import DataError
from layerprobe.stats.crossed import Links, crossed
from layerprobe.stats.values import ItemInfluences, ScoredLayers
from tests.models import save_tiny

Array = NDArray[np.float64]
N, LAYERS = 200, 4


class Result:
    """What has scores by layer, as results have them."""

    def __init__(self, scored: ScoredLayers) -> None:
        self.scored_layers = scored


class Other(Result):
    """Another kind of result."""


def result(
    right: Array, *, seeds: Sequence[int] = (), digest: str = "a", links: Links | None = None, saved: bool = True
) -> Result:
    """Return the result of whether each item is right, (layers, seeds, items)."""
    psi = 100 * (right - right.mean(axis=2, keepdims=True))
    by_seed = 100 * right.mean(axis=2)
    errors = [
        crossed(values.tolist(), of_layer, links=links, metric="accuracy", difference=False)
        for values, of_layer in zip(by_seed, psi, strict=True)
    ]
    scored = ScoredLayers(
        model="org/model",
        task="task",
        split="test",
        primary="accuracy",
        unit="text",
        scores={layer: tuple(values) for layer, values in enumerate(by_seed.tolist())},
        seeds={layer: tuple(seeds) for layer in range(len(right))} if seeds else {},
        errors={layer: error for layer, error in enumerate(errors) if error},
        influences=ItemInfluences.of(psi.reshape(-1, right.shape[2]), digest=digest, links=links) if saved else None,
    )
    return Result(scored)


def drawn(rng: np.random.Generator, truth: Array, *, ease: Array, n_seeds: int = 1, spread: float = 0.0) -> Array:
    """Return whether items are right: by how easy each is, for all layers, and by what each seed adds to its layer."""
    of_seeds = rng.normal(0, spread, (len(truth), n_seeds, 1))
    chances = np.clip(truth[:, None, None] + ease + of_seeds, 0, 1)
    right: Array = (rng.random((len(truth), n_seeds, ease.shape[-1])) < chances).astype(float)
    return right


SAME, OTHER = (0, 1, 2), (3, 4, 5)


@pytest.mark.parametrize(
    ("seeds", "others", "grouped"), [((), (), False), ((), (), True), (SAME, SAME, False), (SAME, OTHER, False)]
)
def test_all_layers_are_covered_together(seeds: tuple[int, ...], others: tuple[int, ...], grouped: bool) -> None:
    rng, truth = np.random.default_rng(5), np.array([[0.5, 0.55, 0.6, 0.65], [0.55, 0.55, 0.58, 0.7]])
    covered, draws = 0, 200
    with_seeds = {"n_seeds": 3, "spread": 0.03} if seeds else {}
    links = Links(sides=(np.repeat(np.arange(N // 4), 4),)) if grouped else None
    for _ in range(draws):
        ease = np.repeat(rng.uniform(-0.25, 0.25, N // 4), 4) if grouped else rng.uniform(-0.25, 0.25, N)
        a, b = (drawn(rng, of, ease=ease, **with_seeds) for of in truth)  # type: ignore[arg-type]
        differences = compare_results(result(a, seeds=seeds, links=links), result(b, seeds=others, links=links))
        inside = [
            error is not None and error.interval[0] <= value <= error.interval[1]
            for error, value in zip(differences.errors, (100 * (truth[1] - truth[0])).tolist(), strict=True)
        ]
        covered += all(inside)
    assert covered / draws >= 0.93


def test_shared_items_give_narrower_intervals_than_independent_ones() -> None:
    rng = np.random.default_rng(0)
    shared = rng.random((LAYERS, 1, N)) < 0.7
    a, b = ((shared ^ (rng.random(shared.shape) < 0.05)).astype(float) for _ in range(2))
    paired = compare_results(result(a), result(b))
    alone = compare_results(result(a, saved=False), result(b, saved=False))
    assert paired.values == alone.values
    assert (paired.n_items, alone.n_items) == (N, None)
    for one, other in zip(paired.errors, alone.errors, strict=True):
        assert one is not None
        assert other is not None
        assert one.standard_error < 0.8 * other.standard_error
    assert "both results have the same texts" in paired.notes[0]
    assert "treated as independent" in alone.notes[0]


def test_the_error_is_that_of_the_items_in_pairs() -> None:
    rng = np.random.default_rng(1)
    a, b = ((rng.random((LAYERS, 1, N)) < 0.6).astype(float) for _ in range(2))
    for error, x, y in zip(compare_results(result(a), result(b)).errors, a, b, strict=True):
        assert error is not None
        assert error.standard_error == pytest.approx(100 * np.std(y - x, ddof=1) / np.sqrt(N), rel=1e-3)


def test_layers_in_common_are_compared_and_others_named() -> None:
    right = (np.random.default_rng(2).random((LAYERS, 1, N)) < 0.6).astype(float)
    differences = compare_results(result(right), result(right[:2]), names=("long", "short"))
    assert differences.layers == (0, 1)
    assert differences.notes[-1] == "layers only in long are left out: 2, 3"
    assert differences.summary == "No layer differs significantly (not decided at 95 %, all layers together)"


def test_headlines_name_the_layers_that_differ() -> None:
    right = (np.random.default_rng(2).random((LAYERS, 1, N)) < 0.5).astype(float)
    other = right.copy()
    other[1:3] = 1.0
    compared = compare_results(result(right), result(other), names=("before", "after"))
    assert compared.summary == "after scores higher at layers 1 and 2 (95 % sure, all layers together)"
    assert compare_results(result(other), result(right), names=("before", "after")).summary.startswith(
        "after scores lower at layers 1 and 2 "
    )
    other[0] = 0.0
    mixed = compare_results(result(right), result(other), names=("before", "after"))
    assert mixed.summary.startswith("after: higher at layers 1 and 2, lower at 0 ")
    unknown = dataclasses.replace(mixed, errors=(None,) * LAYERS)
    assert unknown.summary == "Standard errors are unknown"


def changed(made: Result, **changes: object) -> Result:
    return type(made)(dataclasses.replace(made.scored_layers, **changes))  # type: ignore[arg-type]


def test_what_cannot_be_compared_is_refused_in_one_line() -> None:
    right = (np.random.default_rng(3).random((LAYERS, 1, N)) < 0.6).astype(float)
    made = result(right)
    for other, words in (
        (Other(made.scored_layers), "of one kind, got Result and Other"),
        (changed(made, primary="f1"), "of one metric, got accuracy and f1"),
        (changed(made, split="validation"), "of one split, got test and validation"),
        (result(right, digest="b"), "got task and task, which hold different items: score both on one task"),
        (result(right[:, :, 1:]), "which hold different items"),
        (changed(result(right, saved=False), task="other"), "on the same items, got task and other"),
        (changed(made, scores={9: (1.0,)}), "layers in common, got none"),
        (changed(made, scores={0: (1.0,)}), r"influences on 1 scores of task, got 4"),
        ("model", "score, probe, finetune or find, got a str"),
    ):
        with pytest.raises(DataError, match=words):
            compare_results(made, other)


def test_influences_are_read_back_as_far_as_half_precision_goes() -> None:
    rng = np.random.default_rng(0)
    psi, sides = rng.normal(0, 80, (3, 50)), (np.arange(50) % 7, 2**40 + np.arange(50) % 11)
    influences = ItemInfluences.of(psi, digest="", links=Links(sides=sides))
    assert influences is not None
    assert influences.links is not None
    np.testing.assert_allclose(influences.rows, psi, rtol=1e-3, atol=0.02)
    np.testing.assert_array_equal(influences.links.sides[0], sides[0])
    np.testing.assert_array_equal(influences.links.sides[1] - 7, sides[1] - 2**40)
    np.testing.assert_allclose(
        influences.links.products(psi), Links(sides=(sides[0], sides[1] - 2**40 + 7)).products(psi)
    )
    assert ItemInfluences.of(np.zeros((2, 2**21 + 1)), digest="", links=None) is None
    for text in ("no base64!", "AAAA", base64.b64encode(np.full((3, 50), np.nan, "<f2").tobytes()).decode()):
        with pytest.raises(DataError, match="cannot read the influences of 50 items: "):
            _ = dataclasses.replace(influences, influences=text).rows
    many = base64.b64encode(np.full((2, 50), 2**31 - 1, "<i4").tobytes()).decode()
    with pytest.raises(DataError, match="influences of 50 items: a number is out of range"):
        _ = dataclasses.replace(influences, texts=many).links


def test_saved_scores_and_probings_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))
    words = [f"{a} {b} c" for a in "abcdef" for b in "ghijklmno"]
    pairs = enumerate(itertools.pairwise(words))
    rows = [{"sentence1": one, "sentence2": two, "score": i % 6} for i, (one, two) in pairs]
    task = lp.load_task(rows, name="rows")
    models = [str(save_tiny("bert", tmp_path / f"m{seed}", seed=seed)) for seed in (0, 1)]
    for run in (lp.score, lp.probe):
        made = [run(model, task) for model in models]
        read = [lp.load(lp.save(one, tmp_path / f"{i}.json")) for i, one in enumerate(made)]
        result = lp.compare(*read)
        assert isinstance(result, Differences)
        assert result.n_items == len(rows)
        assert all(error is not None for error in result.errors)
        assert lp.load(lp.save(result, tmp_path / "found.json")) == result
    with pytest.raises(DataError, match=r"find, got a str: lp\.load reads what"):
        lp.compare(read[0], models[0])
    with pytest.raises(DataError, match="expected no texts, measure"):
        lp.compare(read[0], read[1], task)


def test_probings_of_arrays_have_the_errors_of_items_and_foldings() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(size=120)
    noise = rng.normal(size=(2, 120, 2, 3))
    layers = [targets[:, None, None] + spread * of for spread, of in zip((1.0, 2.0), noise, strict=True)]
    result = lp.compare(*(lp.probe(of, targets, weighted_sum=False) for of in layers))
    assert isinstance(result, Differences)
    assert [error and error.sign for error in result.errors] == [-1, -1]
    assert "over new samples and new foldings" in result.notes[0]
    assert [error and (error.n_items, error.n_seeds) for error in result.errors] == [(120, 3)] * 2
    other = lp.probe(layers[1], targets[::-1].copy(), weighted_sum=False)
    with pytest.raises(DataError, match="which hold different items"):
        lp.compare(lp.probe(layers[0], targets, weighted_sum=False), other)
