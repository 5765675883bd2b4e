"""What a run does where memory runs out, or its loss is no number."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.errors import InsufficientMemoryError, TrainingError
from layerprobe.finetuning import step, tmft
from layerprobe.finetuning.losses import prepared_sides
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.values import Task
from tests.finetuning.finished import tuned
from tests.finetuning.test_tmft import numbers, trainer_of, without_dropout

ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)


def out_of_memory_above(
    monkeypatch: pytest.MonkeyPatch, most: int, error: Callable[[], Exception], *, training: bool, count: int = 10**9
) -> list[int]:
    """Let passes of more than `most` tokens fail, at most `count` times; return the sizes of those that did not."""
    sizes: list[int] = []
    failures = iter(range(count))
    read_layers = step.read_layers

    def read_or_fail(encoder: Any, model: Any, texts: Any, rows: Any, readouts: Any, pooling: Any) -> Tensor:
        size = collate(texts, rows)["input_ids"].numel()
        if model.training == training:
            if size > most and next(failures, None) is not None:
                if training:
                    torch.rand(7)  # dropout of a part of the step has been drawn
                raise error()
            sizes.append(size)
        return read_layers(encoder, model, texts, rows, readouts, pooling)

    for module in (step, tmft):
        monkeypatch.setattr(module, "read_layers", read_or_fail)
    return sizes


KINDS: dict[str, Callable[[], Exception]] = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "cpu": lambda: RuntimeError(ON_CPU),
    "python": MemoryError,
}


@pytest.mark.parametrize(("most", "error"), list(zip((12, 30, 60), KINDS.values(), strict=True)), ids=KINDS)
def test_a_run_without_memory_has_the_numbers_of_one_with_it(
    encoder: Encoder,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    most: int,
    error: Callable[[], Exception],
) -> None:
    encoder = without_dropout(encoder)
    roomy = tuned(encoder, 2, task, protocol=PROTOCOL, batch_tokens=10_000)
    sizes = out_of_memory_above(monkeypatch, most, error, training=True)
    with caplog.at_level(logging.WARNING):
        run = tuned(encoder, 2, task, protocol=PROTOCOL, batch_tokens=10_000)
    assert max(sizes) <= most
    assert [e.train_loss for e in run.epochs] == pytest.approx([e.train_loss for e in roomy.epochs], abs=1e-5)
    assert run.test == pytest.approx(roomy.test, abs=0.5)
    limits = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert 1 <= len(limits) == len(set(limits)) <= 5
    assert "out of memory at step 1 of 16 with " in caplog.text
    assert f"continuing with passes of at most {limits[-1]} on the same texts" in caplog.text
    assert "dropped out" not in caplog.text


def test_evaluation_without_memory_has_the_same_scores(
    encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    roomy = tuned(encoder, 2, task, protocol=PROTOCOL)
    sizes = out_of_memory_above(monkeypatch, 20, KINDS["cuda"], training=False)
    run = tuned(encoder, 2, task, protocol=PROTOCOL)
    assert max(sizes) <= 20
    assert run.test == pytest.approx(roomy.test, abs=0.5)
    assert run.epochs[-1].train_loss == roomy.epochs[-1].train_loss
    assert "out of memory while embeddings were scored with " in caplog.text
    assert len(caplog.records) <= 5  # what the first evaluation learnt the next ones keep


def test_a_step_that_is_done_again_draws_the_same_dropout(
    encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts of one example cannot be cut any further, so that a failure that passes leaves no trace."""
    short = dataclasses.replace(PROTOCOL, epochs=1)
    calm = tuned(encoder, 2, task, protocol=short, batch_tokens=12)
    out_of_memory_above(monkeypatch, 12, lambda: RuntimeError(ON_CPU), training=True)
    assert numbers(tuned(encoder, 2, task, protocol=short, batch_tokens=24)) == numbers(calm)
    assert "on the same texts; dropout is drawn differently" in caplog.text


def test_gradients_of_a_failed_step_are_dropped(encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = without_dropout(encoder)
    prepared = prepared_sides(encoder, task.train, max_length=64)

    def gradient(trainer: FineTuner) -> list[Tensor]:
        trainer.model.train()
        trainer.update(prepared, np.arange(16))
        return [p.grad.clone() for p in trainer.trained if p.grad is not None]

    expected = gradient(trainer_of(encoder, PROTOCOL))
    trainer = trainer_of(encoder, PROTOCOL)
    backward, calls = Tensor.backward, []

    def backward_or_fail(loss: Tensor) -> None:
        """The second group fails behind its backward pass."""
        backward(loss)  # type: ignore[no-untyped-call]
        calls.append(loss)
        if len(calls) == 2:
            raise RuntimeError(ON_CPU)

    trainer.limit.tokens = 60
    monkeypatch.setattr(Tensor, "backward", backward_or_fail)
    torch.testing.assert_close(gradient(trainer), expected, rtol=1e-4, atol=1e-6)
    assert len(calls) > 4


@pytest.mark.parametrize(("kind", "training"), [("cpu", True), ("python", False)])
def test_one_example_that_does_not_fit_is_an_error(
    encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch, kind: str, training: bool
) -> None:
    out_of_memory_above(monkeypatch, 2, KINDS[kind], training=training)
    with pytest.raises(
        InsufficientMemoryError,
        match="layer 2 does not fit into the memory of cpu: weights, gradients and optimiser take",
    ) as raised:
        tuned(encoder, 2, task, protocol=PROTOCOL)
    assert "\n" not in str(raised.value)


def test_another_failure_is_passed_on(encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory_above(monkeypatch, 2, lambda: RuntimeError("expected scalar type Float"), training=True)
    with pytest.raises(RuntimeError, match="expected scalar type Float"):
        tuned(encoder, 2, task, protocol=PROTOCOL)


def test_what_torch_says_without_memory_is_known() -> None:
    """More bytes than an address has bits for, on every computer."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**46, dtype=torch.float64)
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        torch.AcceleratorError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)"),
    ],
    ids=["cublas", "cudnn", "driver", "mps"],
)
def test_what_accelerators_say_without_memory_is_known(error: RuntimeError) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))


# ---- a loss that is no number -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "epoch", "looks_every"),
    [(1, 1, 1), (3, 1, 3), (9, 2, 3), (16, 2, 100)],
)
def test_the_first_step_without_a_finite_loss_is_named(
    encoder: Encoder, task: Task, monkeypatch: pytest.MonkeyPatch, step: int, epoch: int, looks_every: int
) -> None:
    """Also where an accelerator looks at many losses at once."""
    update = FineTuner.update
    taken = 0

    def spoilt(self: FineTuner, *arguments: Any) -> Tensor:
        nonlocal taken
        self.looks_every = looks_every
        loss = update(self, *arguments)
        taken += 1
        return loss * float("nan") if taken >= step else loss

    monkeypatch.setattr(FineTuner, "update", spoilt)
    message = rf"the loss at layer 1 became nan at step {step} of 16, in epoch {epoch}: lower"
    with pytest.raises(TrainingError, match=message):
        tuned(encoder, 1, task, protocol=PROTOCOL)
    behind = taken - step
    assert 0 <= behind < min(looks_every, 8)
