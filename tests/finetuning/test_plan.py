"""What fine-tuning will take: by block-steps, and by the time of a few steps."""

import functools
import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Model
from layerprobe.finetuning import tuning
from layerprobe.finetuning.tuning import plan_tuning, seconds_of_run
from layerprobe.finetuning.values import Protocol
from layerprobe.study.find import plan_find
from tests.models import given
from tests.toy_task import toy_task, toy_task_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is timed takes a second of a core, and ten as long by the wall clock."""
    for name, seconds in (("thread_time", 1.0), ("process_time", 1.0), ("perf_counter", 10.0)):
        monkeypatch.setattr(time, name, functools.partial(next, itertools.count(0.0, seconds)))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("epochs", "evaluations"), [(1, 1), (4, 1), (2, 3)])
def test_time_is_counted_by_examples_and_texts(encoder: Encoder, epochs: int, evaluations: int) -> None:
    task = toy_task(train=64, validation=32, test=32)
    texts = len(task.validation.texts)
    # 8 examples a step and 64 texts, or all, a pass: a second each
    a_text = 1 / min(tuning.TEXTS, texts)
    expected = epochs * (64 / 8 + evaluations * texts * a_text) + len(task.test.texts) * a_text
    protocol = Protocol(epochs=epochs, batch_size=8, evaluations=evaluations)
    assert seconds_of_run(encoder, task, protocol) == pytest.approx((expected, 10.0))


@pytest.mark.parametrize(("kind", "train"), [("sts", 1), ("entailment", 9), ("classification", 1)])
def test_any_kind_and_few_examples_are_timed_and_nothing_changes(encoder: Encoder, kind: str, train: int) -> None:
    before = [parameter.clone() for parameter in encoder.model.parameters()]
    state = torch.get_rng_state()
    task = toy_task_of(kind, train=max(train, 3))
    task = replace(task, train=task.train.take(range(train)))
    assert min(seconds_of_run(encoder, task, Protocol())) > 0
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, old in zip(encoder.model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_a_search_is_planned_with_its_budget_and_its_proof(folder: Path, tmp_path: Path) -> None:
    options = Model(cache_dir=tmp_path)
    model: list[Any] = [given(str(folder), options)]
    found = plan_find(model, toy_task(), goes_on=False, budget=0.25, seeds=4, against_last=3, further=7)
    assert found is not None
    # 3 blocks: layers cost 1 + 2 + 3 + 4, with 4 seeds; the last one and the one to keep with 3
    assert (found["full_sweep"], found["block_steps"]) == (40, 0.25 * 40 + 3 * 2 * 4 + 7)
    # half of 64 training and 32 validation examples
    assert found["n_examples"] == (48, 48, 32)
    assert found.details[0].startswith(
        "The layer is chosen by cross-validation (there are fewer than 1,000 validation pairs): the 64 training and 32 "
        "validation pairs are divided into 2 folds. Each run trains for at most 10 epochs on all but one of them "
        "(about 48 pairs), and is scored on the remaining one (48). The 32 test pairs score the chosen layer."
    )
    whole = plan_find(model, toy_task(), goes_on=False, cross_validation=False)
    assert whole is not None
    assert whole.details[0].startswith(
        "Each run trains for at most 10 epochs on 64 pairs and is scored on 32 validation pairs, which choose. The 32 "
        "test pairs score the chosen layer."
    )
    assert not list(tmp_path.rglob("layer-*"))


def test_a_search_takes_no_more_than_all_runs_that_there_are(folder: Path, tmp_path: Path) -> None:
    model = given(str(folder), Model(cache_dir=tmp_path))

    def planned(**settings: Any) -> float:
        plan = plan_find([model], toy_task(), goes_on=False, budget=1.0, seeds=2, **settings)
        assert plan is not None
        return float(plan["block_steps"])

    # 3 blocks with 2 seeds: 2 * (1 + 2 + 3 + 4)
    assert planned(against_last=2) == 20
    assert planned(against_last=2, further=7) == 20 + 7
    assert planned(against_last=3) == 20 + 2 * 4, "the third seed of both layers is beyond the sweep"


def test_the_plan_is_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "seconds_of_run", lambda *_, **__: (90.0, 1.0))
    timed = plan_tuning(given(str(folder), Model(cache_dir=tmp_path)), toy_task(), block_steps=lambda n: 2 * (n + 1))
    assert timed.sentence == (
        "Fine-tuning bert (3 blocks) takes at most about 3 min on cpu float32, 16 % of a full sweep (every layer with "
        "5 seeds, about 19 min). Each run is 10 epochs of 64 examples (32 for validation, 32 for the test)."
    )
    assert "busy" not in replace(timed, load=1.9).sentence
    assert (
        "about 19 min); this machine is busy, so it may take 10 times as long. Each"
        in replace(timed, load=10.2).sentence
    )
