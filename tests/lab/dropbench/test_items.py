"""Errors over items of many runs, put together by arms: against loops over pairs of runs."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from layerprobe.lab.dropbench.entry import ItemOutputs, half_scores, item_errors
from layerprobe.lab.dropbench.zoo import ItemErrors, RunName
from layerprobe.stats.crossed import crossed, item_covariance
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.values import Examples

N_LAYERS, N_ITEMS = 3, 60
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def examples() -> Examples:
    rng = np.random.default_rng(0)
    return Examples(
        first=tuple(f"a{i}" for i in range(N_ITEMS)),
        second=tuple(f"b{i}" for i in range(N_ITEMS)),
        targets=tuple(rng.random(N_ITEMS).tolist()),
    )


@pytest.fixture(scope="module")
def runs(examples: Examples) -> dict[RunName, ItemOutputs]:
    """Layers that are alike."""
    rng = np.random.default_rng(1)
    shared = np.array(examples.targets) + rng.normal(size=N_ITEMS)
    layers = [shared + 0.3 * rng.normal(size=N_ITEMS) for _ in range(N_LAYERS)]
    names = [(layer, seed) for layer in range(N_LAYERS) for seed in SEEDS]
    return {name: (layers[name[0]] + 0.2 * rng.normal(size=N_ITEMS), None) for name in names}


@pytest.fixture(scope="module")
def whole(runs: dict[RunName, ItemOutputs], examples: Examples) -> dict[tuple[RunName, RunName], float]:
    targets = np.array(examples.targets)
    covariance = item_covariance([item_influences("sts", outputs, targets) for outputs, _ in runs.values()])
    return {(one, other): covariance[i, j] for i, one in enumerate(runs) for j, other in enumerate(runs)}


@pytest.fixture(scope="module")
def errors(runs: dict[RunName, ItemOutputs], examples: Examples) -> ItemErrors:
    return item_errors(runs, "sts", examples)


def of_pairs(whole: Any, first: int, second: int, *, same_seed: bool) -> float:
    """The mean covariance of runs of two layers, whose seeds are the same or are not."""
    return float(
        np.mean(
            [
                value
                for (one, other), value in whole.items()
                if (one[0], other[0]) == (first, second) and (one[1] == other[1]) == same_seed
            ]
        )
    )


def test_runs_of_different_seeds_have_what_their_layers_have_in_common(whole: Any, errors: ItemErrors) -> None:
    for first in range(N_LAYERS):
        for second in range(N_LAYERS):
            expected = of_pairs(whole, first, second, same_seed=False)
            assert errors.covariance([(first, 0), (second, 1)])[0, 1] == pytest.approx(expected, rel=0.02)


def test_a_run_has_its_own_error_beyond_that(whole: Any, errors: ItemErrors) -> None:
    for layer in range(N_LAYERS):
        alone = errors.covariance([(layer, 7)])
        assert alone[0, 0] == pytest.approx(of_pairs(whole, layer, layer, same_seed=True), rel=0.02)
        assert alone[0, 0] >= errors.layer_covariance[layer, layer]


def test_differences_of_layers_have_the_error_of_a_crossed_interval(
    runs: dict[RunName, ItemOutputs], examples: Examples, errors: ItemErrors
) -> None:
    targets = np.array(examples.targets)
    influences = {name: item_influences("sts", outputs, targets) for name, (outputs, _) in runs.items()}
    between = np.array([influences[0, seed] - influences[2, seed] for seed in SEEDS])
    interval = crossed([0.0, 0.0, 0.0], between)
    assert interval is not None
    common = errors.layer_covariance
    assert np.sqrt(common[0, 0] + common[2, 2] - 2 * common[0, 2]) == pytest.approx(interval.items_error, rel=0.1)


def test_covariances_are_positive(errors: ItemErrors) -> None:
    names = [(layer, seed) for layer in range(N_LAYERS) for seed in SEEDS]
    assert np.linalg.eigvalsh(errors.covariance(names)).min() > -1e-3
    np.testing.assert_allclose(errors.covariance(names), errors.covariance(names).T)


def test_one_seed_has_nothing_of_its_own(runs: dict[RunName, ItemOutputs], examples: Examples) -> None:
    single = {name: run for name, run in runs.items() if name[1] == 0}
    errors = item_errors(single, "sts", examples)
    targets = np.array(examples.targets)
    expected = item_covariance([item_influences("sts", outputs, targets) for outputs, _ in single.values()])
    np.testing.assert_allclose(errors.layer_covariance, expected, atol=1e-4)
    assert errors.own == (0.0,) * N_LAYERS


def test_halves_share_no_item_and_hold_all(runs: dict[RunName, ItemOutputs], examples: Examples) -> None:
    order = np.random.default_rng(0).permutation(N_ITEMS)
    targets, run = np.array(examples.targets), runs[0, 0]
    outputs, _ = run
    expected = [100 * stats.spearmanr(outputs[half], targets[half]).statistic for half in (order[:30], order[30:])]
    assert half_scores(run, "sts", examples) == pytest.approx(expected)


def test_a_threshold_is_that_of_validation(examples: Examples) -> None:
    pairs = Examples(
        first=examples.first, second=examples.second, targets=tuple(float(t > 0.5) for t in examples.targets)
    )
    outputs = np.linspace(0, 1, N_ITEMS)
    none = outputs, 2.0
    assert half_scores(none, "paraphrase", pairs) == (0.0, 0.0)
    other = item_errors({(0, 0): none, (1, 0): (outputs, 0.4)}, "paraphrase", pairs)
    # none is predicted: the error of one of the positives, about their mean over all items
    share = sum(pairs.targets) / N_ITEMS
    one_of_them = (100 / sum(pairs.targets)) ** 2 * (1 - share) * N_ITEMS / (N_ITEMS - 1)
    assert other.layer_covariance[0, 0] == pytest.approx(one_of_them, abs=1e-4)
    assert other.layer_covariance[1, 1] > 0
