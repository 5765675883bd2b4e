"""Do gradients of the untrained model predict what every layer scores after fine-tuning? Linearised fine-tuning.

    python benchmarks/gradients.py OUT --zoo ZOO.json STUDY.toml [--zoo ...] --models FOLDER

For every encoder of a zoo whose weights are in the folder, where `layerprobe lab run` left them under its name, and
for every layer, fine-tuning of the truncated model is replaced by its linearisation at the untrained weights
(arXiv 2210.05643; 2409.19458 takes projected gradients, too):

    f(x) = f0(x) + k(x, X) (k(X, X) + ridge)^-1 (y - f0(X)),    k(x, x') = g(x) . g(x')

with f0 the cosine of a pair, g its gradient by the weights, of length 1, X and y 600 training pairs and their targets.
The ridge has the smallest squared error left out one by one. Gradients are projected to 4,096 numbers by random signs;
`adam` first divides each by its root mean square over 100 of the training pairs, as the optimiser does.

Printed is, for each encoder, Spearman's correlation over layers with the mean test score of its recorded runs, and the
regret in points of the layer put first: by the estimated Spearman on 400 validation pairs, by the error left out, by
untrained cosines, by InfoNCE, and by one run at every layer. Below are means with 95 % intervals by Student's t over
encoders. Every layer costs a pass over 1,100 pairs. Estimates are appended to OUT, JSON lines, and none is made twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blocks_or_depth import interval, rows
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.batching import collate, pool
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.lab.dropbench.zoo import ZooEntry, read_zoo
from layerprobe.lab.recipe import load_recipe, loaded_task
from layerprobe.tasks.values import Items, Task

Array = NDArray[np.float64]
WIDTH = 4096
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TRAIN, VALIDATION, FIRST = 600, 400, 100
"""Pairs, and how many of the training pairs say how large gradients are."""
WAYS = ("untrained", "gradients", "gradients, error", "adam", "adam, error")


def projected(encoder: Encoder, layer: int, train: Items, validation: Items) -> tuple[Array, dict[str, Tensor]]:
    """Return the cosine of every pair by the truncated model, and its (pair, WIDTH) gradients of length 1 by way."""
    model = TruncatedEncoder(encoder, layer).eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    rest = -sum(weight.numel() for weight in weights) % WIDTH
    size = sum(weight.numel() for weight in weights) + rest
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0), dtype=torch.int8).float() * 2 - 1

    def gradient(pair: tuple[str, str]) -> tuple[float, Tensor]:
        batch = collate(encoder.tokenize(pair), [0, 1])
        u, v = pool(model(batch), batch["attention_mask"], "mean")
        cosine = F.cosine_similarity(u, v, dim=0)
        found = torch.autograd.grad(cosine, weights, allow_unused=True)
        flat = [torch.zeros(w.numel()) if g is None else g.flatten() for w, g in zip(weights, found, strict=True)]
        return float(cosine.detach()), torch.cat([*flat, torch.zeros(rest)])

    pairs: list[list[tuple[str, str]]] = [list(zip(*items.sides, strict=True)) for items in (train, validation)]
    squares = torch.zeros(size)
    for pair in pairs[0][:FIRST]:
        squares += gradient(pair)[1] ** 2 / FIRST
    scales = {"gradients": signs, "adam": signs / (squares.sqrt() + 1e-3 * squares.mean().sqrt())}
    cosines, projections = list[float](), {way: list[Tensor]() for way in scales}
    for pair in [*pairs[0], *pairs[1]]:
        cosine, flat = gradient(pair)
        cosines.append(cosine)
        for way, scale in scales.items():
            row = (flat * scale).view(-1, WIDTH).sum(0)
            projections[way].append(row / (row.norm() + 1e-9))  # of two equal texts it is 0
    return np.array(cosines), {way: torch.stack(each) for way, each in projections.items()}


def estimates(encoder: Encoder, layer: int, train: Items, validation: Items) -> dict[str, float]:
    """Return the estimated Spearman x 100 by way, less the error left out, and Spearman of the untrained cosines."""
    cosines, gradients = projected(encoder, layer, train, validation)
    targets, n = np.concatenate([train.gold, validation.gold]).astype(np.float64), len(train)
    found = {"untrained": spearman(cosines, targets)}
    residual = torch.from_numpy(targets - cosines)[:n]
    for way, projections in gradients.items():
        kernel = (projections @ projections.T).double()
        values, vectors = torch.linalg.eigh(kernel[:n, :n])
        least = np.inf
        for ridge in RIDGES:
            inverse = 1 / (values.clip(0) + ridge)
            solved = vectors @ (inverse * (vectors.T @ residual))
            error = float(((solved / (vectors**2 @ inverse)) ** 2).mean())
            if error < least:
                least = error
                found[way] = spearman(cosines[n:] + (kernel[n:, :n] @ solved).numpy(), targets[n:])
        found[f"{way}, error"] = -least
    return found


def spearman(outputs: Array, targets: Array) -> float:
    """Return Spearman's correlation x 100."""
    return 100 * float(spearmanr(outputs, targets).statistic)


