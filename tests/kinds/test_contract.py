"""What holds for every kind of task: items, floors, a tiny model that learns it, influences and pages of items."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.metrics.scores import jackknife_influences
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from tests.toy_questions import toy_question_task
from tests.toy_task import TOY_KINDS, toy_task_of

MEANS = ("retrieval", "triplets", "summarization", "question answering")
"""Kinds whose scores are means over items, so that leaving one out is exact."""
LEARNT = {"retrieval": 30, "entities": 70, "tags": 75, "summarization": 80, "question answering": 90, "triplets": 90}
"""Least primary score of a tiny model at layer 1; of others it is above the floor."""
every_kind = pytest.mark.parametrize("kind", [*TOY_KINDS, "question answering"])

Trained = tuple[FineTuningRun, RunOutputs]


def task_of(kind: str) -> Task:
    return toy_question_task(impossible=0.3) if kind == "question answering" else toy_task_of(kind)


@pytest.fixture(scope="module")
def trained(loaded: Callable[[str], Encoder]) -> Callable[[str], Trained]:
    """The run of a kind at layer 1 of a tiny model, with its outputs."""
    protocol = Protocol(learning_rate=1e-2, epochs=5, batch_size=8, max_length=32)

    def train(kind: str) -> Trained:
        (run,), outputs = fine_tune(loaded("bert"), 1, task_of(kind), protocol=protocol)
        return run, outputs

    return cache(train)


@every_kind
def test_items_are_taken_joined_and_written(kind: str) -> None:
    task = task_of(kind)
    assert from_json(Task, to_json(task)) == task
    rows = range(len(task.test))
    assert task.test.take(rows[:9]).join(task.test.take(rows[9:])) == task.test
    assert (len(task.test), str(len(task.test)) in repr(task.test)) == (len(task.test.sides[0]), True)
    assert task.digest != task_of("triplets" if kind == "sts" else "sts").digest


@every_kind
def test_it_is_learnt_and_its_outputs_have_the_scores_of_the_run(kind: str, trained: Callable[[str], Trained]) -> None:
    run, outputs = trained(kind)
    test = task_of(kind).test
    assert run.epochs[-1].train_loss < run.epochs[0].train_loss
    assert tuple(run.test) == KINDS[kind].metrics
    assert run.primary == KINDS[kind].metrics[0]
    assert (run.threshold is None) == (KINDS[kind].threshold is None)
    floors = KINDS[kind].floors(test)
    assert set(floors) <= set(run.test)
    if floors:
        assert all(floor.value <= 100 for floor in floors.values())
        assert run.test[run.primary] > floors[run.primary].value
    assert run.test[run.primary] > LEARNT.get(kind, 0)
    again = evaluate_outputs(kind, outputs.of(1), test.gold, threshold=run.threshold)
    assert again.metrics == pytest.approx(run.test)


@pytest.mark.parametrize("kind", MEANS)
def test_influences_are_those_of_leaving_an_item_out(kind: str, trained: Callable[[str], Trained]) -> None:
    run, trained_outputs = trained(kind)
    outputs, gold = trained_outputs.of(1), task_of(kind).test.gold
    arguments = () if run.threshold is None else (run.threshold,)
    for metric in KINDS[kind].metrics:

        def score(rows: np.ndarray, metric: str = metric) -> float:
            return 100 * KINDS[kind].score(outputs[rows], gold[rows], *arguments)[metric]

        found = item_influences(kind, outputs, gold, metric=metric, threshold=run.threshold)
        np.testing.assert_allclose(found, jackknife_influences(score, len(gold)), atol=1e-9)


@every_kind
def test_a_page_shows_each_item_with_its_error(kind: str, trained: Callable[[str], Trained]) -> None:
    run, outputs = trained(kind)
    task, rules = task_of(kind), KINDS[kind]
    assert rules.view is not None
    view = rules.view(task, task.test)
    read = view.read(outputs.of(1), run.threshold)
    n = len(task.test)
    assert {len(texts) for texts in (*view.texts.values(), view.gold, read.values, read.errors)} == {n}
    assert 0 <= read.errors.min() <= read.errors.max() <= 100
    assert len(read.words) in (0, n)
    assert sum(map(sum, read.counts)) in (0, n, getattr(task.test, "n_outputs", n))
    wrong = read.errors > view.limit
    if rules.metrics[0] == "accuracy" and kind != "tags":
        assert 100 * np.mean(~wrong) == pytest.approx(run.test["accuracy"])
