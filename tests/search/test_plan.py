from dataclasses import replace

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.search.plan import CHOOSING, answer, gain_of_run, next_run
from layerprobe.search.posterior import NOTHING, posterior
from layerprobe.search.values import Evidence, PlannedRun, Score, SearchSettings
from tests.search.worlds import search, world


def runs_of(*values: tuple[int, float | None]) -> tuple[Score, ...]:
    layers = [layer for layer, _ in values]
    return tuple(
        Score(layer=layer, seed=layers[:i].count(layer), value=value) for i, (layer, value) in enumerate(values)
    )


CURVE = (60.0, 66.0, 68.0, 69.0, 68.0, 66.0, 63.0)


# ---- gains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 3, 6])
def test_the_gain_of_a_run_is_that_of_redrawn_scores(layer: int) -> None:
    beliefs = posterior(Evidence(n_blocks=6, scores=runs_of(*enumerate(CURVE), (3, 69.5))))
    noise = np.random.default_rng(0).standard_normal(400_000)
    scores = beliefs.run_variance[layer] + beliefs.run[1][layer, layer]
    moved = beliefs.means + (noise / np.sqrt(scores))[:, None] * beliefs.run[0][:, layer]
    assert gain_of_run(beliefs, layer) == pytest.approx(moved.max(axis=1).mean() - beliefs.means.max(), abs=5e-3)


# ---- the order of runs ----------------------------------------------------------------------------------


READ = (9.0, 1.0, 1.5, 1.2, 1.1, 1.0, 0.9)


@pytest.mark.parametrize(
    ("start", "infonce", "first"), [(None, None, 3), (5, None, 5), (None, READ, 2), (5, READ, 5)], ids=str
)
def test_it_begins_where_the_readings_say(start: int | None, infonce: tuple[float, ...] | None, first: int) -> None:
    evidence = Evidence(n_blocks=6, start=start, infonce=infonce)
    assert next_run(evidence).run == PlannedRun(layer=first, seed=0, cost=first + 1)
    failed = replace(evidence, scores=runs_of((first, None)))
    after = next_run(failed, SearchSettings(budget=0.3)).run
    assert after is not None
    assert after.layer == first - 1


def test_infonce_is_trusted_more_where_to_look_than_in_what_is_said() -> None:
    scores = runs_of((8, 70.0), (4, 70.0), (2, 69.0))
    rising = Evidence(n_blocks=8, scores=scores, infonce=tuple(layer / 2 for layer in range(9)), first_layer=1)

    def promised(nothing: float) -> int:
        known = posterior(rising, nothing=nothing)
        return max(rising.choices, key=lambda layer: gain_of_run(known, layer) / (layer + 1))

    run = next_run(rising).run
    assert run is not None
    assert (run.layer, promised(CHOOSING), promised(NOTHING)) == (6, 6, 1)
    assert answer(rising).layers[6].mean == posterior(rising, nothing=NOTHING).means[6]


def test_a_layer_whose_runs_all_fail_is_not_kept() -> None:
    """It would promise much: it had no score yet, and its neighbours are good."""
    evidence = Evidence(n_blocks=12, start=8)
    tried = []
    while (run := next_run(evidence).run) is not None:
        value = None if run.layer == 8 else 70.0 - abs(run.layer - 8)
        tried.append(run.layer)
        evidence = replace(evidence, scores=(*evidence.scores, Score(layer=run.layer, seed=run.seed, value=value)))
    assert tried.count(8) == 2
    answered = answer(evidence)
    assert answered.best_layer != 8
    assert 8 not in answered.candidates
    assert (answered.layers[8].chance_best, answered.layers[8].failed) == (0, 2)


