"""What does a search say of the controlled pairs, what do simple ways lose there, and what is a nat worth?

    python benchmarks/pairs_searched.py OUT [--csv FILE]

OUT is the folder of `controlled_pairs.py`, with `pairs.json` and `outputs.json`. Nothing is trained: `find` is played
on the recorded scores. There is one run a layer, so a search may take every layer once; budgets are shares of the
paper's sweep of five seeds. Errors over validation items are those of the test items with as many validation items in
their place. Points lost are below the best layer, on test.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_rules import DEVIATIONS, SLOPES, log_likelihoods
from scipy.stats import spearmanr

from layerprobe.prediction.rule import fitted_parameters, fixed_fraction
from layerprobe.search.plan import answer, next_run
from layerprobe.search.values import Evidence, Score, SearchSettings
from layerprobe.stats.crossed import item_covariance
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.loading import load_task

BUDGETS = (0.05, 0.10, 0.15, 0.20)
PAPER_SEEDS = 5


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was read and fine-tuned of every encoder whose layers are all there."""
    figures, outputs = (json.loads((folder / name).read_text()) for name in ("pairs.json", "outputs.json"))
    arms: dict[str, dict[str, Any]] = {}
    for row in figures["read"]:
        runs = {run["layer"]: run for run in figures["tuned"] if run["arm"] == row["arm"] and "test" in run}
        if len(runs) == len(row["infonce"]):
            arms[row["arm"]] = {"read": row, "runs": runs, "outputs": outputs[row["arm"]]}
    return arms


def searched(arm: dict[str, Any], task: Any, share: float) -> tuple[int, tuple[int, ...], float]:
    """Return the layer that a search keeps, its set, and its cost as a share of the paper's sweep."""
    runs, infonce, test = arm["runs"], tuple(arm["read"]["infonce"]), task.test
    n_blocks = len(infonce) - 1
    psi = {layer: item_influences(task.kind, np.array(arm["outputs"][str(layer)]), test.gold) for layer in runs}
    settings = SearchSettings(budget=min(1.0, share * PAPER_SEEDS), seeds=1)
    layers: list[int] = []

    def evidence() -> Evidence:
        scores = tuple(Score(layer=layer, seed=0, value=runs[layer]["validation"]) for layer in layers)
        items = item_covariance([psi[layer] for layer in layers]) if layers else np.zeros((0, 0))
        shared = tuple(map(tuple, (items * len(test) / len(task.validation)).tolist()))
        return Evidence(
            n_blocks=n_blocks, scores=scores, item_covariance=shared, infonce=infonce, n_items=len(task.validation)
        )

    while (run := next_run(evidence(), settings).run) is not None:
        layers.append(run.layer)
    result = answer(evidence(), settings)
    spent = sum(layer + 1 for layer in layers) / PAPER_SEEDS / ((n_blocks + 1) * (n_blocks + 2) / 2)
    return result.best_layer, result.candidates, spent


def simple(arm: dict[str, Any]) -> dict[str, int]:
    """Return the layers that simple ways take."""
    read, runs = arm["read"], arm["runs"]
    n_blocks, infonce = len(read["infonce"]) - 1, read["infonce"]

    def validated(layers: Sequence[int]) -> int:
        return max(layers, key=lambda layer: runs[layer]["validation"])

    highest = sorted(range(n_blocks + 1), key=lambda layer: -infonce[layer])
    return {
        "last layer": n_blocks,
        "rule: fall of InfoNCE": read["recommended"],
        "highest InfoNCE": highest[0],
        "three of highest InfoNCE, tuned once": validated(highest[:3]),
        "fixed fraction of depth": fixed_fraction(n_blocks),
        "every second layer, tuned once": validated(range(n_blocks, 0, -2)),
        "every layer, tuned once": validated(range(n_blocks + 1)),
        "best zero-shot layer (test)": int(np.argmax(read["zero_shot_test"])),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stsb", type=Path, required=True, help="folder of the STS benchmark")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args(arguments)
    arms, task = tables(asked.out), load_task(asked.stsb / "en-train.csv")
    choices = [(float(slope), float(sd)) for slope, sd in itertools.product(SLOPES, DEVIATIONS)]
    used = fitted_parameters()
    sums: dict[str, Any] = {}
    for name, arm in arms.items():
        test = np.array([arm["runs"][layer]["test"] for layer in sorted(arm["runs"])])
        rho = spearmanr(arm["read"]["infonce"], test).statistic
        of_blocks = spearmanr(arm["read"]["infonce"][1:], test[1:]).statistic
        print(f"{name}: correlation of InfoNCE with the scores {rho:.2f}, of blocks alone {of_blocks:.2f}")
        for way, layer in simple(arm).items():
            print(f"  {way}: layer {layer}, {test.max() - test[layer]:.1f} points lost")
        for share in BUDGETS:
            layer, candidates, spent = searched(arm, task, share)
            lost = test.max() - test[layer]
            print(f"  find, {share:.0%}: layer {layer}, {lost:.1f} lost; set {candidates}; spent {spent:.1%}")
        scores = tuple(Score(layer=layer, seed=0, value=float(value)) for layer, value in enumerate(test))
        evidence = Evidence(n_blocks=len(test) - 1, scores=scores, infonce=tuple(arm["read"]["infonce"]))
        family = name.split()[0]
        sums[family] = sums.get(family, 0.0) + log_likelihoods(evidence, choices)
    sums["all"] = sum(sums.values())
    for family, likely in sums.items():
        best = int(np.argmax(likely))
        less = likely[best] - likely[choices.index((used.slope, used.slope_sd))]
        nothing = likely[best] - likely[choices.index((0.0, 0.0))]
        slope, sd = choices[best]
        print(f"{family}: a nat is worth {slope:g} ± {sd:g} points; {used.slope:g} ± {used.slope_sd:g} has {less:.1f}")
        print(f"  less log-likelihood, and nothing at all {nothing:.1f}")
    if asked.csv:
        write(asked.csv, json.loads((asked.out / "pairs.json").read_text()))


def write(path: Path, figures: dict[str, Any]) -> None:
    """Write a row a run, with what was read of its layer before; of layers without a run, what was read."""
    reads = {row["arm"]: row for row in figures["read"] if "infonce" in row}
    runs = {(row["arm"], row["layer"], row.get("seed", 0)): row for row in figures["tuned"] if "test" in row}
    untuned = {(arm, layer, 0) for arm, read in reads.items() for layer in range(len(read["infonce"]))}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        head = ("encoder", "layer", "seed", "test", "validation", "best epoch", "validation by epoch")
        writer.writerow((*head, "zero-shot, test", "InfoNCE", "its standard error", "CKA with the encoder as is"))
        for arm, layer, seed in sorted(untuned | runs.keys()):
            cells: list[object] = [arm, layer, seed]
            if (run := runs.get((arm, layer, seed))) is not None:
                epochs = " ".join(f"{value:.2f}" for value in run["epochs"])
                cells += [f"{run['test']:.2f}", f"{run['validation']:.2f}", run["best_epoch"], epochs]
            else:
                cells += [""] * 4
            read = reads.get(arm, {})
            for name in ("zero_shot_test", "infonce", "infonce_errors", "cka_with_as_is"):
                values = read.get(name)
                cells.append("" if values is None else f"{values[layer]:.3f}")
            writer.writerow(cells)


if __name__ == "__main__":
    main()
