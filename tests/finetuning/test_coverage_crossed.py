"""Fine-tuned models, with other pairs and other seeds each time: intervals cover, and verdicts err at their level.

`python -m tests.finetuning.test_coverage_crossed` prints the table of coverage.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.encoders.loading import load_encoder
from layerprobe.finetuning.looks import level_at_look, looks
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.crossed import CrossedInterval, crossed
from layerprobe.metrics.scores import correlations
from layerprobe.pretraining.embedded import embedded_model, embedded_task
from layerprobe.tasks.evaluation import item_influences

Array = NDArray[np.float64]

LAYERS = (1, 4)
SEEDS = 24
PAIRS = 8000
"""Of the language, which has no end: with these all that is drawn is drawn from."""
PROTOCOL = Protocol(learning_rate=3e-4, epochs=2)
SIZES, COUNTS = (70, 300, 1379), (2, 3, 4, 5)
METRICS = ("spearman", "pearson")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Two layers of the embedded `rtd`, fine-tuned on few pairs with many seeds."""

    outputs: Array
    """(layers, seeds, pairs)"""
    targets: Array
    """(pairs,)"""

    def truth(self, metric: str) -> float:
        """The difference of the layers over all seeds and pairs."""
        first, second = ([correlations(each, self.targets)[metric] for each in layer] for layer in self.outputs)
        return 100 * float(np.mean(np.subtract(first, second)))

    def drawn(self, rng: np.random.Generator, *, n: int, seeds: int, metric: str) -> tuple[list[float], Array]:
        """The difference of the layers by seed, and the influences of items on it, of seeds and pairs that are drawn.

        They are drawn with replacement, so that the truth is that of all there are.
        """
        items, which = rng.integers(0, self.targets.size, n), rng.integers(0, self.outputs.shape[1], seeds)
        targets, values, influences = self.targets[items], [], []
        for first, second in zip(*self.outputs[:, which][:, :, items], strict=True):
            values.append(100 * (correlations(first, targets)[metric] - correlations(second, targets)[metric]))
            psi = [item_influences("sts", each, targets, metric=metric) for each in (first, second)]
            influences.append(psi[0] - psi[1])
        return values, np.stack(influences)


def fine_tuned(*, pairs: int = PAIRS, layers: Sequence[int] = LAYERS, seeds: int = SEEDS) -> Runs:
    """Fine-tune each layer with each seed on 400 pairs; the pairs to draw from are the test split."""
    task = embedded_task(train=400, validation=50, test=pairs)
    encoder = load_encoder(str(embedded_model("rtd")), device="cpu")
    outputs = [
        [fine_tune(encoder, layer, task, protocol=PROTOCOL, seed=seed)[1].of(layer) for seed in range(seeds)]
        for layer in layers
    ]
    return Runs(outputs=np.array(outputs), targets=np.array(task.test.targets))


@pytest.fixture(scope="module")
def runs() -> Runs:
    torch.set_num_threads(1)
    return fine_tuned()


def interval_of(values: Sequence[float], influences: Array | None, level: float = 0.95) -> CrossedInterval:
    found = crossed(values, influences, level=level)
    assert found is not None
    return found


def coverage(runs: Runs, *, n: int, seeds: int, metric: str = "spearman", studies: int) -> tuple[float, float, float]:
    """How often the interval holds the truth, and that over seeds alone; and the seeds' share of the variance."""
    rng, truth, inside, share = np.random.default_rng(100 * n + seeds), runs.truth(metric), np.zeros(2), 0.0
    for _ in range(studies):
        values, influences = runs.drawn(rng, n=n, seeds=seeds, metric=metric)
        both = interval_of(values, influences)
        inside += [low <= truth <= high for low, high in (both.interval, interval_of(values, None).interval)]
        share += (both.seeds_error or 0.0) ** 2 / both.standard_error**2
    return (*(inside / studies), share / studies)


def false_verdicts(runs: Runs, *, n: int, planned: int, studies: int, metric: str = "spearman") -> float:
    """How often one of the looks after each seed says that layers differ which do not: the difference is taken off."""
    rng, truth, wrong = np.random.default_rng(n + planned), runs.truth(metric), 0
    for _ in range(studies):
        values, influences = runs.drawn(rng, n=n, seeds=planned, metric=metric)
        for k in looks(planned):
            level = level_at_look(k, 0.95, planned=planned)
            assert level is not None
            low, high = interval_of(values[:k], influences[:k], level).interval
            if not low <= truth <= high:
                wrong += 1
                break
    return wrong / studies


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_intervals_cover_other_pairs_and_seeds(runs: Runs, metric: str) -> None:
    """93 to 97 %, within two standard errors of 600 studies."""
    places = list(itertools.product(SIZES, COUNTS))
    found = {(n, seeds): coverage(runs, n=n, seeds=seeds, metric=metric, studies=600)[0] for n, seeds in places}
    assert all(0.93 - 0.02 < each < 0.97 + 0.014 for each in found.values()), found


@pytest.mark.slow
def test_intervals_over_seeds_alone_do_not_cover(runs: Runs) -> None:
    alone = [coverage(runs, n=n, seeds=5, studies=300)[1] for n in SIZES]
    assert max(alone) < 0.90, alone


@pytest.mark.slow
@pytest.mark.parametrize("planned", [3, 5])
@pytest.mark.parametrize("n", SIZES)
def test_verdicts_that_are_looked_for_after_each_seed_err_at_most_at_their_level(
    runs: Runs, n: int, planned: int
) -> None:
    """1,000 studies: 5 % and two standard errors."""
    assert false_verdicts(runs, n=n, planned=planned, studies=1000) < 0.05 + 0.014


def main() -> None:
    """Print what the tests look at, with more studies: pairs to draw from, and the two layers, can be given."""
    pairs, *layers = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    runs = fine_tuned(pairs=pairs, layers=layers or LAYERS)
    for metric in METRICS:
        print(f"{metric}: difference {runs.truth(metric):.2f}")
        for n, seeds in itertools.product(SIZES, COUNTS):
            both, alone, share = coverage(runs, n=n, seeds=seeds, metric=metric, studies=2000)
            print(f"{n:5} pairs, {seeds} seeds: {both:.3f}, over seeds alone {alone:.3f}; seeds' share {share:.2f}")
        for n, planned in itertools.product(SIZES, (3, 5)):
            print(
                f"{n:5} pairs, looks to {planned} seeds: {false_verdicts(runs, n=n, planned=planned, studies=2000):.3f}"
            )


if __name__ == "__main__":
    main()