def test_a_layer_that_failed_once_is_asked_again_with_the_next_seed_while_it_looks_best() -> None:
    rising = ((6, 60.0), (8, 64.0), (10, 68.0), (11, 70.0))
    evidence = Evidence(n_blocks=12, scores=runs_of(*rising, (12, None)))
    run = next_run(evidence, SearchSettings(budget=0.4)).run
    assert run is not None
    assert tuple(run) == (12, 1)
    twice = replace(evidence, scores=(*evidence.scores, Score(layer=12, seed=1, value=None)))
    after = next_run(twice, SearchSettings(budget=0.4)).run
    assert after is None or after.layer != 12


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 4])
def test_few_blocks_are_swept(n_blocks: int) -> None:
    _, decisions = search(world(np.random.default_rng(n_blocks), n_blocks), SearchSettings())
    first = [decision.run for decision in decisions[: n_blocks + 1]]
    assert first == [PlannedRun(layer=layer, seed=0, cost=layer + 1) for layer in range(n_blocks + 1)]
    assert decisions[-1].stop in ("settled", "gain", "seeds")


def test_the_next_seed_is_the_first_that_was_not_run() -> None:
    scores = (Score(layer=0, seed=1, value=60.0), Score(layer=1, seed=0, value=60.2))
    decision = next_run(Evidence(n_blocks=1, scores=scores))
    assert decision.run is not None
    assert (decision.run.layer, decision.run.seed) == (0, 0)


# ---- the end --------------------------------------------------------------------------------------------


def test_it_ends_when_the_best_layer_is_settled() -> None:
    scores = runs_of((0, 40.0), (1, 50.0), (5, 50.0), (3, 90.0), (3, 90.0), (2, 60.0), (4, 60.0))
    asked = next_run(Evidence(n_blocks=6, scores=scores), SearchSettings(budget=1.0))
    assert asked.run is not None
    assert (asked.run.layer, "the whole model is compared" in asked.why) == (6, True)
    evidence = Evidence(n_blocks=6, scores=(*scores, *runs_of((6, 40.0))))
    assert answer(evidence, SearchSettings(budget=1.0)).whole.shown  # type: ignore[union-attr]
    assert next_run(evidence, SearchSettings(budget=1.0)).stop == "settled"


def test_layer_0_is_not_settled_without_a_run_of_the_first_block() -> None:
    far = Evidence(n_blocks=6, scores=runs_of((6, 42.8), (0, 55.3)))
    run = next_run(far).run
    assert run is not None
    assert run.layer == 1
    after = next_run(Evidence(n_blocks=6, scores=runs_of((6, 42.8), (0, 55.3), (1, None))))
    assert "layer 0 looks best" not in after.why


def test_it_ends_when_only_items_would_help() -> None:
    made = world(np.random.default_rng(9), 6, item_error=8.0, seed_error=0.1, n_items=30)
    evidence, decisions = search(made, SearchSettings(budget=1.0))
    assert decisions[-1].stop == "gain"
    assert len(evidence.scores) < 5 * 7


def test_it_ends_when_all_seeds_are_spent() -> None:
    noisy = [(layer, 70.0 + shift) for layer in range(7) for shift in (-4.0, 4.0)]
    evidence = Evidence(n_blocks=6, scores=runs_of(*noisy))
    assert next_run(evidence, SearchSettings(budget=1.0, seeds=2)).stop == "seeds"
    assert next_run(evidence, SearchSettings(budget=1.0, seeds=3)).run is not None


def test_it_ends_when_the_budget_allows_no_run() -> None:
    evidence = Evidence(n_blocks=6, scores=runs_of((6, 70.0), (0, 60.0)))
    decision = next_run(evidence, SearchSettings(budget=8 / 140))
    assert (decision.run, decision.stop) == (None, "budget")
    assert next_run(Evidence(n_blocks=3, scores=runs_of((0, 60.0))), SearchSettings(budget=2 / 50)).stop == "budget"


