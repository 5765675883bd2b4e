"""A short pretraining of a tiny encoder, in this process or in one that can be killed.

python -m tests.lab.pretraining.jobs OBJECTIVE OUT PAUSE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from layerprobe.context import settings
from layerprobe.lab.pretraining.run import pretrain
from layerprobe.lab.pretraining.values import EncoderSize, Pretraining, PretrainingProtocol
from tests.lab.adaptation.jobs import TEXTS

SIZE = EncoderSize(n_blocks=2, hidden_size=16, heads=2, intermediate_size=32)
STEPS, CHECKPOINT_EVERY = 12, 3


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
    return pretrain(
        out,
        texts,
        protocol=protocol_of(objective, **changes),
        seed=seed,
        device="cpu",
        dtype=dtype,
        evaluate_every=4,
        checkpoint_every=CHECKPOINT_EVERY,
        overwrite=overwrite,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)

    def slowly(task: str, done: float, total: float) -> None:
        print(task.split()[0], f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[3]))

    with settings(progress=slowly):
        job(sys.argv[1], Path(sys.argv[2]))
