"""What is said of simulated searches names no layer without a run as worse, and no error that nobody measured."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from layerprobe.results import words
from layerprobe.search.plan import answer
from layerprobe.search.values import Evidence, Score, SearchAnswer, SearchSettings
from tests.search.worlds import world


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


def test_only_layers_with_runs_are_compared_or_said_to_drop() -> None:
    claimed = Counter[str]()
    for evidence, answered in states(36):
        run = {score.layer for score in evidence.scores if score.value is not None}
        conclusion = answered.conclusion
        checks = {check.name: check for check in conclusion.checks}
        if "rival" in checks:
            assert {*checks["rival"].names["rivals"]} <= run
            claimed["rival"] += 1
        if "last layers" in checks:
            assert {*checks["last layers"].names["dropped"]} | {answered.n_blocks} <= run
            claimed["last layers"] += 1
        if "gain" in conclusion.facts:
            assert {answered.best_layer, answered.n_blocks} <= run
            claimed["gain"] += 1
        assert {*answered.worse} <= run
        assert answered.smallest_sufficient in (None, *run)
        unseen = {*evidence.choices} - run
        named = {*checks["layers run"].names["inferred"]}
        named |= {*checks["layers failed"].names["layers"]} if "layers failed" in checks else set()
        assert named == unseen, "each layer whose score is inferred is named"
        if answered.doubt is not None and answered.doubt.item_error > 0:
            assert evidence.item_covariance
            folds = [
                {s.seed % evidence.n_folds for s in evidence.runs_at(i)}
                for i in (answered.best_layer, answered.doubt.rival)
            ]
            assert folds[0] & folds[1], "no error over items of layers that share none"
    assert len(claimed) == 3
    assert min(claimed.values()) > 2, claimed


def test_a_layer_whose_run_failed_is_not_said_not_to_have_been_run() -> None:
    runs = (Score(layer=3, seed=0, value=68.0), Score(layer=4, seed=0, value=None))
    conclusion = answer(Evidence(n_blocks=6, scores=runs)).conclusion
    lines = [words.line(check, conclusion)[0] for check in conclusion.checks[:2]]
    assert lines == [
        "Layers 0 to 2, 5 and 6 not run: inferred from the others",
        "Runs of layer 4 failed: inferred from the others",
    ]
