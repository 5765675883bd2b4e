"""What is true of a model: scores drawn by hand, noise, ties, a single seed; and the price of looking."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.zoo import (
    MARGIN,
    TunedLayers,
    best_layers,
    chances_of_best,
    chances_within,
    regrets,
    truth,
)

from .zoos import DROPPING, RISING, recorded, tuned


def test_a_drop_its_size_and_its_onset() -> None:
    known = truth(tuned(DROPPING))
    assert (known.drop, known.best_layer, known.onset) == (True, 4, 5)
    assert known.effect == pytest.approx(20)
    assert known.threshold == MARGIN
    np.testing.assert_allclose(regrets(tuned(DROPPING)), [30, 20, 10, 5, 0, 10, 20])


def test_no_drop_where_the_last_layer_is_best_or_half_a_point_short() -> None:
    assert not truth(tuned(RISING)).drop
    assert truth(tuned(RISING)).onset is None
    assert truth(tuned(RISING)).effect == 0
    assert not truth(tuned((50, 60, 80.5, 80))).drop
    assert truth(tuned((50, 60, 80.51, 80))).drop


def test_layers_near_the_best_are_no_drop_layers() -> None:
    """The onset is where the final run falls behind, not the layer after the best one."""
    assert truth(tuned((50, 80, 79.8, 79.6, 70, 71))).onset == 4
    assert truth(tuned((50, 80, 70, 79.8, 70, 71))).onset == 4


def test_the_best_layer_is_chosen_by_validation_and_the_earlier_of_equals() -> None:
    scores = tuned(RISING, validation=(1, 2, 3, 3, 2, 1, 0))
    assert truth(scores).best_layer == 2
    np.testing.assert_allclose(regrets(scores), [20, 10, 0, -5, -8, -9, -10])
    assert not truth(scores).drop


@pytest.fixture
def without_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set of layers that may be best takes most of the time, and decides nothing about a drop."""
    monkeypatch.setattr("layerprobe.lab.dropbench.zoo.best_layers", lambda tuned: ())


def test_noise_alone_makes_no_drop(without_sets: None) -> None:
    """Level models of noisy seeds drop in at most a twentieth of the cases, though the best of nine layers is ahead."""
    rng = np.random.default_rng(0)
    false_alarms, chosen = [], []
    for _ in range(400):
        scores = tuned([80.0] * 9, noise=2 * rng.normal(size=(3, 9)))
        false_alarms.append(truth(scores).drop)
        chosen.append(truth(scores).effect)
    assert np.mean(false_alarms) <= 0.08
    assert np.mean(chosen) == pytest.approx(0, abs=0.3), "expected a layer that is scored by other seeds than chose it"


def test_the_threshold_is_the_noise_of_all_layers() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(3, 7)) + rng.normal(size=(3, 1))
    known = truth(tuned(RISING, noise=noise))
    rest = noise.T - noise.T.mean(axis=0) - noise.T.mean(axis=1, keepdims=True) + noise.mean()
    error = math.sqrt((rest**2).sum() / 12 * 2 / 3)
    assert known.standard_error == pytest.approx(error)
    assert known.threshold == pytest.approx(max(MARGIN, stats.t.ppf(0.95, 12) * error))


def test_a_seed_that_is_ahead_everywhere_is_no_noise() -> None:
    noise = [[0.0] * 7, [5.0] * 7, [-5.0] * 7]
    assert truth(tuned(DROPPING, noise=noise)).standard_error == pytest.approx(0, abs=1e-9)


def test_a_single_seed_has_no_noise_to_speak_of() -> None:
    known = truth(tuned(DROPPING, noise=[[0.0] * 7]))
    assert (known.drop, known.onset, known.standard_error, known.threshold) == (True, 5, None, MARGIN)


