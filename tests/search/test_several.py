"""One budget for several models: where runs go, when the search ends, and what it says of models and layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.search.ask import LayerSearch, SearchState
from layerprobe.search.plan import gain_of_run, gain_of_seeds, next_run
from layerprobe.search.posterior import posterior, side_by_side
from layerprobe.search.values import Evidence, PlannedRun, Score, SearchSettings
from tests.search.worlds import World, search, world

MODELS = 40


def evidence_of(number: int, *runs: tuple[int, float | None], n_blocks: int = 6, **about: float) -> Evidence:
    """Evidence of one of several models from layers and scores of its runs."""
    layers = [layer for layer, _ in runs]
    scores = tuple(
        Score(layer=layer, seed=layers[:i].count(layer), value=value) for i, (layer, value) in enumerate(runs)
    )
    return Evidence(n_blocks=n_blocks, model=number, scores=scores, **about)  # type: ignore[arg-type]


def drawn(rng: np.random.Generator, blocks: Sequence[int], apart: float, **how: Any) -> list[World]:
    """Models whose level differs by so many points."""
    made = []
    for n_blocks in blocks:
        each, shift = world(rng, n_blocks, **how), rng.normal(0.0, apart)
        made.append(replace(each, truth=each.truth + shift, runs=each.runs + shift))
    return made


def together(
    made: Sequence[World], settings: SearchSettings, at_a_time: int = 1, costs: Sequence[float] = (1.0, 1.0, 1.0)
) -> list[Evidence]:
    """The evidence of all models at the end of one search."""
    names: list[list[tuple[int, int]]] = [[] for _ in made]
    pending: list[PlannedRun] = []
    while True:
        known = [
            replace(each.evidence(of), model=i, block_cost=costs[i])
            for i, (each, of) in enumerate(zip(made, names, strict=True))
        ]
        while len(pending) < at_a_time and (run := next_run(known, settings, pending).run) is not None:
            pending.append(run)
        if not pending:
            return known
        ended = pending.pop(0)
        names[ended.model].append(tuple(ended))


def outcome(made: Sequence[World], known: Sequence[Evidence], level: float = 0.95) -> tuple[float, bool]:
    """The regret of the choice, and whether the set holds the best layer of all models."""
    joint, truth = side_by_side([posterior(each) for each in known]), np.concatenate([each.truth for each in made])
    stated, _ = joint.statement(SearchSettings().tolerance, level)
    return float(truth.max() - truth[joint.best_layer]), int(truth.argmax()) in stated


# ---- side by side ---------------------------------------------------------------------------------------


def test_models_side_by_side_are_what_each_is_and_independent() -> None:
    parts = [
        posterior(evidence_of(0, (3, 69.0), (1, 66.0))),
        posterior(evidence_of(1, (2, 70.0), (8, 60.0), n_blocks=8, first_layer=1)),
    ]
    joint = side_by_side(parts)
    np.testing.assert_array_equal(joint.means, np.concatenate([each.means for each in parts]))
    np.testing.assert_array_equal(np.sort(joint.draws[:, 9]), np.sort(parts[1].draws[:, 2]))
    np.testing.assert_array_equal(joint.choices, [*range(7), *range(8, 16)])
    assert joint.chances.sum() == pytest.approx(1)
    assert joint.chances[7] == joint.chances_within(100.0)[7] == 0, "expected no claim of the layer that is left out"
    between = np.corrcoef(joint.draws.T)[:7, 7:]
    assert np.abs(between).max() < 5 / np.sqrt(len(joint.draws))
    assert np.abs(np.corrcoef(parts[0].draws[:, 1], parts[0].draws[:, 2])[0, 1]) > 0.1
    assert side_by_side(parts[:1]) is parts[0]


@pytest.mark.parametrize("place", [2, 10])
def test_the_gain_of_a_run_is_in_the_highest_mean_of_all_models(place: int) -> None:
    joint = side_by_side(
        [posterior(evidence_of(0, (3, 69.0), (1, 66.0))), posterior(evidence_of(1, (2, 69.5), (6, 66.0)))]
    )
    noise = np.random.default_rng(0).standard_normal(400_000)
    scores = joint.run_variance[place] + joint.run[1][place, place]
    moved = joint.means + (noise / np.sqrt(scores))[:, None] * joint.run[0][:, place]
    assert gain_of_run(joint, place) == pytest.approx(moved.max(axis=1).mean() - joint.means.max(), abs=5e-3)
    assert gain_of_run(joint, place) < gain_of_seeds(joint)


# ---- the order of runs ----------------------------------------------------------------------------------


def test_a_list_of_one_model_is_that_model() -> None:
    made, settings = world(np.random.default_rng(3), 8), SearchSettings(budget=0.3)
    known, decisions = search(made, settings)
    assert next_run([known], settings) == next_run(known, settings) == decisions[-1]
    assert together([made], settings)[0] == known


def test_each_model_begins_before_gains_are_weighed() -> None:
    infonce = (9.0, 1.0, 1.5, 1.2, 1.1, 1.0, 0.9)
    models = [evidence_of(0, (3, 69.0)), evidence_of(1), replace(evidence_of(2), infonce=infonce)]
    run = next_run(models).run
    assert run is not None
    assert (run.model, run.layer) == (1, 3)
    run = next_run([*models[:1], evidence_of(1, (3, 60.0)), models[2]]).run
    assert run is not None
    assert (run.model, run.layer) == (2, 2)


def test_a_model_that_is_far_behind_gets_no_further_run() -> None:
    settings = SearchSettings(budget=0.4)
    ahead, behind = world(np.random.default_rng(8), 8, seed_error=1.5), world(np.random.default_rng(6), 8)
    behind = replace(behind, truth=behind.truth - 60, runs=behind.runs - 60)
    known = together([ahead, behind], settings)
    assert len(known[1].scores) == 1
    assert len(known[0].scores) > 3
    assert next_run(known, settings).run is None


def test_of_two_models_that_are_alike_the_cheaper_one_is_run() -> None:
    runs = ((3, 69.0), (1, 66.0))
    for costs, chosen in (((1.0, 0.25), 1), ((0.25, 1.0), 0)):
        models = [evidence_of(i, *runs, block_cost=cost) for i, cost in enumerate(costs)]
        run = next_run(models, SearchSettings(budget=0.5)).run
        assert run is not None
        assert run.model == chosen


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_the_budget_is_that_of_all_sweeps_by_what_a_block_costs(at_a_time: int) -> None:
    settings, costs = SearchSettings(budget=0.1, tolerance=0.0), (1.0, 0.3)
    made = drawn(np.random.default_rng(4), (8, 6), 0.0, item_error=0.3, seed_error=2.0)
    known = together(made, settings, at_a_time, costs)
    whole = sum(cost * settings.full_sweep(each.n_blocks) for cost, each in zip(costs, known, strict=True))
    spent = sum(cost * each.spent for cost, each in zip(costs, known, strict=True))
    assert 0.07 * whole < spent <= 0.1 * whole


def test_beside_a_run_of_one_model_another_begins() -> None:
    state = SearchState(models=(evidence_of(0), evidence_of(1)), settings=SearchSettings(budget=0.3))
    begun = LayerSearch.of(state).ask(3)
    assert [(run.model, run.layer) for run in begun[:2]] == [(0, 3), (1, 3)]
    assert (begun[2].model, begun[2].layer) not in {(0, 3), (1, 3)}


# ---- what goes wrong ------------------------------------------------------------------------------------


def test_a_model_without_any_score_is_given_up_after_three_runs() -> None:
    settings = SearchSettings(budget=0.9)
    lost = evidence_of(1, (3, None), (2, None))
    run = next_run([evidence_of(0, (3, 69.0)), lost], settings).run
    assert run is not None
    assert run.model == 1
    lost = evidence_of(1, (3, None), (2, None), (4, None))
    run = next_run([evidence_of(0, (3, 69.0)), lost], settings).run
    assert run is not None
    assert run.model == 0
    assert next_run([replace(lost, model=0), lost], settings).run is None


def test_a_budget_below_one_run_of_each_says_what_these_cost() -> None:
    with pytest.raises(
        DataError,
        match=r"one run of each model, got 2\.0 % of all full sweeps: the first runs together cost 2\.9 %, "
        r"so give at least 2\.9%",
    ):
        next_run([evidence_of(0), evidence_of(1)], SearchSettings(budget=0.02))
    assert next_run([evidence_of(0), evidence_of(1)], SearchSettings(budget=0.029)).run is not None


# ---- truth ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_set_of_models_and_layers_holds_the_best_of_a_few() -> None:
    held = []
    for i in range(6):
        made = drawn(np.random.default_rng([13, i]), (6, 6), 1.0)
        held.append(outcome(made, together(made, SearchSettings()))[1])
    assert sum(held) >= 5


@pytest.fixture(scope="module", params=[(2, 0.06, 1.0), (3, 0.08, 1.0), (3, 0.15, 3.0)], ids=str)
def compared(request: pytest.FixtureRequest) -> list[tuple[tuple[float, bool], tuple[float, bool]]]:
    """What one budget comes to, and the same budget split evenly, each model searched by itself."""
    n_models, budget, apart = request.param
    settings, found = SearchSettings(budget=budget), []
    for i in range(MODELS):
        rng = np.random.default_rng([17, i])
        blocks = rng.choice([6, 8, 12], n_models).tolist()
        made = drawn(rng, blocks, apart, item_error=1.6, seed_error=0.6, n_items=400, slope=(3.0, 2.0))
        alone = [replace(search(each, settings)[0], model=number) for number, each in enumerate(made)]
        found.append((outcome(made, together(made, settings)), outcome(made, alone)))
    return found


@pytest.mark.slow
def test_the_set_of_models_and_layers_holds_the_best_of_all(
    compared: list[tuple[tuple[float, bool], tuple[float, bool]]],
) -> None:
    held = np.mean([ours[1] for ours, _ in compared])
    assert held > 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / MODELS)


@pytest.mark.slow
def test_one_budget_loses_no_more_than_the_same_split_evenly(
    compared: list[tuple[tuple[float, bool], tuple[float, bool]]],
) -> None:
    more = np.array([ours[0] - split[0] for ours, split in compared])
    assert more.mean() <= 2.5 * more.std() / np.sqrt(MODELS)
