"""Scores of several seeds, put together, and which of some items no other beats. Knows numbers only."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from layerprobe.checks import LEVEL

T = TypeVar("T")
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """One metric at one layer over seeds, x 100."""

    values: tuple[float, ...]
    """By seed."""
    mean: float
    std: float | None
    """Sample standard deviation; None for one seed."""
    interval: tuple[float, float] | None
    """Of the mean, Student's t; None where nothing is known of its error, as for one seed alone."""


def seed_scores(values: Sequence[float], level: float = LEVEL, *, metric: str) -> SeedScores:
    """Return scores of seeds, x 100, at least one, with mean, deviation and the interval over seeds alone.

    Examples:
        >>> seed_scores([71.0, 73.0], metric="accuracy").std
        1.4142135623730951
    """
    from layerprobe.stats.crossed import crossed  # imports numpy

    error = crossed(values, None, level=level, metric=metric, difference=False)
    return SeedScores(
        values=tuple(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        interval=None if error is None else error.interval,
    )


def pareto_front(items: Iterable[T], cost: Callable[[T], float], score: Callable[[T], float]) -> tuple[T, ...]:
    """Return the items that no other beats, by ascending cost.

    An item is beaten by one with no higher cost and no lower score, where one of the two is better.

    Examples:
        >>> pareto_front([(3, 70), (5, 69), (8, 75)], cost=lambda x: x[0], score=lambda x: x[1])
        ((3, 70), (8, 75))
    """
    front: list[T] = []
    for item in sorted(items, key=lambda item: (cost(item), -score(item))):
        equal = front and (cost(item), score(item)) == (cost(front[-1]), score(front[-1]))
        if not front or equal or score(item) > score(front[-1]):
            front.append(item)
    return tuple(front)


def front_beyond_noise(items: Iterable[T], cost: Callable[[T], Ends], score: Callable[[T], float]) -> tuple[T, ...]:
    """Return the items that no other is shown to beat where costs are ranges, by ascending lower end.

    An item is beaten by one with a higher score whose range of costs is below its own, or the very same, or by one with
    no lower score whose range is below.

    Examples:
        >>> front_beyond_noise([(3, 4, 70), (5, 9, 69), (3, 6, 69), (8, 9, 75)], lambda x: x[:2], lambda x: x[2])
        ((3, 4, 70), (3, 6, 69), (8, 9, 75))
    """
    listed = sorted(items, key=lambda item: (cost(item), -score(item)))

    def beats(other: T, item: T) -> bool:
        (low, high), more = cost(item), score(other) - score(item)
        return (cost(other)[1] < low and more >= 0) or (cost(other) == (low, high) and more > 0)

    return tuple(item for item in listed if not any(beats(other, item) for other in listed))


def best_of(scores: Sequence[float]) -> int:
    """Return the layer with the highest score, the earlier one of equals.

    Examples:
        >>> best_of([1.0, 3.0, 3.0])
        1
    """
    return max(range(len(scores)), key=scores.__getitem__)
