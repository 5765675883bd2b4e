"""A short pretraining or adaptation of a tiny encoder, in this process or in one that can be killed.

python -m tests.lab.pretraining.jobs OBJECTIVE|MODEL OUT PAUSE
"""

import dataclasses
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.lab.pretraining.loop import Trainer
from layerprobe.lab.pretraining.run import adapt, pretrain
from layerprobe.lab.pretraining.values import (
    OBJECTIVES,
    Adaptation,
    AdaptationProtocol,
    EncoderSize,
    Pretraining,
    PretrainingProtocol,
)
from tests.models import given

STEPS, CHECKPOINT_EVERY = 12, 3


def toy_texts(n: int = 60) -> tuple[str, ...]:
    """Runs of the alphabet, so that there is something to learn; one is a copy of another."""
    rng, letters = random.Random(0), "abcdefgh" * 4
    texts = []
    for i in range(n):
        start = rng.randrange(8)
        run = letters[start : start + rng.randrange(4, 20)]
        texts.append(" ".join(f"{run}{'ijklmnopqrstuvwxyz'[i % 18]}{'ijkl'[i // 18]}"))
    return (*texts, texts[0])


TEXTS = toy_texts()
# 54 texts, 4 a batch, 2 batches a step: 7 steps an epoch, the last of them with fewer batches
PROTOCOL = AdaptationProtocol(
    learning_rate=1e-2, epochs=2, max_steps=STEPS, batch_size=4, accumulation=2, validation_share=0.1
)


ON_CPU = Model(device="cpu")
SIZE = EncoderSize(n_blocks=2, hidden_size=16, heads=2, intermediate_size=32)


def adapted(model: Path, out: Path, *, options: Model = ON_CPU, **changes: Any) -> Adaptation:
    how: dict[str, Any] = {"protocol": PROTOCOL, "checkpoint_every": CHECKPOINT_EVERY, "evaluate_every": 4, **changes}
    return adapt(given(model, options), how.pop("texts", TEXTS), out, **how)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def protocol_of(objective: Any, **changes: Any) -> PretrainingProtocol:
    settings = {
        "size": SIZE,
        "generator_size": 0.5,
        "steps": STEPS,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "dropout": 0.1,
        "vocab_size": 60,
        "max_length": 32,
    }
    return PretrainingProtocol(objective=objective, **{**settings, **changes})


def job(objective: Any, out: Path, *, texts: Any = TEXTS, seed: int = 0, **changes: Any) -> Pretraining:
    overwrite, dtype = changes.pop("overwrite", False), changes.pop("dtype", "auto")
    checkpoint_every = changes.pop("checkpoint_every", CHECKPOINT_EVERY)
    return pretrain(
        out,
        texts,
        protocol=protocol_of(objective, **changes),
        seed=seed,
        device="cpu",
        dtype=dtype,
        evaluate_every=4,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
    )


def numbers(found: Adaptation | Pretraining) -> Any:
    """Without what differs from run to run."""
    speed = {"tokens_per_second": 0.0} if isinstance(found, Pretraining) else {}
    return dataclasses.replace(found, seconds=0.0, created="", **speed)  # type: ignore[arg-type]


def assert_same_weights(first: Path, second: Path) -> None:
    files = [path.relative_to(first) for path in first.rglob("*.safetensors")]
    assert files
    for file in files:
        ours, theirs = load_file(first / file), load_file(second / file)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), f"{file}: {name}"


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the run when it begins the step after."""
    advance = Trainer.advance

    def interrupted(self: Trainer) -> None:
        if self.step == step:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Trainer, "advance", interrupted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, to = sys.argv[1], Path(sys.argv[2])

    def slowly(task: str, done: float, total: float) -> None:
        print(task.split()[0], f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[3]))

    with settings(progress=slowly):
        if what in OBJECTIVES:
            job(what, to)
        else:
            adapted(Path(what), to)
