"""Confirming seed by seed: how many runs are made, and that cached runs change nothing."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Model
from layerprobe.finetuning import runs
from layerprobe.finetuning.outputs import RunOutputs
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Confirmation
from layerprobe.study.confirmation import confirm
from layerprobe.tasks.values import Task
from tests.finetuning.finished import Tuned
from tests.models import given
from tests.study.test_confirmation import prediction_of, run_of

DROP = prediction_of([0.9, 0.9, 0.5, 0.4])
LAYERS = (1, 3)
"""The layers that decide: DROP flags 2 and 3."""
EFFECTS = {
    "large": (10.0, 10.1, 9.9, 10.0, 10.2),
    "middling": (10.0, 8.0, 9.5, 9.0, 9.2),
    "none": (3.0, -3.0) * 3,
    "same": (0.4, 0.4, 0.4, 5.0, -5.0),
}
Confirm = Callable[..., Confirmation]


def without_error(task: Task, layer: int) -> RunOutputs:
    """Outputs that are the gold scores: other pairs would score the same, so that seeds are the only error."""
    validation, test = (np.array([split.targets]) for split in (task.validation, task.test))
    return RunOutputs(layers=(layer,), validation=validation, test=test)


@pytest.fixture
def made() -> list[tuple[int, int]]:
    """The layer and seed of every run that is made."""
    return []


@pytest.fixture
def confirming(
    folder: Path, tmp_path: Path, task: Task, made: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> Confirm:
    """`confirm` with scores that are given instead of trained."""

    def confirming(effects: str, **options: Any) -> Confirmation:
        def fine_tune(encoder: Encoder, layer: int, *arguments: Any, seed: int, **others: Any) -> Tuned:
            made.append((layer, seed))
            score = 70.0 + (EFFECTS[effects][seed] if layer == 1 else 0.0)
            return dataclasses.replace(run_of(layer, seed, score), seconds=2.0), without_error(task, layer)

        monkeypatch.setattr(runs, "fine_tune", fine_tune)
        settings = {"seeds": range(5), **options}
        return confirm(Model(folder, device="cpu", cache_dir=tmp_path), task, DROP, **settings)

    return confirming


@pytest.mark.parametrize(("effects", "n_seeds"), [("large", 3), ("middling", 4), ("none", 5), ("same", 5)])
def test_seeds_stop_when_the_verdict_is_settled(
    confirming: Confirm, made: list[tuple[int, int]], effects: str, n_seeds: int
) -> None:
    found = confirming(effects)
    assert made == [(layer, seed) for seed in range(n_seeds) for layer in LAYERS]
    assert [outcome.seeds for outcome in found.outcomes] == [tuple(range(n_seeds))] * 2
    assert found.planned_seeds == 5
    assert found.verdict == ("confirmed" if n_seeds < 5 else "undecided")


def test_all_seeds_are_run_where_that_is_asked_for(confirming: Confirm, made: list[tuple[int, int]]) -> None:
    found = confirming("large", all_seeds=True)
    assert len(made) == 10
    assert (found.planned_seeds, found.verdict) == (None, "confirmed")


def test_further_layers_have_the_same_seeds(confirming: Confirm) -> None:
    found = confirming("large", layers=(0,))
    assert [(outcome.layer, outcome.seeds) for outcome in found.outcomes] == [(n, (0, 1, 2)) for n in (0, 1, 3)]


def test_runs_that_are_there_do_not_change_the_verdict(
    confirming: Confirm, made: list[tuple[int, int]], folder: Path, task: Task, tmp_path: Path
) -> None:
    """A later seed that is finished does not count before its turn."""
    first = confirming("middling")
    finetune(given(str(folder), Model(device="cpu", cache_dir=tmp_path)), task, LAYERS, seeds=(4,))
    made.clear()
    assert confirming("middling") == first
    assert made == []


def test_seeds_count_in_their_order(confirming: Confirm) -> None:
    assert confirming("middling", seeds=(4, 3, 2, 1, 0)).outcomes[0].seeds == (1, 2, 3, 4)
    assert confirming("middling", seeds=(0, 0, 1, 2, 3, 4)).planned_seeds == 5


def test_seeds_and_layers_of_numpy_are_those_of_python(confirming: Confirm, made: list[tuple[int, int]]) -> None:
    found = confirming("large", seeds=np.arange(5), layers=np.arange(1))
    assert made == [(layer, seed) for seed in range(3) for layer in (0, 1, 3)]
    assert {type(number) for pair in made for number in pair} == {int}
    assert found == confirming("large", seeds=range(5), layers=(0,))
