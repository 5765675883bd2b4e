"""CPU time of `probe`, beside a loop of scikit-learn's RidgeCV over layers and the same folds, in one process.

`python benchmarks/bench_probe_speed.py`, for embeddings of 2,000 x 13 x 384 and 160 x 5 x 24: seconds of CPU of each
and their ratio, the least of some rounds in turn, after what both import is loaded. The loop standardises, fits and
predicts; it has no errors, no weighted sum and no probes of all rows.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layerprobe.metrics.scores import spearman
from layerprobe.probing.run import probe
from layerprobe.scoring.probes import PENALTIES

Array = NDArray[np.float64]
FOLDS, FOLDINGS = 5, 3


def drawn(n: int, layers: int, width: int) -> tuple[NDArray[np.float32], Array]:
    """Return embeddings, of which later layers carry more of a signal, and what is to be predicted."""
    rng = np.random.default_rng(0)
    signal, embeddings = rng.standard_normal((n, 4)), rng.standard_normal((n, layers, width)).astype(np.float32)
    embeddings[:, :, :4] += signal[:, None] * np.linspace(0.1, 1, layers)[:, None].astype(np.float32)
    return embeddings, signal.sum(axis=1) + rng.standard_normal(n)


def looped(embeddings: NDArray[np.float32], targets: Array) -> list[float]:
    """Return Spearman's correlation by layer, mean over foldings, as scikit-learn's users have it."""
    scores = []
    for layer in range(embeddings.shape[1]):
        rows, by_folding = embeddings[:, layer].astype(np.float64), []
        for seed in range(FOLDINGS):
            outputs = np.empty(len(rows))
            for train, test in KFold(FOLDS, shuffle=True, random_state=seed).split(rows):
                model = make_pipeline(StandardScaler(), RidgeCV(alphas=PENALTIES)).fit(rows[train], targets[train])
                outputs[test] = model.predict(rows[test])
            by_folding.append(spearman(outputs, targets))
        scores.append(100 * float(np.mean(by_folding)))
    return scores


def seconds(function: Callable[[], object]) -> float:
    """Return the seconds of CPU that a call takes."""
    began = time.process_time()
    function()
    return time.process_time() - began


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=["2000x13x384", "160x5x24"], help="rows x layers x features")
    arguments = parser.parse_args(words)
    rounds = range(arguments.rounds)
    few = drawn(40, 2, 4)
    probe(*few)
    looped(*few)
    print("| size | probe | without the weighted sum | scikit-learn | probe / scikit-learn | scores differ by |")
    print("|---|---|---|---|---|---|")
    for text in arguments.sizes:
        size = [int(number) for number in text.split("x")]
        embeddings, targets = drawn(*size)
        ways = (functools.partial(probe, weighted_sum=True), functools.partial(probe, weighted_sum=False), looped)
        times = [[seconds(functools.partial(way, embeddings, targets)) for way in ways] for _ in rounds]
        ours, alone, theirs = np.min(times, axis=0)
        scores = [layer.metrics["spearman"] for layer in probe(embeddings, targets, weighted_sum=False).layers]
        apart = np.abs(np.subtract(scores, looped(embeddings, targets))).max()
        name = " x ".join(f"{number:,}" for number in size)
        print(f"| {name} | {ours:.2f} | {alone:.2f} | {theirs:.2f} | {ours / theirs:.2f} | {apart:.2f} |", flush=True)


if __name__ == "__main__":
    main()
