"""What is said of simulated searches names no layer without a run as worse, and no error that nobody measured."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.search.plan import answer
from layerprobe.search.values import Evidence, Score, SearchAnswer, SearchSettings
from tests.search.worlds import world

CLAIMS = {
    "ruled out": r"Only layers? ([\d, and]+) can be ruled out",
    "compared": r"Layers ([\d and]+) differ by",
}


def states(n: int) -> Iterator[tuple[Evidence, SearchAnswer]]:
    """Yield random runs of random models with what they say, some failed, some on folds, some without items."""
    rng = np.random.default_rng(5)
    for _ in range(n):
        n_blocks, n_folds = int(rng.integers(2, 9)), int(rng.integers(1, 3))
        made = world(rng, n_blocks, item_error=float(rng.choice([0.3, 3.0])), n_folds=n_folds)
        places = [(layer, seed) for layer in range(n_blocks + 1) for seed in range(3)]
        drawn = [places[i] for i in rng.permutation(len(places))[: int(rng.integers(1, 9))]]
        evidence = made.evidence(drawn)
        if rng.random() < 0.3:
            evidence = Evidence(n_blocks=n_blocks, scores=evidence.scores)
        if rng.random() < 0.3 and len(drawn) > 2:
            layer, seed = drawn[0]
            lost = Score(layer=layer, seed=seed, value=None)
            evidence = Evidence(n_blocks=n_blocks, scores=(lost, *evidence.scores[1:]))
        yield evidence, answer(evidence, SearchSettings(tolerance=float(rng.choice([0.1, 0.5, 3.0]))))


def test_only_layers_with_runs_are_ruled_out_or_compared() -> None:
    claimed = dict.fromkeys(CLAIMS, 0)
    for evidence, answered in states(60):
        run = {score.layer for score in evidence.scores if score.value is not None}
        for claim, pattern in CLAIMS.items():
            for numbers in re.findall(pattern, answered.sentence):
                claimed[claim] += 1
                assert set(map(int, re.findall(r"\d+", numbers))) <= run, answered.sentence
        assert set(answered.worse) <= run
        assert answered.smallest_sufficient in (None, *run)
        if "full model" in answered.sentence:
            assert {answered.best_layer, answered.n_blocks} <= run
        if "over items" in answered.sentence:
            assert evidence.item_covariance, answered.sentence
            assert answered.doubt is not None
            folds = [
                {s.seed % evidence.n_folds for s in evidence.runs_at(i)}
                for i in (answered.best_layer, answered.doubt.rival)
            ]
            assert folds[0] & folds[1], answered.sentence
    assert min(claimed.values()) > 5, claimed


@pytest.mark.parametrize("failed", [False, True])
def test_a_layer_without_a_run_that_is_left_out_is_not_ruled_out(failed: bool) -> None:
    """Layer 2 of six is out of the set; it had no run, or one that failed."""
    evidence = Evidence(n_blocks=6, scores=tuple(Score(layer=i, seed=0, value=60.0 + i) for i in (0, 1, 3, 4, 5, 6)))
    if failed:
        evidence = Evidence(n_blocks=6, scores=(*evidence.scores, Score(layer=2, seed=0, value=None)))
    sentence = replace(answer(evidence), candidates=(1, 3, 4, 5, 6)).sureness
    assert sentence.startswith("95% sure that the best layer is one of 1 and 3 to 6; ")
    assert ("the run of layer 2 failed" if failed else "layer 2 was not run") in sentence
