"""What the caller has set torch to changes no number that is kept, and leaves weights that can be trained."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import layerprobe as lp
from layerprobe.finetuning.tuning import plan_tuning
from layerprobe.rng import plain_torch
from tests.export.judges import sentence_transformer
from tests.export.test_sentence_transformers import built, mean
from tests.models import TEXTS
from tests.toy_task import toy_task_of

Mode = Callable[[], AbstractContextManager[Any]]


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


MODES: tuple[Mode, ...] = (autocast, torch.no_grad, torch.inference_mode)


def test_autocast_of_the_caller_changes_no_embedding(bert: Path, tmp_path: Path) -> None:
    with autocast():
        embeddings = lp.extract(lp.Model(bert, device="cpu", cache_dir=tmp_path / "inside"), TEXTS)
    expected = lp.extract(lp.Model(bert, device="cpu", cache_dir=tmp_path / "outside"), TEXTS)
    for layer in range(embeddings.n_layers):
        np.testing.assert_array_equal(embeddings.layer(layer), expected.layer(layer))


def test_autocast_of_the_caller_changes_no_similarity() -> None:
    array = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    with autocast():
        found = lp.compare(array, array**2).values
    assert found == lp.compare(array, array**2).values


@pytest.mark.parametrize("mode", MODES)
def test_fine_tuning_is_the_same_whatever_the_caller_is_in(mode: Mode, bert: Path, tmp_path: Path) -> None:
    task = toy_task_of("classification", train=16, validation=8, test=8)

    def losses(cache: str) -> list[Any]:
        model = lp.Model(bert, device="cpu", cache_dir=tmp_path / cache)
        return [run.epochs for run in lp.finetune(model, task, [2], seeds=1, protocol=lp.Protocol(epochs=1)).runs]

    with mode():
        plan_tuning(bert, task, block_steps=lambda n: n, seeds=1)
        inside = losses("inside")
    assert inside == losses("outside")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_truncated_can_be_trained_whatever_the_caller_is_in(mode: Mode, tmp_path: Path) -> None:
    model = sentence_transformer(built(tmp_path, mean()))
    with mode():
        cut: Any = lp.truncate(model, 2)
    cut({**cut.tokenize(list(TEXTS))})["sentence_embedding"].sum().backward()
    assert all(weight.grad is not None for weight in cut[0].auto_model.encoder.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_modes_are_the_callers_again_afterwards(mode: Mode) -> None:
    def now() -> tuple[bool, ...]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")

    with mode():
        before = now()
        with plain_torch():
            assert now() == (True, False, False)
        assert now() == before
