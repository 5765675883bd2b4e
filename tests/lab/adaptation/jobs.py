"""A short adaptation of a tiny model, in this process or in one that can be killed.

python -m tests.lab.adaptation.jobs MODEL OUT PAUSE
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from layerprobe.context import settings
from layerprobe.encoders.model import Options
from layerprobe.lab.adaptation.run import adapt
from layerprobe.lab.adaptation.values import Adaptation, AdaptationProtocol
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


ON_CPU = Options(device="cpu")


def job(model: Path, out: Path, *, options: Options = ON_CPU, **changes: Any) -> Adaptation:
    how: dict[str, Any] = {
        "protocol": PROTOCOL,
        "checkpoint_every": CHECKPOINT_EVERY,
        "evaluate_every": 4,
        **changes,
    }
    return adapt(given(model, options), TEXTS, out, **how)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)

    def slowly(task: str, done: float, total: float) -> None:
        print(task, f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[3]))

    with settings(progress=slowly):
        job(Path(sys.argv[1]), Path(sys.argv[2]))
