"""A sweep of four short runs, in this process or in one that can be killed.

python -m tests.finetuning.sweeps MODEL ROOT PAUSE
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import torch

from layerprobe.encoders.loading import load_encoder, resolve_checkpoint
from layerprobe.finetuning.runs import RunFolder, fine_tune_layers
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.progress import Progress, silent
from tests.toy_task import toy_task

TASK = toy_task(train=32)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)
LAYERS, SEEDS = (1, 3), (0, 1)
STEPS = 8


def folder_of(model: Path, root: Path) -> RunFolder:
    return RunFolder.of(root, resolve_checkpoint(str(model)), TASK, PROTOCOL, computed_on="cpu float32")


def sweep(model: Path, root: Path, *, progress: Progress = silent) -> list[FineTuningRun]:
    return fine_tune_layers(
        lambda: load_encoder(str(model), device="cpu"),
        LAYERS,
        TASK,
        seeds=SEEDS,
        protocol=PROTOCOL,
        folder=folder_of(model, root),
        progress=progress,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)

    def slowly(task: str, done: float, total: float) -> None:
        print(task, f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[3]))

    sweep(Path(sys.argv[1]), Path(sys.argv[2]), progress=slowly)
