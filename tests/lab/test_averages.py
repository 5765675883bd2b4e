"""Averages of runs against the same by hand: weights, thresholds, gains, costs; what does not fit is refused."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.finetuning.outcomes import RunOutputs, read_outputs
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.lab.averages import PARTS, average, greedy_selection, line_search
from layerprobe.lab.results import Average
from tests.models import given
from tests.toy_task import toy_task_of

PROTOCOL = Protocol(epochs=1, learning_rate=1e-3, batch_size=8)
KINDS = ("sts", "paraphrase", "entailment")
Runs = dict[tuple[int, int], FineTuningRun]
"""By layer and seed."""


@pytest.fixture(scope="module")
def model(bert: Path, options: Model) -> Model:
    return given(str(bert), options)


@pytest.fixture(scope="module")
def scans(model: Model) -> dict[str, Runs]:
    """By kind two seeds of a scan."""
    found: dict[str, Runs] = {}
    for kind in KINDS:
        task = toy_task_of(kind)
        runs = finetune(model, task, scan=True, seeds=(0, 1), protocol=PROTOCOL).runs
        found[kind] = {(run.layer, run.seed): run for run in runs}
    return found


def of(runs: Runs, layers: Any = range(4), seeds: tuple[int, ...] = (0, 1)) -> dict[str, list[Any]]:
    return {f"layer {layer}": [runs[layer, seed] for seed in seeds] for layer in layers}


def averaged(kind: str, members: dict[str, list[Any]], **how: Any) -> Average:
    return average(toy_task_of(kind), members, model="m", joint=True, level=0.95, **how)


def outputs_of(run: FineTuningRun) -> RunOutputs:
    outputs = read_outputs(run.directory)
    assert outputs is not None
    return outputs


def test_two_layers_are_averaged_on_the_line(scans: dict[str, Runs]) -> None:
    task, runs = toy_task_of("sts"), scans["sts"]
    result = averaged("sts", of(runs, (1, 3)))

    def score(split: str, weight: float, seed: int) -> float:
        first, second = (outputs_of(runs[layer, seed]).of(layer, split) for layer in (1, 3))  # type: ignore[arg-type]
        gold = task.split(split).targets  # type: ignore[arg-type]
        return 100 * float(stats.spearmanr(weight * first + (1 - weight) * second, gold).statistic)

    course = [np.mean([score("validation", part / 20, seed) for seed in (0, 1)]) for part in range(21)]
    weight = result.members[0].weight
    assert np.mean(result.validation["spearman"]) == pytest.approx(max(course))
    assert result.test["spearman"] == pytest.approx([score("test", weight, seed) for seed in (0, 1)])
    best = max((0.0, 1.0), key=lambda weight: np.mean([score("validation", weight, seed) for seed in (0, 1)]))
    single = [score("test", best, seed) for seed in (0, 1)]
    assert result.single.test == pytest.approx(single)
    assert result.gain is not None
    assert result.gain.value == pytest.approx(np.mean(np.array(result.test["spearman"]) - single))
    assert (result.gain.n_items, result.gain.n_seeds) == (32, 2)


def test_the_threshold_is_chosen_anew_on_validation(scans: dict[str, Runs]) -> None:
    task = toy_task_of("paraphrase")
    result = averaged("paraphrase", of(scans["paraphrase"], (2, 3), (0,)))
    outputs = outputs_of(scans["paraphrase"][2, 0])
    weights = [each.weight for each in result.members]
    validation, test = (
        np.tensordot(weights, [outputs.of(layer, split) for layer in (2, 3)], 1) for split in ("validation", "test")
    )
    (threshold,) = result.thresholds
    assert threshold is not None
    gold = np.array(task.validation.targets)
    best = max(f1_score(gold, validation >= each) for each in validation)
    assert f1_score(gold, validation >= threshold) == pytest.approx(best)
    assert result.test["f1"][0] == pytest.approx(100 * f1_score(task.test.targets, test >= threshold))


def test_classes_are_averaged_as_probabilities(scans: dict[str, Runs]) -> None:
    result = averaged("entailment", of(scans["entailment"], (0, 1, 3), (0,)))
    outputs = outputs_of(scans["entailment"][0, 0])
    mean = np.zeros((32, 3))
    for each in result.members:
        logits = outputs.of(each.layer)
        mean += each.weight * np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = f1_score(toy_task_of("entailment").test.targets, mean.argmax(axis=1), average="macro")
    assert result.test["macro f1"][0] == pytest.approx(100 * expected)
    assert result.choice.startswith("forward selection")


def test_layers_of_one_scan_share_their_blocks_and_others_do_not(scans: dict[str, Runs], model: Model) -> None:
    task = toy_task_of("sts")
    runs = finetune(model, task, (1, 2), seeds=(0, 1), protocol=PROTOCOL).runs
    single: Runs = {(run.layer, run.seed): run for run in runs}
    shared = averaged("sts", of(scans["sts"], (1, 2)))
    apart = average(task, of(single, (1, 2)), model="m", level=0.95)
    parameters = {each.layer: each.parameters for each in apart.members}
    deepest = max(each.layer for each in shared.used)
    assert (shared.blocks, shared.parameters) == (deepest, parameters[deepest])
    assert apart.blocks == sum(each.layer for each in apart.used)
    assert apart.parameters == sum(each.parameters for each in apart.used)


def test_what_has_no_average_is_refused(scans: dict[str, Runs]) -> None:
    runs = scans["sts"]
    with pytest.raises(DataError, match="expected at least two layers or seeds of m to average, got 1"):
        averaged("sts", of(runs, (1,)))
    with pytest.raises(DataError, match="expected the same seeds for each layer"):
        averaged("sts", {**of(runs, (1,)), **of(runs, (2,), (0,))})
    with pytest.raises(
        DataError, match=r"expected a task of kind .*, whose outputs can be averaged, got kind retrieval"
    ):
        averaged("retrieval", of(runs))


def test_an_average_gains_or_loses_by_its_interval(scans: dict[str, Runs]) -> None:
    result = averaged("sts", of(scans["sts"]))
    members = tuple(replace(member, weight=0.25) for member in result.members)
    assert result.gain is not None
    for interval, passed in (((-1.0, 1.0), None), ((0.5, 1.0), True), ((-1.0, -0.5), False)):
        check = replace(result, members=members, gain=replace(result.gain, interval=interval)).check
        assert (check.name, check.passed, check.names["single"]) == ("average", passed, result.single.label)
    alone = replace(
        result, members=(replace(members[0], weight=1.0), *(replace(member, weight=0.0) for member in members[1:]))
    )
    assert alone.check.name == "not averaged"


def test_of_equals_one_alone_is_taken_and_of_averages_the_most_even() -> None:
    assert line_search(lambda weights: weights[0]).tolist() == [1.0, 0.0]
    assert line_search(lambda weights: weights[1]).tolist() == [0.0, 1.0]
    assert line_search(lambda weights: 0.0).tolist() == [1.0, 0.0]
    assert line_search(lambda weights: float(weights[0] < 1)).tolist() == [0.0, 1.0]
    assert line_search(lambda weights: float(0 < weights[0] < 1)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_selection_scores_as_an_exhaustive_search_of_a_concave_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, gold = rng.normal(size=(3, 40)), rng.normal(size=40)
    outputs += gold

    def score(weights: np.ndarray) -> float:
        return -float(np.mean((weights @ outputs - gold) ** 2))

    found = greedy_selection(score, 3)
    everywhere = [
        np.array([a, b, PARTS - a - b]) / PARTS
        for a, b in itertools.product(range(PARTS + 1), repeat=2)
        if a + b <= PARTS
    ]
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    best = max(map(score, everywhere))
    assert max(map(score, np.eye(3))) <= score(found)
    assert score(found) == pytest.approx(best, rel=0.01)
