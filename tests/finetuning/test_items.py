"""Influences of items on finished runs, from the outputs beside them."""

from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import outcomes, read_outputs, run_items
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.values import Task
from tests.models import given
from tests.toy_task import toy_task_of

FAST = Protocol(epochs=1, learning_rate=1e-3)


def tuned(folder: Path, task: Task, options: Model) -> tuple[FineTuningRun, ...]:
    return finetune(given(str(folder), options), task, [1, 3], seeds=(0, 1), protocol=FAST).runs


@pytest.mark.parametrize("kind", ["sts", "paraphrase", "entailment", "classification"])
def test_influences_are_those_of_the_outputs_with_the_threshold_of_the_run(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    task, options = toy_task_of(kind), Model(device="cpu", cache_dir=tmp_path, prompt="a ")
    runs = tuned(folder, task, options)
    items = run_items(task, runs)
    assert items.unit == ("text" if kind == "classification" else "pair")
    found = items.of(runs)
    assert found is not None
    for run, psi in zip(runs, found, strict=True):
        outputs = read_outputs(run.directory)
        assert outputs is not None
        expected = item_influences(kind, outputs.of(run.layer), np.array(task.test.targets), threshold=run.threshold)
        np.testing.assert_array_equal(psi, expected)
    for outcome in outcomes(runs, items):
        for error, n in ((outcome.error, len(task.test)), (outcome.validation_error, len(task.validation))):
            assert error is not None
            assert (error.n_items, error.n_seeds, error.unit) == (n, 2, items.unit)
            assert error.items_error is not None
    assert outcomes(runs, items)[0].mean == outcomes(runs)[0].mean


def test_layers_of_a_joint_run_are_runs_in_its_directory(folder: Path, tmp_path: Path) -> None:
    task, options = toy_task_of("sts"), Model(device="cpu", cache_dir=tmp_path)
    result = finetune(given(str(folder), options), task, scan=True, protocol=FAST)
    assert result.scan
    assert [run.layer for run in result.runs] == [0, 1, 2, 3]
    assert len({run.directory for run in result.runs}) == 1
    found = run_items(task, result.runs).of(result.runs)
    assert found is not None
    assert found.shape == (4, 32)
    assert len(np.unique(found, axis=0)) == 4


def test_layers_are_compared_with_the_best_of_them(folder: Path, tmp_path: Path) -> None:
    task, options = toy_task_of("sts"), Model(device="cpu", cache_dir=tmp_path)
    result = finetune(given(str(folder), options), task, [0, 1, 3], seeds=3, protocol=FAST, tolerance=100.0)
    (compared,) = result.compared
    assert compared is not None
    assert compared.scores == pytest.approx([outcome.mean for outcome in result.outcomes])
    assert compared.intervals == tuple(outcome.interval for outcome in result.outcomes)
    assert [0, 1, 3][compared.best] == result.best_layer
    assert compared.smallest() == 0, "all are within 100 points"
    facts, checks = result.facts, {check.name: check for check in result.conclusion.checks}
    assert (facts["score"].value, facts["behind"].value) == (
        pytest.approx(compared.scores[compared.best]),
        compared.behind[compared.best],
    )
    assert result.verdict is compared.verdict
    assert ("enough" in checks) == (result.best_layer != 0)
    assert finetune(given(str(folder), options), task, [1], seeds=3, protocol=FAST).compared == (None,)
    assert from_json(type(result), to_json(result)) == result