@pytest.mark.parametrize("budget", [0.10, 0.15])
def test_the_budget_is_kept(budget: float) -> None:
    made = world(np.random.default_rng(4), 8, item_error=0.2, seed_error=2.0)
    settings = SearchSettings(budget=budget, tolerance=0.0)
    evidence, decisions = search(made, settings)
    costs = [decision.run.cost for decision in decisions if decision.run is not None]
    assert evidence.spent == sum(costs) <= budget * settings.full_sweep(8)
    assert settings.full_sweep(8) == 5 * sum(layer + 1 for layer in range(9))


def test_a_budget_below_one_run_says_what_one_costs() -> None:
    with pytest.raises(
        DataError,
        match=r"at least one run, got 1\.0 % of a full sweep: the first run costs 2\.9 %, so give at least 2\.9%",
    ):
        next_run(Evidence(n_blocks=6), SearchSettings(budget=0.01))
    assert next_run(Evidence(n_blocks=6), SearchSettings(budget=0.029)).run is not None


# ---- a pure function ------------------------------------------------------------------------------------


def test_a_decision_depends_on_the_evidence_alone() -> None:
    """Each decision of a search is made again from its evidence alone, the last one first, and as read from scores that
    other runs followed: the same run comes out."""
    made, settings = world(np.random.default_rng(5), 8, seed_error=1.5), SearchSettings(budget=0.2, tolerance=0.1)
    _, decisions = search(made, settings)
    names: list[tuple[int, int]] = []
    prefixes = [list(names)]
    for decision in decisions[:-1]:
        run = decision.run
        assert run is not None
        names.append((run.layer, run.seed))
        prefixes.append(list(names))
    assert len(prefixes) == len(decisions) > 5
    for prefix, decision in reversed(list(zip(prefixes, decisions, strict=True))):
        np.random.default_rng().standard_normal(len(prefix))
        assert next_run(made.evidence(prefix), settings) == decision


@pytest.mark.parametrize("block_cost", [1.0, 0.3, 1 / 3])
def test_a_run_may_cost_all_that_is_left(block_cost: float) -> None:
    """0.014 * 1500 is 20.999999999999996, and the first run costs 21."""
    evidence = Evidence(n_blocks=23, start=20, block_cost=block_cost)
    assert next_run(evidence, SearchSettings(budget=0.014)).run == PlannedRun(layer=20, seed=0, cost=21)
    whole = SearchSettings(budget=0.018)  # 27
    left = replace(evidence, start=5, scores=runs_of((20, None)))
    assert next_run(left, whole).run == PlannedRun(layer=5, seed=0, cost=6)


# ---- layers that are left out ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_blocks", [3, 6])
def test_a_layer_that_is_left_out_is_neither_run_nor_chosen(n_blocks: int) -> None:
    """Also where it would be the best: what is not scored at layer 0 may be anything."""
    evidence = Evidence(n_blocks=n_blocks, first_layer=1, start=0)
    settings = SearchSettings(budget=1.0, seeds=2)
    while (run := next_run(evidence, settings).run) is not None:
        assert run.layer >= 1
        made = Score(layer=run.layer, seed=run.seed, value=70.0 - 3 * run.layer + run.seed)
        evidence = replace(evidence, scores=(*evidence.scores, made))
    known, found = posterior(evidence), answer(evidence, settings)
    assert known.chances[0] == known.chances_within(100.0)[0] == 0
    assert known.chances.sum() == pytest.approx(1)
    assert (known.best_layer, found.best_layer, found.first_layer) == (1, 1, 1)
    assert 0 not in (*found.candidates, found.smallest_sufficient, found.doubt and found.doubt.rival)
    # the same beliefs as of one that may be chosen, but for the choice
    np.testing.assert_array_equal(known.means, posterior(replace(evidence, first_layer=0)).means)


# ---- several at a time ----------------------------------------------------------------------------------


