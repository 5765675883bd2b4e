"""Worlds where scores fall within few blocks: what is said of layers rests on runs of their own."""

import numpy as np
import pytest

from layerprobe.search.plan import answer
from layerprobe.search.posterior import Array, posterior, side_by_side
from layerprobe.search.values import Evidence, Score, SearchSettings
from tests.search.worlds import World, search

MODELS, SEEDS, ITEMS, TOLERANCE = 40, 5, 400, 0.5
ITEM_ERROR, SHARED, SEED_ERROR = 2.5, 0.8, 0.7
"""Points of a score over the items of its fold, the share of that variance which layers have in common, and seeds."""


def cliff(blocks: int, fall: float, width: int, top: int) -> Array:
    """Return scores that rise by a point up to a layer, and fall by so many points over the blocks behind it."""
    truth = np.full(blocks + 1, 70.0)
    truth[0] -= 6
    truth[1 : top + 1] += np.linspace(0, 1, top)
    for step in range(1, width + 1):
        truth[top + step :] = 71 - fall * step / width
    return truth


def made(truth: Array, reading: str, rng: np.random.Generator, *, growth: float = 1.0) -> World:
    """Draw runs whose seeds validate on folds of their own, and err more with depth by a factor."""
    n, depth = len(truth), np.linspace(0, 1, len(truth))
    root = np.linalg.cholesky(ITEM_ERROR**2 * (SHARED * np.ones((n, n)) + (1 - SHARED) * np.eye(n)))
    influences = np.einsum("ab,sbi->asi", root, rng.standard_normal((SEEDS, n, ITEMS))) / np.sqrt(ITEMS)
    influences = np.tile(influences, (1, 2, 1))  # a second seed on a fold is beyond the first so many
    of_seeds = rng.normal(0, SEED_ERROR * growth ** depth[:, None], (n, 2 * SEEDS))
    runs = truth[:, None] + influences.sum(axis=2) + of_seeds
    apart = np.abs(depth[:, None] - depth) / 0.3
    drawn = np.linalg.cholesky((1 + apart) * np.exp(-apart) + 1e-9 * np.eye(n)) @ rng.standard_normal(n)
    nats = 2.5 * (truth - truth.mean()) / max(float(np.ptp(truth)), 1.0)
    centred = influences - influences.mean(axis=2, keepdims=True)
    return World(
        truth=truth,
        steps=np.ones(n - 1),
        runs=runs,
        influences=centred,
        n_folds=SEEDS,
        infonce={"falls": -2.5 * depth, "helps": nats, "misleads": -nats, "nothing": 0.7 * drawn}[reading],
    )


def shares(blocks: int, fall: float, width: int, place: str, reading: str, budget: float) -> tuple[float, float, float]:
    """Return how often the set holds the best layer, and how often a near one is called worse, or stands in a drop."""
    rows = []
    for number in range(MODELS):
        rng = np.random.default_rng([7, number])
        half = blocks // 2
        top = int(rng.integers(half, blocks - width + 1) if place == "late" else rng.integers(1, max(half, 2)))
        world = made(cliff(blocks, fall, width, top), reading, rng)
        evidence, decisions = search(world, SearchSettings(budget=budget, tolerance=TOLERANCE))
        result = answer(evidence, SearchSettings(budget=budget, tolerance=TOLERANCE), decisions[-1])
        below = world.truth.max() - world.truth
        near = {layer for layer in range(blocks + 1) if below[layer] <= TOLERANCE}
        held = any(below[layer] == 0 for layer in result.candidates)
        rows.append((held, bool(near & set(result.worse)), bool(near & set(result.drop_layers))))
    held, worse, drop = np.mean(rows, axis=0)
    return float(held), float(worse), float(drop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "fall", "width", "place", "reading", "budget"),
    [
        *((12, fall, 1, "late", "falls", 0.15) for fall in (4, 9, 25, 55)),
        *((12, 9, width, "late", "falls", 0.15) for width in (2, 3)),
        *((12, 9, 1, "late", reading, 0.15) for reading in ("helps", "misleads", "nothing")),
        *((12, 9, 1, "early", "falls", budget) for budget in (0.05, 0.1, 0.15)),
        *((12, 25, 1, "late", "falls", budget) for budget in (0.05, 0.1)),
        *((6, 9, 1, "late", "falls", budget) for budget in (0.1, 0.15)),
        (24, 55, 1, "late", "falls", 0.1),
    ],
    ids=str,
)
def test_a_set_holds_the_layer_before_a_cliff_and_what_is_called_worse_is(
    blocks: int, fall: float, width: int, place: str, reading: str, budget: float
) -> None:
    held, worse, drop = shares(blocks, fall, width, place, reading, budget)
    assert held >= 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / MODELS)
    assert max(worse, drop) <= 0.05 + 2.5 * np.sqrt(0.95 * 0.05 / MODELS)


