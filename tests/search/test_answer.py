import math
from dataclasses import replace

import numpy as np
import pytest

from layerprobe.results import words
from layerprobe.results.conclusion import Choice, Verdict
from layerprobe.search.plan import answer
from layerprobe.search.posterior import posterior
from layerprobe.search.values import Doubt, Evidence, Score, SearchAnswer, SearchSettings, StopReason
from tests.search.worlds import search, world


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    evidence, _ = search(world(np.random.default_rng(7), 8, item_error=2.0), SearchSettings())
    return evidence


@pytest.fixture(scope="module")
def result(evidence: Evidence) -> SearchAnswer:
    return answer(evidence)


def test_the_answer_is_about_every_layer(evidence: Evidence, result: SearchAnswer) -> None:
    assert [belief.layer for belief in result.layers] == list(range(9))
    assert sum(belief.chance_best for belief in result.layers) == pytest.approx(1.0)
    assert all(belief.chance_best <= belief.chance_within for belief in result.layers)
    assert all(belief.interval[0] < belief.mean < belief.interval[1] for belief in result.layers)
    assert sum(belief.runs for belief in result.layers) == len(evidence.scores)
    assert result.best_layer == max(result.layers, key=lambda belief: belief.mean).layer
    assert result.chance == result.layers[result.best_layer].chance_best


def test_the_smallest_sufficient_layer_is_within_the_tolerance(evidence: Evidence) -> None:
    generous = answer(evidence, SearchSettings(tolerance=50.0))
    assert generous.smallest_sufficient == 0
    assert answer(evidence, SearchSettings(tolerance=0.0, level=0.9999)).smallest_sufficient is None
    for tolerance in (0.5, 2.0, 8.0):
        one = answer(evidence, SearchSettings(tolerance=tolerance))
        enough = [belief.layer for belief in one.layers if belief.chance_within >= 0.95]
        assert one.smallest_sufficient == (enough[0] if enough else None)


@pytest.mark.parametrize("tolerance", [0.1, 0.5, 2.0])
def test_a_layer_is_at_most_as_far_behind_as_it_is_surely_within(evidence: Evidence, tolerance: float) -> None:
    beliefs = posterior(evidence, claims=True)
    within = beliefs.chances_within(tolerance) >= 0.9
    assert ((beliefs.behind(tolerance, 0.9) <= tolerance) == within).all()
    assert (beliefs.behind(tolerance, 0.99) >= beliefs.behind(tolerance, 0.9)).all()
    assert (beliefs.behind(tolerance, 0.9) >= 0).all()


def test_the_doubt_is_that_of_two_means() -> None:
    """Two layers with two runs each: the errors are those of a difference of means."""
    scores = tuple(Score(layer=layer, seed=seed, value=70.0 + layer) for layer in (0, 1) for seed in (0, 1))
    layer = np.repeat([0, 1], 2)
    covariance = 4.0 + 0.5 * (layer[:, None] == layer) + 0.2 * np.eye(4)
    doubt = answer(
        Evidence(n_blocks=1, scores=scores, item_covariance=tuple(map(tuple, covariance.tolist())), n_items=100)
    ).doubt
    assert doubt is not None
    assert doubt.rival == 0
    assert doubt.item_error == pytest.approx(1.0)  # the part that seeds share: 0.5 + 0.5
    assert doubt.items_needed == math.ceil(100 * (1.959964 * 1.0 / 0.5) ** 2)
    assert doubt.seed_error is not None
    assert doubt.seed_error**2 > 0.2


@pytest.mark.parametrize("layers", [(3,), (3, 4)])
def test_what_runs_share_is_not_known_from_one_of_each(layers: tuple[int, ...]) -> None:
    scores = tuple(Score(layer=layer, seed=0, value=70.0) for layer in layers)
    covariance = 3.2 + 0.8 * np.eye(len(layers))
    answered = answer(
        Evidence(n_blocks=6, scores=scores, item_covariance=tuple(map(tuple, covariance.tolist())), n_items=300)
    )
    if answered.doubt is not None:
        assert (answered.doubt.item_error, answered.doubt.items_needed) == (0, None)
    assert not [check for check in answered.conclusion.checks if "items" in check.facts]


def test_a_layer_without_a_run_is_no_rival() -> None:
    runs = (Score(layer=5, seed=0, value=75.0), Score(layer=4, seed=0, value=None))
    rising = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    result = answer(Evidence(n_blocks=5, scores=runs, infonce=rising, first_layer=1))
    assert (result.best_layer, result.doubt) == (5, None)
    assert [belief.runs for belief in result.layers] == [0, 0, 0, 0, 0, 1]


# ---- what it says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "chance", "within", "candidates", "sufficient", "verdict"),
    [
        (5, 0.42, 0.5, (4, 5, 6), None, Verdict.UNDECIDED),
        (5, 0.62, 0.5, (4, 5, 6), None, Verdict.PROBABLE),
        (5, 0.42, 0.96, (4, 5, 6), 5, Verdict.PROBABLE),
        (5, 0.97, 0.96, (5,), 5, Verdict.DECIDED),
        (8, 0.62, 0.96, (7, 8), 8, Verdict.NOTHING_TO_DO),
        (8, 0.62, 0.96, (7, 8), 6, Verdict.PROBABLE),
        (8, 0.42, 0.5, (*range(9),), None, Verdict.UNDECIDED),
        (0, 0.97, 0.96, (0,), 0, Verdict.DECIDED),
    ],
)
def test_a_verdict_follows_from_the_chances(
    result: SearchAnswer,
    best: int,
    chance: float,
    within: float,
    candidates: tuple[int, ...],
    sufficient: int | None,
    verdict: Verdict,
) -> None:
    layers = tuple(replace(belief, chance_within=within, chance_best=chance) for belief in result.layers)
    answered = replace(result, best_layer=best, layers=layers, candidates=candidates, smallest_sufficient=sufficient)
    conclusion = answered.conclusion
    assert answered.verdict == verdict
    assert conclusion.choice == Choice.upto(8, best, candidates if len(candidates) < 9 else ())
    enough = [check.names["enough"] for check in conclusion.checks if check.name == "enough"]
    assert enough == ([sufficient] if sufficient not in (None, best) else [])


def test_more_seeds_are_advised_only_where_they_would_help(result: SearchAnswer) -> None:
    """Two layers differ by less than their error, of which most is over seeds."""
    doubt = Doubt(rival=4, difference=-0.4, item_error=0.1, seed_error=1.0, items_needed=900)
    stops: dict[StopReason | None, tuple[str, ...]] = {
        "budget": ("rival", "search budget"),
        "gain": ("rival", "search gain"),
        None: ("rival", "search goes on"),
        "settled": ("search settled",),
    }
    for stop, names in stops.items():
        answered = replace(result, doubt=doubt, decision=replace(result.decision, stop=stop))
        checks = answered.conclusion.checks[-len(names) :]
        assert tuple(check.name for check in checks) == names
        if stop != "settled":
            line, besides = words.line(checks[0], answered.conclusion)
            assert line.endswith(" differ by 0.4 ± 2.0")
            assert ("ore seeds would help" in besides) == (stop != "gain")
            assert "items" not in checks[0].facts, "those that are there would do"
            assert checks[0].facts["difference"].interval == pytest.approx((0.4 - 1.97, 0.4 + 1.97), abs=0.01)
