"""A sweep of two tiny models over three layers and two seeds, in this process or in one that can be killed.

python -m tests.sweeps.tiny FOLDER CACHE WORKERS [RAY]
"""

import csv
import dataclasses
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import to_json
from layerprobe.finetuning import runs
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.sweeps.run import run_sweep
from layerprobe.sweeps.values import Sweep, SweepModel, SweepResult
from layerprobe.tasks.values import TaskSettings
from tests.finetuning.finished import Tuned
from tests.models import save_tiny
from tests.toy_task import toy_task

LAYERS, SEEDS = (0, 1, 3), (0, 1)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)
N_RUNS = 12


def write_inputs(folder: Path) -> Path:
    """Two models and a task in `folder`."""
    for name in ("bert", "electra"):
        save_tiny(name, folder / name)
    task = toy_task(train=32)
    for split in ("train", "validation", "test"):
        examples = task.split(split)  # type: ignore[arg-type]
        with (folder / f"toy-{split}.csv").open("w", newline="") as file:
            rows = zip(examples.first, examples.second or (), examples.targets, strict=True)
            csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
    return folder


def plan_of(folder: Path, cache: Path, *, models: Sequence[str] = ("bert", "electra")) -> Sweep:
    return Sweep(
        models=tuple(SweepModel(model=Model(f"{folder}/{name}")) for name in models),
        tasks=(TaskSettings(source=str(folder / "toy-train.csv"), score_range=(0.0, 1.0)),),
        layers=LAYERS,
        seeds=SEEDS,
        protocol=PROTOCOL,
        options=Model(device="cpu", cache_dir=cache),
    )


def results_in(cache: Path) -> list[Path]:
    return sorted(cache.rglob("result.json"))


def half_written(cache: Path) -> list[Path]:
    known = ("origin.json", "result.json", "outputs.safetensors", "failed.json", "lock")
    return [path for path in (cache / "runs").rglob("*") if path.is_file() and path.name not in known]


def numbers(run: FineTuningRun) -> FineTuningRun:
    """A run without what differs from time to time."""
    return dataclasses.replace(run, seconds=0.0, peak_memory=0)


def finished(result: SweepResult) -> SweepResult:
    return dataclasses.replace(result, seconds_left=0.0)


def note_runs(folder: Path) -> None:
    """Leave a file in `folder` for every run that is made in this process, named by model, layer and seed."""
    fine_tune = runs.fine_tune

    def noting(encoder: Encoder, layer: int, *arguments: Any, seed: int, **options: Any) -> Tuned:
        (folder / f"{Path(encoder.description.name).name} {layer} {seed}.{os.getpid()}").touch()
        return fine_tune(encoder, layer, *arguments, seed=seed, **options)

    runs.fine_tune = noting


if "NOTE_RUNS" in os.environ:  # processes of the pool import this module, too
    note_runs(Path(os.environ["NOTE_RUNS"]))

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)

    def say(result: SweepResult) -> None:
        print(result.n_done, flush=True)

    cluster = sys.argv[4] if len(sys.argv) > 4 else None
    plan = plan_of(Path(sys.argv[1]), Path(sys.argv[2]))
    done = run_sweep(plan, workers=int(sys.argv[3]), ray=cluster, watch=say)
    print(to_json(done))
