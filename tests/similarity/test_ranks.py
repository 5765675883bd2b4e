"""Errors of effective ranks: the derivative that they are, a second way to count, and how ranks really vary."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import entr

from layerprobe.checks import LEVEL
from layerprobe.similarity.diagnostics import diagnose, rank_influences
from layerprobe.similarity.inference import curve_uncertainty, mean_spread
from layerprobe.similarity.values import CurveUncertainty

Array = NDArray[np.float64]


def layer_of(n: int, d: int, *, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_t(6, size=(n, d)) * np.exp(-np.arange(d) / (d / 4)) @ rng.normal(size=(d, d)) + 3.0


def rank_uncertainty(
    layers: list[Array], *, level: float = LEVEL, groups: NDArray[np.intp] | None = None
) -> tuple[list[float], CurveUncertainty]:
    found = [rank_influences(layer) for layer in layers]
    ranks = [rank for rank, _ in found]
    return ranks, curve_uncertainty(ranks, [mean_spread(each, groups) for _, each in found], level=level)


def weighted_rank(rows: Array, weights: Array) -> float:
    """The effective rank where a sample counts as often as its weight says."""
    weights = weights / weights.sum()
    centred = rows - weights @ rows
    eigenvalues = np.linalg.eigvalsh((centred * weights[:, None]).T @ centred)
    shares = np.maximum(eigenvalues, 0.0) / eigenvalues.sum()
    return float(np.exp(entr(shares).sum()))


@pytest.mark.parametrize(("n", "d"), [(60, 8), (12, 40), (30, 30)])
def test_an_influence_is_the_derivative_by_the_weight_of_a_sample(n: int, d: int) -> None:
    """Of a sample that makes up the share e more, the others as much less."""
    rows = layer_of(n, d)
    rank, influences = rank_influences(rows)
    assert rank == pytest.approx(diagnose(rows).effective_rank)
    assert influences.mean() == pytest.approx(0.0, abs=1e-9)
    step = 1e-6
    for sample in range(0, n, 5):
        ends = [weighted_rank(rows, np.full(n, (1 - e) / n) + e * (np.arange(n) == sample)) for e in (step, -step)]
        assert influences[sample] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-5)


def test_a_layer_is_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = layer_of(101, 7)
    rank, influences = rank_influences(rows)
    monkeypatch.setattr("layerprobe.similarity.diagnostics.BLOCK", 7 * 10)
    in_blocks = rank_influences(rows)
    assert in_blocks[0] == pytest.approx(rank)
    np.testing.assert_allclose(in_blocks[1], influences, atol=1e-9)


def test_units_do_not_matter() -> None:
    rows = layer_of(50, 9)
    for changed in (rows * 1e-3, rows + 100.0, rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(9, 9)))[0]):
        rank, influences = rank_influences(changed)
        assert rank == pytest.approx(rank_influences(rows)[0])
        np.testing.assert_allclose(influences, rank_influences(rows)[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("n", "d", "wide"), [(500, 32, 1.1), (120, 90, 1.4)])
def test_errors_are_those_of_other_samples(n: int, d: int, wide: float) -> None:
    """Ranks of 150 samples vary as the errors say, and together as they say; a little less where samples are few."""
    rng = np.random.default_rng(0)
    here, there = (rng.normal(size=(d, d)) * np.exp(-np.arange(d) / (d / 5)) for _ in range(2))
    ranks, found = [], []
    for seed in range(150):
        states = np.random.default_rng(seed).standard_t(8, size=(n, d))
        values, uncertainty = rank_uncertainty([states @ here, states @ (here + 0.3 * there)], level=0.95)
        ranks.append(values)
        found.append(np.array(uncertainty.covariance))
    true, told = np.cov(np.array(ranks).T), np.mean(found, axis=0)
    ratios = np.sqrt(np.diag(told) / np.diag(true))
    assert (ratios > 0.88).all()
    assert (ratios < wide).all()
    together = [each[0, 1] / np.sqrt(each[0, 0] * each[1, 1]) for each in (told, true)]
    assert together[0] == pytest.approx(together[1], abs=0.12)


def test_intervals_and_band_go_around_the_ranks() -> None:
    layers = [layer_of(80, 10, seed=seed) for seed in range(4)]
    ranks, found = rank_uncertainty(layers, level=0.9)
    assert ranks == pytest.approx([diagnose(layer).effective_rank for layer in layers])
    assert (found.level, len(found.lower)) == (0.9, 4)
    for layer, rank in enumerate(ranks):
        assert found.band_lower[layer] < found.lower[layer] < rank < found.upper[layer] < found.band_upper[layer]
        assert found.upper[layer] - rank == pytest.approx(1.664 * found.standard_errors[layer], rel=1e-3)
    wider = rank_uncertainty(layers, level=0.99)[1]
    assert all(low < other for low, other in zip(wider.lower, found.lower, strict=True))


def test_texts_of_one_document_count_once() -> None:
    """Four copies of every text are no more than one of each, if they are said to be of one group."""
    rows = layer_of(50, 6)
    copied, groups = np.repeat(rows, 4, axis=0), np.repeat(np.arange(50), 4)
    once, together = rank_uncertainty([rows], level=0.95), rank_uncertainty([copied], level=0.95, groups=groups)
    assert together[0] == pytest.approx(once[0])
    assert together[1].standard_errors == pytest.approx(once[1].standard_errors)
    apart = rank_uncertainty([copied], level=0.95)[1].standard_errors
    assert apart == pytest.approx([error / 2 for error in once[1].standard_errors], rel=0.02)
