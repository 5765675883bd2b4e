"""Several tasks: the layer that is best on all of them."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layerprobe.encoders.model import Model, ModelDescription
from layerprobe.errors import DataError
from layerprobe.results import words
from layerprobe.scoring.score import across_tasks, score
from layerprobe.scoring.scores import Scores, TaskScores
from layerprobe.scoring.values import LayerScores
from tests.models import given
from tests.toy_task import toy_task_of

CURVES = [[50.0, 70.0, 69.0, 60.0], [40.0, 61.0, 62.5, 48.0], [30.0, 52.0, 53.0, 47.0]]


def model_of(n_blocks: int = 3, name: str = "google/electra") -> ModelDescription:
    return ModelDescription(
        name=name,
        revision="abc123",
        architecture="electra",
        n_blocks=n_blocks,
        hidden_size=8,
        norm="none",
        dtype="float32",
        parameters=tuple(range(10, 10 * n_blocks + 11, 10)),
    )


def scored(curve: list[float], name: str) -> TaskScores:
    metrics = {"spearman": tuple(curve), "pearson": tuple(value - 1 for value in curve)}
    scores = LayerScores(split="test", method="cosine", primary="spearman", metrics=metrics)
    return TaskScores(task=name, task_digest="d" + name, kind="sts", scores=scores, n_items=100, unit="pair")


@pytest.fixture
def three() -> Scores:
    return across_tasks((model_of(),), [scored(curve, f"data/{i}.csv") for i, curve in enumerate(CURVES)])


def test_the_best_layer_has_the_highest_mean_and_differences_are_paired(three: Scores) -> None:
    curves = np.array(CURVES)
    assert three.best_layer == 2
    for layer in three.layers:
        assert layer.score == pytest.approx(curves[:, layer.layer].mean())
        assert layer.behind == pytest.approx((curves[:, 2] - curves[:, layer.layer]).mean())
        if layer.layer != 2:
            # a paired t test is the second formula
            expected = stats.ttest_rel(curves[:, 2], curves[:, layer.layer]).confidence_interval(1 - 0.1 / 3)
            assert layer.interval == pytest.approx((expected.low, expected.high))
    assert three.layers[2].interval is None
    assert [layer.layer for layer in three.candidates] == [1, 2, 3]


def test_intervals_hold_for_other_tasks() -> None:
    """Tasks drawn anew, with errors of their items: the true mean difference lies within in 95 % of cases."""
    rng = np.random.default_rng(0)
    truth, covered, n = np.array([60.0, 70.0, 69.0]), 0, 400
    for _ in range(n):
        drawn = truth + rng.normal(0, 3, (6, 1)) + rng.normal(0, 1.5, (6, 3)) + rng.normal(0, 1, (6, 3))
        result = across_tasks((model_of(2),), [scored(list(curve), str(i)) for i, curve in enumerate(drawn)])
        low, high = result.layers[0].interval or (math.nan, math.nan)
        covered += low <= truth[result.best_layer] - truth[0] <= high
    assert 0.92 <= covered / n <= 0.98


@pytest.mark.parametrize("n_tasks", [3, 10])
def test_a_layer_that_is_as_good_is_seldom_ruled_out(n_tasks: int) -> None:
    """Of 13 layers that are equal in truth, each is excluded in at most a twentieth of cases."""
    rng = np.random.default_rng(0)
    excluded = np.zeros(13)
    for _ in range(200):
        curves = 60 + rng.normal(0, 3, (n_tasks, 1)) + rng.normal(0, 1.5, (n_tasks, 13))
        result = across_tasks((model_of(12),), [scored(list(curve), str(i)) for i, curve in enumerate(curves)])
        candidates = [layer.layer for layer in result.candidates]
        excluded += [layer not in candidates for layer in range(13)]
    assert excluded.mean() / 200 < 0.05


def test_models_are_compared_over_tasks() -> None:
    """Models x tasks: the rows of both models share what the level allows."""
    models, curves = (model_of(name="org/a"), model_of(name="org/b")), np.array(CURVES)
    tasks = [
        dataclasses.replace(scored([value + 1.5 * i for value in curve], str(number)), model=i)
        for number, curve in enumerate(CURVES)
        for i in range(2)
    ]
    result = across_tasks(models, tasks)
    assert [(each.model, each.layer) for each in result.best_of_each] == [(1, 2), (0, 2)]
    assert result.names == ("0", "1", "2")
    other = result.of_model(0)[1]
    gains = curves[:, 2] + 1.5 - curves[:, 1]
    expected = stats.ttest_1samp(gains, 0).confidence_interval(1 - 0.1 / 7)
    assert other.interval == pytest.approx((expected.low, expected.high))
    assert words.headline(result.conclusion) == "Layer 2 is best over 3 tasks, of b"
    assert words.sentence(result.conclusion) == "On average it scores 63.0, 1.5 more than a at layer 2."
    assert result.table.data["model"] == ("a",) * 4 + ("b",) * 4
    assert result.table.data["0"] == (*CURVES[0], *(value + 1.5 for value in CURVES[0]))
    assert Scores.class_of(json.loads(result.to_json()))[1].keys() >= {"models", "tasks", "layers"}


def test_each_task_is_scored_as_alone(bert: Path, tmp_path: Path) -> None:
    options = Model(cache_dir=tmp_path)
    tasks = [toy_task_of("sts"), toy_task_of("classification")]
    result = score(given(str(bert), options), tasks)
    for task, found in zip(tasks, result.tasks, strict=True):
        alone = score(given(str(bert), options), task)
        assert dataclasses.replace(found.scores, compared=None) == alone.first
        assert found.scores.compared == alone.compared
    with pytest.raises(DataError, match="expected at least one task"):
        score(given(str(bert), options), [])
    with pytest.raises(DataError, match=r"got toy sts and \./toy sts, which hold the same data"):
        score("no such model", [tasks[0], dataclasses.replace(tasks[0], name="./toy sts")])
    with pytest.raises(DataError, match="expected different tasks, got toy sts twice"):
        score("no such model", [tasks[0], tasks[0]])