@pytest.mark.slow
def test_seeds_that_err_more_with_depth_make_no_layer_worse() -> None:
    false = 0
    for number in range(MODELS):
        world = made(np.full(13, 70.0), "falls", np.random.default_rng([7, number]), growth=4.0)
        false += bool(answer(search(world, SearchSettings())[0]).worse)
    assert false / MODELS <= 0.05 + 2.5 * np.sqrt(0.95 * 0.05 / MODELS)


def of_scores(scores: dict[int, float], n_blocks: int = 12, *, model: int = 0, again: tuple[int, ...] = ()) -> Evidence:
    """Return evidence of one seed a layer, or two that agree, with InfoNCE that falls along with a line."""
    runs = [*((layer, 0) for layer in scores), *((layer, 1) for layer in again)]
    return Evidence(
        n_blocks=n_blocks,
        scores=tuple(Score(layer=layer, seed=seed, value=scores[layer]) for layer, seed in runs),
        item_covariance=tuple(map(tuple, (0.8 + 0.2 * np.eye(len(runs))).tolist())),
        infonce=tuple((-2.5 * np.linspace(0, 1, n_blocks + 1)).tolist()),
        model=model,
    )


def test_layers_before_an_unseen_fall_stay_in_the_set_and_are_not_called_worse() -> None:
    before_a_cliff = answer(of_scores({0: 60.0, 1: 70.0, 4: 70.4, 7: 70.8, 12: 55.0}, again=(0, 12)))
    assert {7, 8, 9, 10, 11} <= set(before_a_cliff.candidates)
    assert before_a_cliff.worse == (0, 12)
    assert before_a_cliff.drop_layers == (12,)


def test_a_drop_names_the_layers_with_a_run() -> None:
    fallen = answer(of_scores({0: 60.0, 1: 70.0, 4: 70.4, 6: 70.8, 8: 55.0, 11: 54.0}))
    assert fallen.drop_layers == (8, 11)
    assert not {8, 9, 10, 11, 12} & set(fallen.candidates)  # the next earlier layer with a run has fallen
    assert 7 in fallen.candidates


def test_infonce_alone_calls_no_layer_worse() -> None:
    """A line that InfoNCE expects, drawn through scores that err by more than their distance."""
    assert answer(of_scores({1: 70.0, 4: 68.5, 9: 67.0, 12: 66.5})).worse == ()


def test_a_layer_without_a_run_belongs_to_the_runs_of_its_own_model() -> None:
    first, second = of_scores({0: 60.0, 1: 70.0, 3: 70.2, 6: 40.0}, 6, again=(0, 6)), of_scores({3: 70.0}, 6, model=1)
    centred = side_by_side([posterior(each, claims=True) for each in (first, second)])
    assert centred.statement(TOLERANCE, 0.95)[1] == (0, 6)
    assert {7, 8, 9} <= set(centred.statement(TOLERANCE, 0.95)[0])  # before the first run of the second model
