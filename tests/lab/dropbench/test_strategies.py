"""What each strategy takes and pays, on records made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from layerprobe.lab.dropbench.strategies import Answer, Recorded, find, scan, sweep, training_strategies
from layerprobe.lab.dropbench.zoo import ZooEntry
from layerprobe.search.plan import next_run
from layerprobe.search.values import SearchSettings

from .zoos import DROPPING, RISING, entry, recorded

FULL = 5 * 28
"""Block-steps of the paper's sweep of six blocks."""


def records(made: ZooEntry) -> Recorded:
    (tuned,) = made.budgets.values()
    return Recorded(entry=made, tuned=tuned)


@pytest.fixture(scope="module")
def model() -> Recorded:
    return records(recorded("m", "a", DROPPING, seed=3))


def test_a_sweep_takes_the_best_mean_of_its_seeds(model: Recorded) -> None:
    validation = np.array(model.tuned.validation)
    one = list(sweep(1).choose(model))
    assert one == [Answer(layer=int(validation[:, seed].argmax()), cost=28 / FULL, seeds=(seed,)) for seed in range(3)]
    (three,) = sweep(3).choose(model)
    assert three == Answer(layer=int(validation.mean(axis=1).argmax()), cost=3 / 5, seeds=(0, 1, 2))
    assert sweep(5).choose(model) == []


def test_a_scan_takes_the_best_layer_of_its_curve_for_one_run(model: Recorded) -> None:
    first, second = (run for run in model.tuned.scans if run.weighting == "falling")
    curves = [np.array(run.validation, dtype=float) for run in (first, second)]
    assert list(scan("falling").choose(model)) == [
        Answer(layer=int(curve.argmax()), cost=pytest.approx(7 / FULL)) for curve in curves
    ]
    assert scan("sandwich").choose(model) == []


def test_a_scan_with_a_failed_layer_is_none(model: Recorded) -> None:
    (tuned,) = model.entry.budgets.values()
    broken = [replace(run, test=(None, *run.test[1:])) for run in tuned.scans]
    assert scan("falling").choose(replace(model, tuned=replace(tuned, scans=tuple(broken)))) == []


def test_a_search_is_what_asking_run_by_run_gives(model: Recorded) -> None:
    settings = SearchSettings(budget=0.1 * 5 / 2, seeds=2)
    runs: tuple[tuple[int, int], ...] = ()
    while (run := next_run(model.evidence(runs, first=1), settings).run) is not None:
        runs += ((run.layer, run.seed),)
    found = model.search(0.1 * FULL, first=1)
    assert found is not None
    assert found.cost * FULL == pytest.approx(model.evidence(runs).spent)
    assert found.cost <= 0.1
    assert found.stated is not None
    assert found == model.answered(runs, settings, first=1)
    assert found.layer in found.stated


def test_a_search_has_the_numbers_of_runs(model: Recorded) -> None:
    evidence = model.evidence([(6, 0), (4, 1)])
    assert [score.value for score in evidence.scores] == [model.tuned.validation[6][0], model.tuned.validation[4][1]]
    assert model.tuned.validation_errors is not None
    expected = model.tuned.validation_errors.covariance([(6, 0), (4, 1)])
    np.testing.assert_allclose(evidence.item_covariance, expected)
    assert (evidence.n_items, evidence.spent) == (400, 7 + 5)
    turned = model.evidence([(6, 0), (4, 1)], first=2)
    assert turned.scores[-1].value == model.tuned.validation[4][0], "expected the first of three seeds after the last"


def test_find_says_what_it_spent_and_states_a_set(model: Recorded) -> None:
    choices = find(0.15).choose(model)
    assert len(choices) == 3, "expected one for each seed to begin with"
    for choice in choices:
        assert 1 / FULL <= choice.cost <= 0.15
        assert choice.stated is not None
        assert choice.layer in choice.stated
        assert len(choice.seeds) <= 2, "expected a seed that is left to score on"
        assert choice.sufficient is None or choice.sufficient <= choice.layer
    assert all(first in each.seeds for first, each in enumerate(choices))
    assert find(0.01).choose(model) == [], "expected nothing for less than one run"


def test_infonce_says_where_a_search_looks_first(model: Recorded) -> None:
    read = recorded("m", "a", RISING, metrics={"InfoNCE": (9.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)})
    replay = records(read)
    assert replay.infonce == (9.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    first = next_run(replay.evidence(())).run
    assert first is not None
    assert first.layer == 6
    assert model.infonce is None


def test_without_errors_there_is_no_search() -> None:
    old = records(entry("old", "a", RISING))
    assert not old.searchable
    played = ["sweep, 1 seed", "sweep, 3 seeds", "sweep, 1 seed, every second layer"]
    for strategy in training_strategies():
        assert bool(strategy.choose(old)) == (strategy.name in played), strategy.name
    assert find(0.2).choose(records(recorded("alone", "a", RISING, scans=())))


def test_every_second_layer_is_counted_from_the_last() -> None:
    """Of 12 blocks the layers of Starbucks; the best of them with one seed, at the cost of these runs."""
    quality = tuple(float(score) for score in range(60, 73))
    for n_blocks, layers in ((12, (2, 4, 6, 8, 10, 12)), (6, (2, 4, 6)), (7, (1, 3, 5, 7))):
        for best in range(n_blocks + 1):
            scores = tuple(90.0 if layer == best else quality[layer] for layer in range(n_blocks + 1))
            entry = recorded("m", "f", scores, n_seeds=1, seed_error=0.0, item_error=0.01)
            model = Recorded(entry=entry, tuned=entry.budgets["converged"])
            (choice,) = sweep(1, step=2).choose(model)
            assert choice.layer == (best if best in layers else n_blocks)
            assert choice.cost == pytest.approx(sum(layer + 1 for layer in layers) / model.full_sweep)
