"""Floors of metrics: the scores of trivial baselines that ignore the input. Knows numbers only."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.metrics.names import RETRIEVAL_METRICS
from layerprobe.stats.values import Floor as Floor

CUTOFF = 10
"""Number of top documents of a ranking that count."""


LARGEST_CLASS = "always predicting the largest class"
ALWAYS_ONE = "always predicting 1"
RANDOM_ORDER = "a random order"
NAMING_THE_MEAN = "predicting the mean"
NO_ENTITY = "predicting no entity"
NO_ANSWER = "never answering"


def class_floors(gold: ArrayLike) -> dict[str, Floor]:
    """Return the floors of accuracy and macro F1: always predicting the largest class.

    With a share p of the largest of C classes, accuracy is p and macro F1 2p / ((1 + p) C).

    Args:
        gold: (n,) class of each item.

    Examples:
        >>> {name: round(floor.value, 1) for name, floor in class_floors([0, 0, 0, 1]).items()}
        {'accuracy': 75.0, 'macro f1': 42.9}
    """
    counts = np.unique(np.asarray(gold), return_counts=True)[1]
    share = float(counts.max() / counts.sum())
    values: Sequence[tuple[str, float]] = (("accuracy", share), ("macro f1", 2 * share / (1 + share) / len(counts)))
    return {name: Floor(value=100 * value, by=LARGEST_CLASS) for name, value in values}


def decision_floors(gold: ArrayLike) -> dict[str, Floor]:
    """Return the floors of a decision between 1 and 0: F1, average precision and accuracy.

    With a share p of ones, always predicting 1 has F1 = 2p / (1 + p) and average precision p.

    Examples:
        >>> {name: round(floor.value, 1) for name, floor in decision_floors([0, 0, 0, 1]).items()}
        {'f1': 40.0, 'average precision': 25.0, 'accuracy': 75.0}
    """
    share = float(np.mean(np.asarray(gold) == 1))
    return {
        "f1": Floor(value=200 * share / (1 + share), by=ALWAYS_ONE),
        "average precision": Floor(value=100 * share, by=ALWAYS_ONE),
        "accuracy": class_floors(gold)["accuracy"],
    }


def zero_floors(*metrics: str, by: str) -> dict[str, Floor]:
    """Return a floor of 0 for each metric, such as correlations of a random order, or F1 without entities."""
    return {metric: Floor(value=0.0, by=by) for metric in metrics}


def ranking_floors(gains: Iterable[Sequence[float]], documents: Sequence[int]) -> dict[str, Floor]:
    """Return the expected scores of a random order of the documents, averaged over queries.

    With N documents, R of them relevant with gains g, and k = min(10, N): recall@10 is k / N, nDCG@10

        (sum g / N) sum_(i <= k) 1 / log2(i + 1) / (the same sum of the highest gains, each with its own place),

    and MRR@10 sum_(i <= k) P(i) / i, with the rank i of the first relevant document,

        P(i) = R / (N - i + 1) prod_(j < i) (N - R - j + 1) / (N - j + 1).

    Args:
        gains: Gains above 0 of the relevant documents, by query.
        documents: Number of ranked documents, by query.

    Examples:
        >>> {name: round(floor.value, 2) for name, floor in ranking_floors([[1.0]], [100]).items()}
        {'ndcg@10': 4.54, 'mrr@10': 2.93, 'recall@10': 10.0}
    """
    by_query = [
        (_ndcg(tuple(sorted(gain, reverse=True)), n), _first_relevant(len(gain), n), min(CUTOFF, n) / n)
        for gain, n in zip(gains, documents, strict=True)
    ]
    means = np.mean(by_query, axis=0)
    floors = (Floor(value=100 * float(mean), by=RANDOM_ORDER) for mean in means)
    return dict(zip(RETRIEVAL_METRICS, floors, strict=True))


@functools.lru_cache(maxsize=4096)
def _ndcg(gains: tuple[float, ...], n: int) -> float:
    discounts = 1 / np.log2(np.arange(2.0, CUTOFF + 2))
    ideal = np.array(gains[:CUTOFF])
    return float(sum(gains) / n * discounts[: min(CUTOFF, n)].sum() / (ideal @ discounts[: len(ideal)]))


@functools.lru_cache(maxsize=4096)
def _first_relevant(relevant: int, n: int) -> float:
    """Return the expected 1 / rank of the first relevant document, counted as 0 beyond rank 10."""
    place = np.arange(1, n - relevant + 2)
    later = np.cumprod(np.append(1.0, (n - relevant - place[:-1] + 1) / (n - place[:-1] + 1)))
    return float((later * relevant / (n - place + 1) / place)[:CUTOFF].sum())


def has_rare_class(counts: Iterable[int]) -> bool:
    """Return whether a class has less than a fifth of the items of the largest: accuracy then hardly depends on it.

    Examples:
        >>> has_rare_class([90, 10]), has_rare_class([30, 20, 10])
        (True, False)
    """
    sizes = sorted(counts)
    return len(sizes) > 1 and 5 * sizes[0] < sizes[-1]
