"""One budget over two models, played on the recorded encoders of DropBench, and the same budget split evenly.

    python benchmarks/several_models.py [--budget 0.1]

The pairs are all encoders of one corpus, size and pretraining seed that differ in their objective; each search begins
with each of three fine-tuning seeds in turn. The budget is a share of the paper's sweeps of both, of five seeds.

    regret      mean test score of the best layer of both, over seeds, less that of the layer which is kept, x 100
    set         how often the 95 % set of layers of both models holds that best layer, and how many it has
    sure, wrong searches that give one model a chance of 95 % or more to have the best layer, and those where it has not
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.lab.dropbench.strategies import PAPER_SEEDS, Recorded
from layerprobe.lab.dropbench.zoo import read_searched
from layerprobe.search.plan import next_run
from layerprobe.search.posterior import posterior, side_by_side
from layerprobe.search.values import Evidence, SearchSettings

STARTS = 3


def pairs() -> Iterator[tuple[Recorded, Recorded]]:
    """Yield the records of two models that differ in nothing but their objective."""
    models = [Recorded(entry=entry, tuned=entry.budgets["converged"]) for entry in read_searched().entries]
    like = [re.sub(r"mlm|rtd|electra-15|random", "*", each.entry.name) for each in models]
    for i, j in itertools.combinations(range(len(models)), 2):
        if like[i] == like[j] and models[i].searchable and models[j].searchable:
            yield models[i], models[j]


def searched(models: Sequence[Recorded], settings: SearchSettings, first: int) -> list[Evidence]:
    """Return what one search of all models has in the end."""
    runs: list[tuple[tuple[int, int], ...]] = [() for _ in models]

    def evidence() -> list[Evidence]:
        found = zip(models, runs, strict=True)
        return [replace(each.evidence(made, first=first), model=i) for i, (each, made) in enumerate(found)]

    while (run := next_run(evidence(), settings).run) is not None:
        runs[run.model] += ((run.layer, run.seed),)
    return evidence()


def outcome(models: Sequence[Recorded], evidence: Sequence[Evidence]) -> tuple[float, bool, int, bool, bool]:
    """Return the columns of one search."""
    posteriors = side_by_side([posterior(scores) for scores in evidence])
    truth = np.concatenate([np.array(each.tuned.test).mean(axis=1) for each in models])
    model_of = np.repeat(np.arange(len(models)), [each.tuned.n_layers for each in models])
    best, stated = int(truth.argmax()), posteriors.candidates(0.95)
    chances = np.bincount(model_of, posteriors.chances)
    sure = bool(chances.max() >= 0.95)
    wrong = sure and int(chances.argmax()) != model_of[best]
    return float(truth[best] - truth[posteriors.best_layer]), best in stated, len(stated), sure, wrong


def main(arguments: list[str] | None = None) -> None:
    """Play all, and print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=0.1)
    given = parser.parse_args(arguments)
    print(
        "| budget | | searches | regret | set holds the best | layers in the set | sure of a model | wrong |\n"
        + "|---" * 8
        + "|"
    )
    for name in "shared", "split evenly":
        rows = []
        for models, first in itertools.product(pairs(), range(STARTS)):
            seeds = len(models[0].tuned.seeds) - 1  # one is left, to score the choice on
            settings = SearchSettings(budget=given.budget * PAPER_SEEDS / seeds, seeds=seeds)
            each = [models] if name == "shared" else [[model] for model in models]
            found = [evidence for group in each for evidence in searched(group, settings, first)]
            rows.append(outcome(models, [replace(evidence, model=i) for i, evidence in enumerate(found)]))
        regret, held, size, sure, wrong = np.array(rows, dtype=float).T
        cells = f"{regret.mean():.2f} | {held.mean():.1%} | {size.mean():.1f} | {sure.sum():.0f} | {wrong.sum():.0f}"
        print(f"| {given.budget:.0%} | {name} | {len(rows)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
