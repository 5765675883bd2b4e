"""A sweep of four short runs, in this process or in one that can be killed.

python -m tests.finetuning.sweeps MODEL ROOT PAUSE
"""

import functools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from layerprobe.context import settings
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel, load_encoder
from layerprobe.encoders.model import Model
from layerprobe.encoders.recipe import Recipe
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, run_folder, runs_plan
from layerprobe.finetuning.values import FineTuningRun, Protocol, Runs
from layerprobe.jobs.crew import Share, make_crew, results
from layerprobe.tasks.values import Task
from tests.toy_task import toy_task

TASK = toy_task(train=32)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)
LAYERS, SEEDS = (1, 3), (0, 1)
STEPS = 8


def folder_of(model: Path, root: Path) -> Path:
    return run_folder(resolve(Model(str(model), device="cpu", cache_dir=root)), TASK, PROTOCOL)


class Loaded(SharedModel):
    """A model that a test loads."""

    def __init__(self, load: Callable[[], Encoder]) -> None:
        self.load = load
        asked = SimpleNamespace(batch_tokens=None)
        self.__dict__["checkpoint"] = SimpleNamespace(
            recipe=Recipe(),
            prompt="",
            asked=asked,
            config=SimpleNamespace(),
            label="a model",
            modality="image",
            tokenizer_cautions=(),
        )

    def take_over(self, share: Share) -> None:
        pass

    @functools.cached_property
    def encoder(self) -> Encoder:
        return self.load()


def runs_of(load: Callable[[], Encoder], folder: Path, task: Task, protocol: Protocol, **settings: Any) -> RunSet:
    return RunSet(model=Loaded(load), folder=folder, task=task, protocol=protocol, **settings)


def one_run(runs: RunSet, layer: int, seed: int, *, scan: bool = False) -> Runs:
    """Make a run, or read it."""
    with make_crew(RunWorker, (runs,)) as crew, settings():
        (run,) = results(runs_plan((runs,), {RunJob(layer, seed, scan=scan): 1.0}), crew).values()
    return run


def fine_tuned(runs: RunSet, layers: Sequence[int], *, seeds: Sequence[int]) -> list[FineTuningRun]:
    """Make the runs of some layers with some seeds, or read them."""
    jobs = {RunJob(layer, seed): layer + 1.0 for seed in seeds for layer in layers}
    with make_crew(RunWorker, (runs,)) as crew:
        return [run for (run,) in results(runs_plan((runs,), jobs), crew).values()]


def sweep(model: Path, root: Path) -> list[FineTuningRun]:
    runs = runs_of(lambda: load_encoder(str(model), device="cpu"), folder_of(model, root), TASK, PROTOCOL)
    return fine_tuned(runs, LAYERS, seeds=SEEDS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)

    def slowly(task: str, done: float, total: float) -> None:
        print(task, f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[3]))

    with settings(progress=slowly):
        sweep(Path(sys.argv[1]), Path(sys.argv[2]))