def drawn(items: Items, number: int) -> Items:
    """Return so many of items at random."""
    return items.take(np.sort(np.random.default_rng(0).permutation(len(items))[:number]).tolist())


def measure(out: Path, entries: list[ZooEntry], task: Task, models: Path) -> None:
    """Append what is not there yet."""
    there = {(row["model"], row["layer"]) for row in rows(out)}
    train, validation = drawn(task.train, TRAIN), drawn(task.validation, VALIDATION)
    for entry in entries:
        encoder = load_encoder(models / entry.name)
        for layer in range(entry.n_blocks + 1):
            if (entry.name, layer) in there:
                continue
            began = time.process_time()
            row = {"model": entry.name, "layer": layer, **estimates(encoder, layer, train, validation)}
            with out.open("a") as file:
                file.write(json.dumps(row | {"seconds": time.process_time() - began}) + "\n")


def compared(entry: ZooEntry, found: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return the rank correlation over layers, and the regret of the highest layer, of each way to predict."""
    test = np.array(entry.budgets["converged"].test)
    ways = {way: np.array([row[way] for row in found]) for way in WAYS}
    ways["InfoNCE"] = np.array(entry.metrics["InfoNCE"].values)
    once = [against(test[:, i], np.delete(test, i, axis=1).mean(axis=1)) for i in range(test.shape[1])]
    one_run = statistics.mean(rank for rank, _ in once), statistics.mean(regret for _, regret in once)
    return {way: against(values, test.mean(axis=1)) for way, values in ways.items()} | {"one run": one_run}


def against(values: Array, truth: Array) -> tuple[float, float]:
    """Return the rank correlation of values with the truth by layer, and the regret of the highest one."""
    return spearman(values, truth) / 100, float(truth.max() - truth[values.argmax()])


def report(entries: list[ZooEntry], found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    by_model = {}
    for entry in entries:
        own = sorted((row for row in found if row["model"] == entry.name), key=lambda row: int(row["layer"]))
        by_model[entry.name] = compared(entry, own)
    ways = list(next(iter(by_model.values())))
    yield f"| encoder | {' | '.join(ways)} |"
    yield "|---" * (1 + len(ways)) + "|"
    for name, made in by_model.items():
        yield f"| {name} | {' | '.join(f'{rank:.2f}, {regret:.1f}' for rank, regret in made.values())} |"
    for number, what in enumerate(("mean rank correlation", "mean regret")):
        means = (interval([made[way][number] for made in by_model.values()], ".2f") for way in ways)
        yield f"| {what} | {' | '.join(means)} |"


def main(arguments: list[str] | None = None) -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--zoo", type=Path, nargs=2, action="append", required=True, metavar=("ZOO", "STUDY"))
    parser.add_argument("--models", type=Path, required=True)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    entries = list[ZooEntry]()
    for zoo, study in given.zoo:
        there = [each for each in read_zoo(zoo).entries if (given.models / each.name / "config.json").is_file()]
        measure(given.out, there, loaded_task(load_recipe(study).tasks[0]), given.models)
        entries += there
    print("\n".join(report(entries, rows(given.out))))


if __name__ == "__main__":
    main()
