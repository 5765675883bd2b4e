"""A short chain of a tiny model, in this process or in one that can be killed.

python -m tests.lab.chains.jobs MODEL DATA CACHE PAUSE
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
from layerprobe.lab.chains.run import run_chain
from layerprobe.lab.chains.values import AdaptStep, Chain, ChainResult, FinetuneStep
from layerprobe.lab.pretraining.values import AdaptationProtocol
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


def words(data: Path) -> FinetuneStep:
    return FinetuneStep(task=TaskSettings(source=str(data / "words-train.csv")), protocol=FAST)


def pairs(data: Path) -> FinetuneStep:
    return FinetuneStep(task=TaskSettings(source=str(data / "pairs-train.csv")), protocol=FAST)


def adaptation(data: Path) -> AdaptStep:
    return AdaptStep(texts=(str(data / "texts.txt"),), protocol=ADAPTATION)


def whole_chain(model: Path, data: Path, **changes: Any) -> Chain:
    """Every kind of step, with a control; 1 + 4 + 4 trainings twice, and 4 of the baseline."""
    settings: dict[str, Any] = {
        "name": "whole",
        "model": str(model),
        "steps": (adaptation(data), words(data), pairs(data)),
        "layers": (1, 3),
        "seeds": (0, 1),
        "control": (7,),
        **changes,
    }
    return Chain(**settings)


def run_here(chain: Chain, cache: Path) -> ChainResult:
    return run_chain(chain, options=Model(device="cpu", cache_dir=cache))


def numbers(result: ChainResult) -> dict[str, Any]:
    """Return all of a result but what tells of time and place."""
    kept = to_dict(dataclasses.replace(result, created=""))

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in ("seconds", "created")}
        return [without(item) for item in value] if isinstance(value, list) else value

    found: dict[str, Any] = without(kept)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)

    def slowly(task: str, done: float, total: float) -> None:
        print(task, f"{done:g} of {total:g}", flush=True)
        time.sleep(float(sys.argv[4]))

    model, data, cache = map(Path, sys.argv[1:4])
    with settings(progress=slowly):
        run_here(whole_chain(model, data), cache)
