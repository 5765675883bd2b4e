"""Fine-tuned models, with other pairs and other seeds each time: intervals cover, and verdicts err at their level."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.loading import load_encoder
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import Protocol
from layerprobe.interval import Interval
from layerprobe.metrics.scores import correlation_influences, correlations
from layerprobe.stats.crossed import crossed

Array = NDArray[np.float64]

LAYERS = (1, 4)
SEEDS = 24
PAIRS = 5000
"""Of the language, which has no end: with these all that is drawn is drawn from."""
PROTOCOL = Protocol(learning_rate=3e-4, epochs=2)
SIZES, COUNTS = (70, 300, 1379), (2, 3, 4, 5)
METRICS = ("spearman", "pearson")


Drawn = dict[str, tuple[list[float], Array]]
"""By metric, the difference by seed and the (seeds, n) influences of items on it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Two layers of the embedded `rtd`, fine-tuned on few pairs with many seeds."""

    outputs: Array
    """(layers, seeds, pairs)"""
    targets: Array
    """(pairs,)"""

    @functools.cached_property
    def truth(self) -> dict[str, float]:
        """The difference of the layers over all seeds and pairs, by metric."""
        scores = [[correlations(each, self.targets) for each in layer] for layer in self.outputs]
        first, second = ([np.mean([each[metric] for each in layer]) for metric in METRICS] for layer in scores)
        return {metric: 100 * float(a - b) for metric, a, b in zip(METRICS, first, second, strict=True)}

    def drawn(self, rng: np.random.Generator, *, n: int, seeds: int) -> Drawn:
        """What seeds and pairs that are drawn say of the difference of the layers.

        They are drawn with replacement, so that the truth is that of all there are.
        """
        items, which = rng.integers(0, self.targets.size, n), rng.integers(0, self.outputs.shape[1], seeds)
        targets, outputs = self.targets[items], self.outputs[:, which][:, :, items]
        scores = [[correlations(each, targets) for each in layer] for layer in outputs]
        psi = [[correlation_influences(each, targets) for each in layer] for layer in outputs]
        return {
            metric: (
                [100 * (a[metric] - b[metric]) for a, b in zip(*scores, strict=True)],
                100 * np.stack([a[metric] - b[metric] for a, b in zip(*psi, strict=True)]),
            )
            for metric in METRICS
        }


def fine_tuned() -> Runs:
    """Fine-tune each layer with each seed on 400 pairs; the pairs to draw from are the test split."""
    task = embedded_task(train=400, validation=50, test=PAIRS)
    encoder = load_encoder(str(embedded_model("rtd")), device="cpu")
    outputs = [
        [fine_tune(encoder, layer, task, protocol=PROTOCOL, seed=seed)[1].of(layer) for seed in range(SEEDS)]
        for layer in LAYERS
    ]
    return Runs(outputs=np.array(outputs), targets=np.array(task.test.targets))


@pytest.fixture(scope="module")
def runs() -> Runs:
    torch.set_num_threads(1)
    return fine_tuned()


def interval_of(values: Sequence[float], influences: Array | None, level: float = 0.95) -> Interval:
    found = crossed(values, influences, level=level)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals hold the truth."""

    both: float
    """Over items and seeds."""
    alone: float
    """Over seeds alone."""
    share: float
    """Of the seeds in the variance."""


def coverage(runs: Runs, *, n: int, seeds: int, studies: int) -> dict[str, Coverage]:
    """Draw so many studies and return, by metric, how often their intervals hold the truth."""
    rng, found = np.random.default_rng(100 * n + seeds), {metric: np.zeros(3) for metric in METRICS}
    for _ in range(studies):
        for metric, (values, influences) in runs.drawn(rng, n=n, seeds=seeds).items():
            both, alone = interval_of(values, influences), interval_of(values, None)
            holds = [each.interval[0] <= runs.truth[metric] <= each.interval[1] for each in (both, alone)]
            found[metric] += [*holds, (both.seeds_error or 0.0) ** 2 / both.standard_error**2]
    means = {metric: (sums / studies).tolist() for metric, sums in found.items()}
    return {metric: Coverage(both=both, alone=alone, share=share) for metric, (both, alone, share) in means.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", COUNTS)
@pytest.mark.parametrize("n", SIZES)
def test_intervals_cover_other_pairs_and_seeds(runs: Runs, n: int, seeds: int) -> None:
    """93 to 97 %, and two standard errors of 500 studies."""
    for found in coverage(runs, n=n, seeds=seeds, studies=500).values():
        assert 0.93 - 0.023 < found.both < 0.97 + 0.015
        assert found.alone < 0.9 or found.share > 0.3
