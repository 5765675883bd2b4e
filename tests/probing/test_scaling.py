"""Scores and intervals do not depend on the shift, the unit or the dtype of embeddings and targets."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from layerprobe.comparison import arrays
from layerprobe.comparison.arrays import as_layers
from layerprobe.probing.linear import scaled
from layerprobe.probing.run import probe
from layerprobe.probing.values import Probing
from tests.probing.data import layered, scores_of

N = 90
EMBEDDINGS, SIGNAL = layered(N, width=8, strengths=(0.2, 1.0, 0.6))
SCORES = scores_of(SIGNAL)
CLASSES = np.where(SCORES > 0, "high", "low")
TARGETS: dict[str, Any] = {"scores": SCORES, "classes": CLASSES, "labels": (SIGNAL[:, :2] > 0).astype(int)}


@pytest.fixture(scope="module", autouse=True)
def few_sets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.probing.probes.SETS", 3)
        yield


def probed(embeddings: Any, targets: Any, **how: Any) -> Probing:
    return probe(embeddings, targets, foldings=1, cv=3, **how)


def numbers(result: Probing) -> list[float]:
    """Return all scores and ends of intervals, of the weighted sum, too."""
    assert result.summed is not None
    rows = [*result.layers, result.summed]
    ends = [end for row in rows if row.error for end in row.error.interval]
    return [*(value for row in rows for value in row.metrics.values()), *ends, *(row.behind or 0 for row in rows)]


@functools.cache
def as_they_are(kind: str) -> list[float]:
    return numbers(probed(EMBEDDINGS, TARGETS[kind]))


SHIFTS = np.random.default_rng(3).standard_normal((3, 8))


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(
    ("factor", "shift"),
    [(1.0, 1e6), (1e-300, 0.0), (2.0**-900, 0.0), (1e300, 1.0), (1e-12, -1e4), (-3e20, 1e6), (1e-306, 0.0)],
)
def test_neither_shift_nor_unit_matters(kind: str, factor: float, shift: float) -> None:
    moved = factor * (EMBEDDINGS + shift * SHIFTS)
    np.testing.assert_allclose(numbers(probed(moved, TARGETS[kind])), as_they_are(kind), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("exponent", [-900, 70, 1000])
def test_powers_of_two_change_not_a_digit(exponent: int) -> None:
    assert numbers(probed(np.ldexp(EMBEDDINGS, exponent), SCORES)) == as_they_are("scores")


@pytest.mark.parametrize(("factor", "shift"), [(1e38, 0.0), (1e-38, 0.0), (1e-3, 1.0)])
def test_float32_is_as_float64_of_the_same_numbers(factor: float, shift: float) -> None:
    given = np.clip(factor * EMBEDDINGS + shift, -3e38, 3e38).astype(np.float32)
    for targets in (SCORES, CLASSES):
        assert numbers(probed(given, targets)) == numbers(probed(given.astype(np.float64), targets))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64, np.uint8, np.float16, np.longdouble])
def test_other_dtypes_are_as_float64_of_the_same_numbers(dtype: Any) -> None:
    given = (100 + 10 * EMBEDDINGS).astype(dtype)
    assert numbers(probed(given, SCORES)) == numbers(probed(given.astype(np.float64), SCORES))


def test_large_whole_numbers_keep_what_float32_would_lose() -> None:
    given = np.rint(2**30 + 50 * EMBEDDINGS).astype(np.int64)
    np.testing.assert_allclose(numbers(probed(given, SCORES)), numbers(probed(given - 2**30, SCORES)), rtol=1e-6)


@pytest.mark.parametrize("kind", TARGETS)
def test_one_feature_of_another_scale_is_as_the_others(kind: str) -> None:
    given = EMBEDDINGS.copy()
    given[..., 0] *= 1e200
    given[..., 1] *= 1e-200
    np.testing.assert_allclose(numbers(probed(given, TARGETS[kind])), as_they_are(kind), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("factor", "shift"), [(1e-300, 0.0), (1e300, 0.0), (1.0, 1e9), (-1.0, 0.0)])
def test_the_unit_of_targets_does_not_matter(factor: float, shift: float) -> None:
    transformed = numbers(probed(EMBEDDINGS, factor * SCORES + shift))
    np.testing.assert_allclose(transformed, as_they_are("scores"), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["pairs", "queries"])
def test_cosines_have_no_unit(kind: Any) -> None:
    targets = np.column_stack([np.arange(45), np.arange(45, 90), np.abs(SCORES[:45]) + 0.1])
    plain = probed(EMBEDDINGS, targets, kind=kind)
    for factor in (1e-300, 1e300):
        moved = probed(factor * EMBEDDINGS, targets, kind=kind)
        assert [layer.metrics for layer in moved.layers] == [layer.metrics for layer in plain.layers]
        assert moved.candidates == plain.candidates


def test_a_layer_that_varies_by_rounding_is_scored_and_one_that_does_not_is_left_out() -> None:
    given = np.full((N, 2, 8), 0.1)
    given[:, 1, :4] += 1e-15 * np.rint(SIGNAL)
    result = probed(given, SCORES)
    assert result.left_out == {"layer 0": "it is the same for all 90 samples"}
    assert result.best.metrics["spearman"] > 50


def test_blocks_are_scaled_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = as_layers(1e6 + EMBEDDINGS)[1]
    whole, _ = scaled(layer, shifted=True)
    monkeypatch.setattr(arrays, "NUMBERS", 8 * 7)
    monkeypatch.setattr("layerprobe.probing.linear.NUMBERS", 8 * 7)
    blocks, scale = scaled(layer, shifted=True)
    rows = blocks.rows(slice(0, N))
    np.testing.assert_allclose(rows, whole.rows(slice(0, N)), rtol=1e-6, atol=1e-9)
    assert 0.5 <= np.abs(rows).max() <= 1
    raw = layer.rows(slice(0, N))
    mean, spread = scale.undone(rows.mean(axis=0), rows.std(axis=0))
    np.testing.assert_allclose((mean, spread), (raw.mean(axis=0), raw.std(axis=0)), rtol=1e-9)
