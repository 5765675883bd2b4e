"""How often `probe` holds the truth: intervals of named layers and of the best one, and the set, over drawn samples.

`python benchmarks/probing_coverage.py CASE DRAWS`, of the cases below. The truth is the mean over the draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from layerprobe.probing.run import probe
from layerprobe.probing.values import Probing

Array = NDArray[np.float64]


def drawer(seed: int, tails: float | None) -> Callable[..., Array]:
    """Return what draws normal numbers, or Student's t with so many degrees of freedom."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape) if tails is None else rng.standard_t(tails, shape)


def fitted(
    seed: int, *, n: int, layers: int, kind: str = "scores", speakers: int | None = None, tails: float | None = None
) -> Probing:
    """Probe equal layers for a sum of four signals with noise; samples of a speaker share the target."""
    draw = drawer(seed, tails)
    signal, noise, embeddings = draw(n, 4), draw(n), draw(n, layers, 10)
    groups = None
    if speakers is not None:
        groups = np.arange(n) % speakers
        signal, noise = draw(speakers, 4)[groups], draw(speakers)[groups]
        embeddings = (draw(speakers, layers, 10)[groups] + embeddings) / np.sqrt(2)
    embeddings[:, :, :4] += signal[:, None]
    scores = signal.sum(axis=1) + noise
    targets = scores if kind == "scores" else np.where(scores > 0, "a", "b")
    foldings = 3 if kind == "scores" else 1
    return probe(embeddings, targets, groups=groups, weighted_sum=False, foldings=foldings, random_state=seed)


def pairs(seed: int, *, n: int, layers: int, tails: float | None = None, better: float = 0.0) -> Probing:
    """Probe pairs whose cosines rise with gold and noise, half of it common to the layers; the last may be better."""
    draw = drawer(seed, tails)
    gold = draw(n)
    noise = (draw(n)[:, None] + draw(n, layers)) / np.sqrt(2)
    strengths = 1 + better * (np.arange(layers) == layers - 1)
    angles = np.pi / 2 * (1 - np.tanh((strengths * gold[:, None] + noise) / 8))
    embeddings = np.zeros((2 * n, layers, 2))
    embeddings[:n, :, 0] = 1
    embeddings[n:] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    targets = np.column_stack([np.arange(n), n + np.arange(n), gold])
    return probe(embeddings, targets, kind="pairs", weighted_sum=False, foldings=1, cv=3)


CASES: dict[str, Callable[[int], Probing]] = {
    **{f"pairs-{k}": lambda seed, k=k: pairs(seed, n=300, layers=k) for k in (7, 13, 25)},  # type: ignore[misc]
    "pairs-better": lambda seed: pairs(seed, n=300, layers=7, better=0.3),
    "pairs-few": lambda seed: pairs(seed, n=40, layers=7),
    "pairs-heavy": lambda seed: pairs(seed, n=300, layers=7, tails=2),
    "scores-few": lambda seed: fitted(seed, n=40, layers=7),
    "scores-speakers": lambda seed: fitted(seed, n=150, layers=7, speakers=30),
    "scores-heavy": lambda seed: fitted(seed, n=60, layers=7, tails=2),
    "classes-few": lambda seed: fitted(seed, n=40, layers=3, kind="classes"),
    "classes-speakers": lambda seed: fitted(seed, n=150, layers=3, speakers=30, kind="classes"),
}


def coverage(results: list[Probing], *, better: bool) -> dict[str, Array]:
    """Return, by draw, the shares of named intervals, of the best one, and of the best layers in the set that hold."""
    scores = np.array([[each.metrics[result.primary] for each in result.layers] for result in results])
    truth = scores.mean(axis=0)
    equal = slice(0, -1) if better else slice(None)
    truth[equal] = truth[equal].mean()
    ends = np.array([[each.error and each.error.interval for each in result.layers] for result in results])
    inside = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
    members = np.array([np.isin(np.arange(scores.shape[1]), result.candidates) for result in results])
    return {
        "named": inside.mean(axis=1),
        "best": inside[np.arange(len(results)), scores.argmax(axis=1)].astype(float),
        "set": members[:, -1].astype(float) if better else members.mean(axis=1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("draws", type=int)
    given = parser.parse_args()
    held = coverage([CASES[given.case](seed) for seed in range(given.draws)], better=given.case == "pairs-better")
    for what, values in held.items():
        print(f"{what}: {100 * values.mean():.1f} ± {100 * values.std() / np.sqrt(len(values)):.1f}")