def test_each_seed_is_scored_at_the_layer_that_the_others_chose() -> None:
    scores = TunedLayers(
        protocol=tuned(RISING).protocol,
        steps=1,
        seeds=(4, 5),
        validation=((9.0, 1.0), (2.0, 3.0)),
        test=((10.0, 20.0), (11.0, 24.0)),
    )
    # seed 5 chooses layer 1 for seed 4, seed 4 layer 0 for seed 5
    np.testing.assert_allclose(regrets(scores), [(1 + 0) / 2, (0 - 4) / 2])


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_levels_and_the_order_of_seeds_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # quarters: sums of them are exact, so no tie is broken by rounding
    validation, test = np.round(4 * rng.normal(70, 3, size=(2, 7, 3))) / 4
    order = rng.permutation(3)

    def of(validation: np.ndarray, test: np.ndarray) -> TunedLayers:
        both = (tuple(map(tuple, each.tolist())) for each in (validation, test))
        return TunedLayers(protocol=Protocol(), steps=1, seeds=(0, 1, 2), validation=next(both), test=next(both))

    known = truth(of(validation, test))
    for other in (of(validation + 5, test - 5), of(validation[:, order], test[:, order])):
        again = truth(other)
        assert (again.drop, again.onset, again.best_layer) == (known.drop, known.onset, known.best_layer)
        assert again.effect == pytest.approx(known.effect)
        assert again.threshold == pytest.approx(known.threshold)
    if known.onset is not None:
        assert known.best_layer < known.onset <= 6
        assert known.effect > known.threshold >= MARGIN


def test_splits_that_contradict_each_other_make_no_drop() -> None:
    """All seeds together choose the last layer, each two of them another one: there is no layer to drop from."""
    scores = TunedLayers(
        protocol=Protocol(),
        steps=1,
        seeds=(0, 1, 2),
        validation=((9.0, 9.0, 0.0), (9.0, 0.0, 9.0), (0.0, 9.0, 9.0), (8.0, 8.0, 8.0)),
        test=((80.0,) * 3, (80.0,) * 3, (80.0,) * 3, (60.0,) * 3),
    )
    assert truth(scores).best_layer == 3
    assert regrets(scores)[3] == 20
    assert (truth(scores).drop, truth(scores).onset) == (False, None)


def level_models(count: int, **errors: float) -> list[TunedLayers]:
    """Models whose layers are all as good."""
    return [recorded("m", "a", [80.0] * 9, seed=seed, **errors).budgets["converged"] for seed in range(count)]


def test_items_alone_make_no_drop(without_sets: None) -> None:
    """With next to no seed noise, what the test items do to all seeds alike would pass for a drop without its error."""
    models = level_models(300, item_error=4.0, seed_error=0.1)
    blind = [dataclasses.replace(each, test_errors=None) for each in models]
    assert np.mean([truth(each).drop for each in models]) <= 0.08
    assert np.mean([truth(each).drop for each in blind]) > 0.15
    assert np.mean([truth(each).effect for each in models]) == pytest.approx(0, abs=0.3)


@pytest.mark.slow
def test_the_set_holds_the_best_layer() -> None:
    """Of level models any layer is the best: each is in the set as often as the level says, or more."""
    models = level_models(300, item_error=1.0, seed_error=0.5)
    held = np.array([[layer in best_layers(each, level=0.9) for layer in range(9)] for each in models])
    assert held.mean(axis=0).min() >= 0.86
    assert held.mean(axis=0).max() <= 0.97
    clear = recorded("m", "a", [70.0, 75.0, 80.0, 90.0, 80.0], seed=1).budgets["converged"]
    assert best_layers(clear) == (3,) == truth(clear).best_layers


def test_chances_are_level_where_layers_are() -> None:
    models = level_models(100)
    chances = np.mean([chances_of_best(each) for each in models], axis=0)
    assert chances.sum() == pytest.approx(1)
    np.testing.assert_allclose(chances, 1 / 9, atol=0.06)
    within = chances_within(models[0], 0.7)
    assert (within >= chances_within(models[0], 0.0)).all()
    np.testing.assert_allclose(chances_within(models[0], 0.0), chances_of_best(models[0]))
    assert chances_within(models[0], 99.0).tolist() == [1.0] * 9


def test_the_threshold_has_both_errors() -> None:
    known = recorded("m", "a", DROPPING, seed=2).budgets["converged"]
    noise = np.array(known.test) - np.array(known.test).mean(axis=1, keepdims=True)
    noise -= noise.mean(axis=0)
    assert known.test_errors is not None
    common = known.test_errors.layer_covariance
    best = int(np.array(known.test).mean(axis=1).argmax())
    of_items = common[best, best] + common[6, 6] - 2 * common[best, 6]
    assert truth(known).standard_error == pytest.approx(math.sqrt(2 / 3 * (noise**2).sum() / 12 + of_items))
