"""Searches of models whose true quality is known: what is said is true as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from layerprobe.search.answer import answer
from layerprobe.search.values import SearchAnswer, SearchSettings
from tests.search.worlds import World, search, world

MODELS = 200


NONE, KNOWN, MISLEADING = None, (3.0, 2.0), (-1.0, 0.5)
"""What a nat of InfoNCE is worth: InfoNCE is not known, as the search expects, and against that."""
MORE_LOST = {NONE: (0.1, 0.25), KNOWN: (0.0, 0.1), MISLEADING: (0.12, 0.2)}
"""Points that a search may lose more than one seed at every layer, which costs 20 %, and than five."""


@pytest.fixture(
    scope="module",
    params=[
        *((1.6, 0.6, 400, NONE), (0.6, 0.6, 2000, NONE), (0.6, 1.2, 2000, NONE)),
        *((1.6, 0.6, 400, KNOWN), (0.6, 0.6, 2000, KNOWN), (0.6, 0.6, 2000, MISLEADING)),
    ],
    ids=str,
)
def searched(request: pytest.FixtureRequest) -> list[tuple[World, SearchAnswer]]:
    item_error, seed_error, n_items, slope = request.param
    found = []
    for i in range(MODELS):
        rng = np.random.default_rng([7, i])
        n_blocks = int(rng.choice([6, 8, 12]))
        made = world(rng, n_blocks, item_error=item_error, seed_error=seed_error, n_items=n_items, slope=slope)
        evidence, _ = search(made, SearchSettings())
        found.append((made, answer(evidence)))
    return found


@pytest.mark.slow
def test_the_set_holds_the_best_layer(searched: list[tuple[World, SearchAnswer]]) -> None:
    covered = np.mean([made.truth.argmax() in result.candidates for made, result in searched])
    assert 0.95 - 2.5 * math.sqrt(0.95 * 0.05 / MODELS) < covered
    sizes = np.mean([len(result.candidates) / len(result.layers) for _, result in searched])
    assert sizes < 0.7


@pytest.mark.slow
def test_the_chances_are_calibrated(searched: list[tuple[World, SearchAnswer]]) -> None:
    said = np.concatenate([[belief.chance_best for belief in result.layers] for _, result in searched])
    was = np.concatenate([np.arange(len(made.truth)) == made.truth.argmax() for made, _ in searched])
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        bin_ = (said >= low) & (said <= high)
        error = math.sqrt((said[bin_] * (1 - said[bin_])).mean() / bin_.sum())
        assert was[bin_].mean() == pytest.approx(said[bin_].mean(), abs=3 * error + 0.05)


@pytest.mark.slow
def test_little_is_lost_for_little(searched: list[tuple[World, SearchAnswer]], request: pytest.FixtureRequest) -> None:
    def regret(made: World, layer: int) -> float:
        return float(made.truth.max() - made.truth[layer])

    ours = np.mean([regret(made, result.best_layer) for made, result in searched])
    one_seed = np.mean([regret(made, int(made.runs[:, 0].argmax())) for made, _ in searched])
    five_seeds = np.mean([regret(made, int(made.runs.mean(axis=1).argmax())) for made, _ in searched])
    assert max(result.share for _, result in searched) <= 0.15
    than_one, than_five = MORE_LOST[request.node.callspec.params["searched"][3]]
    assert ours < one_seed + than_one
    assert ours < five_seeds + than_five
