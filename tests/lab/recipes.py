"""Short recipes of tiny models, run in this process or in one that can be killed.

python -m tests.lab.recipes MODEL DATA CACHE PAUSE
"""

import csv
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch

from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.values import AdaptationProtocol, EncoderSize, PretrainingProtocol
from layerprobe.lab.recipe import AdaptStep, PretrainStep, Recipe, RecipeModel, RecipeTask, TuneStep
from layerprobe.lab.results import RecipeResult
from layerprobe.lab.run import run_recipe
from layerprobe.tasks.values import Examples, TaskSettings
from tests.lab.pretraining.jobs import TEXTS
from tests.toy_task import toy_pairs

FAST = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)
ADAPTATION = AdaptationProtocol(
    learning_rate=1e-2, epochs=1, max_steps=6, batch_size=4, accumulation=1, validation_share=0.1
)


def write_data(folder: Path) -> Path:
    """Write word pairs, sentence pairs and texts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in (("words", 10), ("pairs", 20)):
        for number, split in enumerate(("train", "dev", "test")):
            _write(folder / f"{name}-{split}.csv", toy_pairs(24, seed + number))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return folder


def _write(file: Path, examples: Examples) -> None:
    assert examples.second is not None
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(zip(examples.first, examples.second, examples.targets, strict=True))


def task(data: Path, name: str = "pairs") -> RecipeTask:
    return RecipeTask(settings=TaskSettings(source=str(data / f"{name}-train.csv")))


def words(data: Path) -> TuneStep:
    return TuneStep(task=task(data, "words"), protocol=FAST)


def adaptation(data: Path) -> AdaptStep:
    return AdaptStep(texts=(str(data / "texts.txt"),), protocol=ADAPTATION)


def chain(model: Path, data: Path, cache: Path, *steps: Any, reference: str | None = None, **changes: Any) -> Recipe:
    """Steps before one task, at two layers with two seeds."""
    return Recipe(
        **{
            "name": "short",
            "models": (RecipeModel(name="bert", model=Model(str(model)), reference=reference),),
            "steps": steps,
            "tasks": (task(data),),
            "budgets": {"fast": FAST},
            "layers": (1, 3),
            "seeds": (0, 1),
            "options": Model(device="cpu", cache_dir=cache),
            **changes,
        }
    )


def whole_chain(model: Path, data: Path, cache: Path, **changes: Any) -> Recipe:
    """Every kind of step: an adaptation and 4 + 4 trainings, and 4 of the baseline."""
    return chain(model, data, cache, adaptation(data), words(data), **{"cka": True, **changes})


def numbers(result: RecipeResult) -> dict[str, Any]:
    """Return all of a result but what tells of time and place."""
    kept = to_dict(dataclasses.replace(result, created=""))

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in ("seconds", "created")}
        return [without(item) for item in value] if isinstance(value, list) else value

    found: dict[str, Any] = without(kept)
    return found


STUDY = """
seeds = 1
[[step]]
pretrain = ["mlm", "rtd", "random"]
generator_sizes = [0.5]
steps = 3
batch_size = 8
max_length = 64
held_out = 20
[step.sizes]
s = { n_blocks = 2, hidden_size = 8, heads = 2, intermediate_size = 16 }
[[tasks]]
source = "language"
examples = [24, 20, 20]
[budget.gentle]
epochs = 1
[budget.fast]
epochs = 1
learning_rate = 1e-2
[options]
device = "cpu"
"""
PRETRAINING = PretrainStep(
    objectives=("mlm", "rtd", "random"),
    sizes={"s": EncoderSize(n_blocks=2, hidden_size=8, heads=2, intermediate_size=16)},
    generator_sizes=(0.5,),
    protocol=PretrainingProtocol(steps=3, batch_size=8, max_length=64, held_out=20),
)
SMALL = Recipe(
    name="small",
    steps=(PRETRAINING,),
    tasks=(RecipeTask(examples=(24, 20, 20)),),
    budgets={"gentle": Protocol(epochs=1), "fast": Protocol(epochs=1, learning_rate=1e-2)},
    seeds=(0,),
    options=Model(device="cpu"),
)
"""A study of the pretraining that takes seconds."""


def study(pretraining: dict[str, Any] | None = None, **values: Any) -> Recipe:
    """Return the study with other fields, and others of its pretraining."""
    step = dataclasses.replace(PRETRAINING, **(pretraining or {}))
    return dataclasses.replace(SMALL, **{"steps": (step,), **values})


if __name__ == "__main__":
    torch.set_num_threads(1)

    def slowly(task: str, done: float, total: float) -> None:
        print(task, f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[4]))

    with settings(progress=slowly):
        run_recipe(whole_chain(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