def test_several_at_a_time_keep_to_the_budget_and_are_other_runs() -> None:
    made, settings = world(np.random.default_rng(3), 8), SearchSettings(budget=0.3)
    runs: list[PlannedRun] = []
    pending: list[PlannedRun] = []
    while True:
        evidence = made.evidence([tuple(run) for run in runs])
        while len(pending) < 3 and (run := next_run(evidence, settings, pending).run) is not None:
            pending.append(run)
        if not pending:
            break
        runs.append(pending.pop(0))
    assert len(set(runs)) == len(runs)
    assert sum(run.cost for run in runs) <= settings.block_steps(8)
    assert len({run.layer for run in runs[:3]}) == 3, "expected other layers beside the first one"


def test_a_run_beside_others_promises_what_these_do_not() -> None:
    known = posterior(Evidence(n_blocks=8, scores=runs_of((2, 60.0), (6, 66.0))))
    assert gain_of_run(known, 5, [5]) < gain_of_run(known, 5)
    noise = np.random.default_rng(0).standard_normal((200_000, 2))
    layers = [3, 7]
    root = np.linalg.cholesky(known.run[1][np.ix_(layers, layers)] + known.run_variance[layers] * np.eye(2))
    moves = noise @ np.linalg.solve(root, known.run[0][:, layers].T)
    both = (known.means + moves).max(axis=1).mean() - known.means.max()
    assert gain_of_run(known, 7, [3]) == pytest.approx(both - gain_of_run(known, 3), abs=0.05)


# ---- the whole model ------------------------------------------------------------------------------------

FALLS = {1: 62.0, 4: 65.0, 6: 67.0, 8: 69.0, 9: 70.0}
"""Scores of blocks of 12, after which all have fallen by 11 points at the last."""


def fallen(*last: float | None, n_folds: int = 1) -> Evidence:
    runs = [*FALLS.items(), *((12, value) for value in last)]
    layers = [layer for layer, _ in runs]
    made = tuple(Score(layer=layer, seed=layers[:i].count(layer), value=v) for i, (layer, v) in enumerate(runs))
    return Evidence(n_blocks=12, scores=made, n_folds=n_folds)


def test_the_last_layer_is_run_until_it_is_shown_or_has_two_scores() -> None:
    settings = SearchSettings(budget=0.15)
    first = next_run(fallen(), settings).run
    assert first is not None
    assert (first.layer, first.seed) == (12, 0)
    lower = answer(fallen(60.0, 59.0), settings)
    assert lower.whole is not None
    assert lower.whole.shown
    assert 12 in lower.drop_layers
    assert 12 not in lower.candidates
    assert lower.whole.value == pytest.approx(10.5, abs=2.0)
    near = answer(fallen(69.0, 69.2), settings)
    assert near.whole is not None
    assert not near.whole.shown
    assert 12 in near.candidates


def test_a_failed_run_of_the_last_layer_is_made_again() -> None:
    evidence = fallen(None)
    run = next_run(evidence, SearchSettings(budget=0.16)).run
    assert run is not None
    assert (run.layer, run.seed) == (12, 1)
    assert answer(evidence).whole is None


def test_nothing_is_said_of_the_whole_model_where_it_is_kept() -> None:
    scores = tuple(Score(layer=layer, seed=0, value=60.0 + layer) for layer in (1, 4, 8, 10, 12))
    evidence = Evidence(n_blocks=12, scores=scores)
    assert answer(evidence).whole is None
    assert "asked by itself" not in next_run(evidence, SearchSettings(budget=1.0)).why


def test_the_last_layer_is_run_on_the_items_of_the_layer_to_keep() -> None:
    """Else half of the error of the difference would be that of other items."""
    evidence = fallen(66.0, n_folds=2)
    evidence = replace(evidence, scores=(*evidence.scores, Score(layer=5, seed=0, value=66.0)))
    run = next_run(evidence, SearchSettings(budget=0.145)).run  # pays for one more run of the last layer
    assert run is not None
    assert (run.layer, run.seed) == (12, 2)
    unreserved = next_run(evidence, SearchSettings(budget=0.142)).run  # a fifth of it does not pay for such a run
    assert unreserved is not None
    assert unreserved.layer == 0
