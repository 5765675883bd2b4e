"""Runs of the embedded pair at ordinary and far too high learning rates: how many are called failed runs?

A run is lost where it scores less than a third of what the same run at 5e-4 scores above the floor, if that is at least
15 points. Labels by chance have nothing to learn.

python benchmarks/failed_runs.py      # five minutes on one core
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load
from layerprobe.errors import TrainingError
from layerprobe.finetuning.outcomes import failure_sign
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import Protocol
from layerprobe.scoring.score import score_split
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Task

ORDINARY, TOO_HIGH = (5e-4, 2e-5), (2e-2, 1e-1)
LAYERS, SEEDS, EPOCHS = (0, 4, 8), (0, 1), (1, 3)
PAIRS = embedded_task(train=200, validation=100, test=40)


def of_classes(name: str, label: Callable[[str], bool]) -> Task:
    """Return the first texts of the pairs with a label each."""
    parts: dict[str, Any] = {}
    for split in ("train", "validation", "test"):
        texts = PAIRS.split(split).first  # type: ignore[attr-defined]
        parts[split] = Examples(first=texts, second=None, targets=tuple(float(label(text)) for text in texts))
    return dataclasses.replace(
        PAIRS, name=name, kind="classification", labels=("no", "yes"), score_range=None, notes=(), **parts
    )


def tasks() -> dict[str, Task]:
    """Return pairs, a frequent and a rare word of the texts, and labels by chance."""
    counts = Counter(word for text in PAIRS.train.first for word in set(text.split()))  # type: ignore[attr-defined]
    often, rare = (min(sorted(counts), key=lambda word: abs(counts[word] - n)) for n in (80, 16))
    rng = np.random.default_rng(0)
    return {
        "pairs": PAIRS,
        "a word": of_classes("a word", lambda text: often in text.split()),
        "a rare word": of_classes("a rare word", lambda text: rare in text.split()),
        "labels by chance": of_classes("chance", lambda _: rng.random() < 0.5),
    }


def main() -> None:
    """Print a row a run, and how many are called failed."""
    torch.set_num_threads(1)
    counts: Counter[tuple[str, ...]] = Counter()
    usual: dict[tuple[Any, ...], float] = {}
    for objective, (name, task) in itertools.product(("rtd", "mlm"), tasks().items()):
        checkpoint = resolve(str(embedded_model(objective)))
        encoder, before = load(checkpoint), dict[int, float]()
        if task.kind == "sts":
            scored = score_split(checkpoint, task, split="validation")[0]
            before = {layer: scored.scores[layer] for layer in scored.layers}
        rates = ORDINARY if name in ("a rare word", "labels by chance") else (*ORDINARY, *TOO_HIGH)
        for rate, *how in itertools.product(rates, LAYERS, SEEDS, EPOCHS):
            layer, seed, epochs = how
            protocol = Protocol(learning_rate=rate, epochs=epochs)
            sort = "too high" if rate in TOO_HIGH else "ordinary"
            row: list[Any] = [objective, name, f"{rate:g}", *how]
            try:
                (run,), outputs = fine_tune(encoder, layer, task, protocol=protocol, seed=seed)
            except TrainingError:
                counts[name, sort, "error"] += 1
                print(*row, "error", flush=True)
                continue
            floor = KINDS[task.kind].floors(task.validation)[run.primary].value
            values, score = outputs.of(layer, "validation"), run.validation[run.primary]
            sign = failure_sign(run, values, floor=floor, untrained=before.get(layer))
            place = (objective, name, *how)
            ahead = usual.setdefault(place, score) - floor
            lost = ahead >= 15 and score - floor < ahead / 3
            counts[name, sort, f"{sign}{', lost' if lost else ''}"] += 1
            losses = [round(epoch.train_loss, 4) for epoch in run.epochs]
            spread = f"{values.std(axis=0).max():.1e}"
            print(*row, losses, f"{score:.1f}", f"floor {floor:.1f}", spread, sign, "lost" * lost, flush=True)
    for names, count in sorted(counts.items()):
        print(*names, count, sep=" | ")


if __name__ == "__main__":
    main()
