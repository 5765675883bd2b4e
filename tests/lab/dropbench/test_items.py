"""Errors over items of many runs, put together by arms: against loops over pairs of runs."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.entry import ItemOutputs, half_scores, item_errors
from layerprobe.lab.dropbench.zoo import ItemErrors, RunName
from layerprobe.stats.crossed import crossed, item_covariance
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.values import Examples

N_LAYERS, N_ITEMS = 3, 60
SEEDS, SCANS = (0, 1, 2), (0, 1)


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
    """Layers that are alike, and seeds of a scan whose layers are still more so."""
    rng = np.random.default_rng(1)
    shared = np.array(examples.targets) + rng.normal(size=N_ITEMS)
    layers = [shared + 0.3 * rng.normal(size=N_ITEMS) for _ in range(N_LAYERS)]
    names: list[RunName] = [(layer, seed, False) for layer in range(N_LAYERS) for seed in SEEDS]
    outputs: dict[RunName, ItemOutputs] = {
        name: (layers[name[0]] + 0.2 * rng.normal(size=N_ITEMS), None) for name in names
    }
    for seed in SCANS:
        own = 0.4 * rng.normal(size=N_ITEMS)
        for layer in range(N_LAYERS):
            outputs[layer, seed, True] = layers[layer] + own + 0.05 * rng.normal(size=N_ITEMS), None
    return outputs


@pytest.fixture(scope="module")
def whole(runs: dict[RunName, ItemOutputs], examples: Examples) -> dict[tuple[RunName, RunName], float]:
    targets = np.array(examples.targets)
    covariance = item_covariance([item_influences("sts", outputs, targets) for outputs, _ in runs.values()])
    return {(one, other): covariance[i, j] for i, one in enumerate(runs) for j, other in enumerate(runs)}


@pytest.fixture(scope="module")
def errors(runs: dict[RunName, ItemOutputs], examples: Examples) -> ItemErrors:
    return item_errors(runs, "sts", examples, weighting="falling")


def of_pairs(whole: Any, first: tuple[int, bool], second: tuple[int, bool], *, same_seed: bool) -> float:
    """The mean covariance of runs of two arms, (layer, scan), whose seeds are the same or are not."""
    return float(
        np.mean(
            [
                value
                for (one, other), value in whole.items()
                if (one[0], one[2]) == first and (other[0], other[2]) == second and (one[1] == other[1]) == same_seed
            ]
        )
    )


def test_runs_of_different_seeds_have_what_their_arms_have_in_common(whole: Any, errors: ItemErrors) -> None:
    arms = [(layer, scan) for scan in (False, True) for layer in range(N_LAYERS)]
    for first in arms:
        for second in arms:
            names = [(first[0], 0, first[1]), (second[0], 1, second[1])]
            expected = of_pairs(whole, first, second, same_seed=False)
            assert errors.covariance(names)[0, 1] == pytest.approx(expected, rel=0.02)  # made positive


def test_a_run_has_its_own_error_beyond_that(whole: Any, errors: ItemErrors) -> None:
    for layer in range(N_LAYERS):
        alone = errors.covariance([(layer, 7, False)])
        assert alone[0, 0] == pytest.approx(of_pairs(whole, (layer, False), (layer, False), same_seed=True), rel=0.02)
        assert alone[0, 0] >= errors.of_layers[layer, layer]


def test_the_layers_of_one_scan_go_together(whole: Any, errors: ItemErrors) -> None:
    one = errors.covariance([(0, 0, True), (2, 0, True)])[0, 1]
    two = errors.covariance([(0, 0, True), (2, 1, True)])[0, 1]
    assert one == pytest.approx(of_pairs(whole, (0, True), (2, True), same_seed=True), rel=0.02)
    assert one > two + 0.1, "expected a scan's own error at both of its layers"


def test_differences_of_layers_have_the_error_of_a_crossed_interval(
    runs: dict[RunName, ItemOutputs], examples: Examples, errors: ItemErrors
) -> None:
    targets = np.array(examples.targets)
    influences = {name: item_influences("sts", outputs, targets) for name, (outputs, _) in runs.items()}
    between = np.array([influences[0, seed, False] - influences[2, seed, False] for seed in SEEDS])
    interval = crossed([0.0, 0.0, 0.0], between)
    assert interval is not None
    common = errors.of_layers
    assert np.sqrt(common[0, 0] + common[2, 2] - 2 * common[0, 2]) == pytest.approx(interval.items_error, rel=0.1)


def test_covariances_are_positive(errors: ItemErrors) -> None:
    names: list[RunName] = [
        (layer, seed, scan) for layer in range(N_LAYERS) for seed in SCANS for scan in (False, True)
    ]
    assert np.linalg.eigvalsh(errors.covariance(names)).min() > -1e-3
    np.testing.assert_allclose(errors.covariance(names), errors.covariance(names).T)


def test_one_seed_has_nothing_of_its_own(runs: dict[RunName, ItemOutputs], examples: Examples) -> None:
    single = {name: run for name, run in runs.items() if name[1] == 0 and not name[2]}
    errors = item_errors(single, "sts", examples)
    targets = np.array(examples.targets)
    expected = item_covariance([item_influences("sts", outputs, targets) for outputs, _ in single.values()])
    np.testing.assert_allclose(errors.of_layers, expected, atol=1e-4)
    assert (errors.own, errors.own_of_scan, errors.weighting) == ((0.0,) * N_LAYERS, (), None)
    with pytest.raises(DataError, match="expected scores of TMFT alone, got a scan"):
        errors.covariance([(0, 0, True)])


def test_halves_share_no_item_and_hold_all(runs: dict[RunName, ItemOutputs], examples: Examples) -> None:
    order = np.random.default_rng(0).permutation(N_ITEMS)
    targets, run = np.array(examples.targets), runs[0, 0, False]
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
    other = item_errors({(0, 0, False): none, (1, 0, False): (outputs, 0.4)}, "paraphrase", pairs)
    # none is predicted: the error of one of the positives, about their mean over all items
    share = sum(pairs.targets) / N_ITEMS
    one_of_them = (100 / sum(pairs.targets)) ** 2 * (1 - share) * N_ITEMS / (N_ITEMS - 1)
    assert other.of_layers[0, 0] == pytest.approx(one_of_them, abs=1e-4)
    assert other.of_layers[1, 1] > 0
