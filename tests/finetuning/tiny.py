"""Two tiny models on one task over three layers and two seeds, fine-tuned here or in a process that can be killed.

python -m tests.finetuning.tiny FOLDER CACHE WORKERS [RAY]
"""

import csv
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
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol, TuningResult
from layerprobe.tasks.loading import load_task
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


def tuned(folder: Path, cache: Path, *, models: Sequence[str] = ("bert", "electra"), **how: Any) -> TuningResult:
    """Fine-tune them."""
    specs = [Model(f"{folder}/{name}", device="cpu", cache_dir=cache) for name in models]
    task = load_task(folder / "toy-train.csv", score_range=(0.0, 1.0))
    settings = {"layers": LAYERS, "seeds": SEEDS, "protocol": PROTOCOL, **how}
    return finetune(specs, task, settings.pop("layers"), **settings)


def results_in(cache: Path) -> list[Path]:
    return sorted(cache.rglob("result.json"))


def half_written(cache: Path) -> list[Path]:
    known = ("origin.json", "result.json", "outputs.safetensors", "failed.json", "lock")
    return [path for path in (cache / "runs").rglob("*") if path.is_file() and path.name not in known]


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
    cluster = sys.argv[4] if len(sys.argv) > 4 else None
    print(to_json(tuned(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3]), ray=cluster)))
