"""Time pieces of work in alternation, and compare their speeds. Knows clocks, no models."""

import itertools
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

Speedup = tuple[float, float, float]
"""Speed-up over something else: the median over rounds, and the ends of its range."""

ROUNDS = 7
"""Number of rounds whose smallest and largest times contain the median with 98 % confidence."""
LEAST_ROUNDS = 5

T = TypeVar("T")


def turns(ways: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield the number of each round with each piece of work, in reverse order in every second round.

    A machine that warms up, or is shared, then affects all alike.

    Examples:
        >>> list(turns(["a", "b"], 2))
        [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]
    """
    for number in range(rounds):
        yield from zip(itertools.repeat(number), ways[:: -1 if number % 2 else 1])


def timed(
    ways: Mapping[T, Callable[[], object]],
    *,
    rounds: int = ROUNDS,
    most: int | None = None,
    max_seconds: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[T, list[float]]:
    """Return the seconds of pieces of work by round, in `turns`, after a warm-up round.

    With `most`, more rounds follow, up to that number, until `max_seconds` have passed.
    """
    seconds: dict[T, list[float]] = {name: [] for name in ways}
    began = time.perf_counter()
    for number, turn in itertools.groupby(turns(list(ways), 1 + (most or rounds)), key=operator.itemgetter(0)):
        if number > rounds and time.perf_counter() - began > max_seconds:
            break
        for _, name in turn:
            start = clock()
            ways[name]()
            seconds[name].append(clock() - start)
    return {name: taken[1:] for name, taken in seconds.items()}


def median_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the ends of its 95 % interval, by order statistics: for up to eight values, their range."""
    from scipy.stats import binom  # takes a second to load

    ordered, cut = sorted(values), max(int(binom.ppf(0.025, len(values), 0.5)) - 1, 0)
    return statistics.median(ordered), ordered[cut], ordered[-1 - cut]


def speedup(slow: Sequence[float], fast: Sequence[float]) -> Speedup:
    """Return the speed-up of one piece of work over another, from the seconds of both by round."""
    return median_range([a / b for a, b in zip(slow, fast, strict=True)])
