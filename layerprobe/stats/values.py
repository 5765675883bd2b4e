"""Statistics of scores over seeds and items: values only, without numpy, so that settings load quickly."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from layerprobe.checks import LEVEL
from layerprobe.files.serialisation import RARE
from layerprobe.interval import Interval
from layerprobe.metrics.names import bounded
from layerprobe.results.conclusion import Check, Fact, Verdict

TOLERANCE = 0.5
"""Points of a metric x 100 that what is enough, or smaller, may be behind the best, where nobody says."""
MarginVerdict = Literal["within", "not shown", "worse"]
"""Whether a loss is shown to be within a margin, shown to be above it, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The score of a trivial answer on the same items."""

    value: float
    """x 100."""
    by: str
    """The answer, as in "always predicting the largest class"."""

    def unbeaten(self, interval: tuple[float, float] | None) -> bool:
        """Return whether what has this interval is not above it; not where none is known."""
        return interval is not None and interval[0] <= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest:
    """Scores on the same items, x 100, compared with the best of them; in the order of the scores."""

    scores: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    """Of each on other items, Student's t; the lower end of the highest allows for its having been chosen."""
    behind: tuple[float, ...]
    """Points that the best is ahead of each at most, at least 0; true of all at once."""
    candidates: tuple[int, ...]
    """Numbers of those of which one is the best, ascending."""
    level: float
    """Of each interval, and of all the rest together."""
    tolerance: float
    """Points that one may be behind the best."""
    floor: Floor | None = None
    """What a trivial answer scores; None where there is none."""
    chosen: int | None = field(default=None, metadata=RARE)
    """The one that other data chose, such as the validation split; None where the highest score counts."""

    @property
    def best(self) -> int:
        """The number of the chosen one, else of the highest score, the earlier of equals."""
        if self.chosen is not None:
            return self.chosen
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def on_floor(self) -> bool:
        """Whether none is above the floor with its error: then none is recommended."""
        return self.floor is not None and self.floor.unbeaten(self.intervals[self.best])

    def smallest(self, costs: Sequence[float] = ()) -> int | None:
        """Return the cheapest, by default the first, that is shown to be within the tolerance; None where none is."""
        within = [i for i, behind in enumerate(self.behind) if behind <= self.tolerance and not self.on_floor]
        return min(within, key=costs.__getitem__ if costs else None, default=None)

    @property
    def verdict(self) -> Verdict:
        """How much is known of the best one."""
        if self.on_floor:
            return Verdict.FAILED
        if self.candidates == (self.best,):
            return Verdict.DECIDED
        return Verdict.PROBABLE if self.behind[self.best] <= self.tolerance else Verdict.UNDECIDED

    def facts(self, split: str) -> dict[str, Fact]:
        """Return the score of the best one, the floor, and, where another may be the best, how far it is behind."""
        ends, level = self.intervals[self.best], self.level
        behind = self.behind[self.best]
        facts = {
            "score": Fact(value=self.scores[self.best], unit="score", split=split, interval=ends, level=level),
            "behind": Fact(
                value=behind, split=split, interval=(0.0, behind), level=level, least=self.tolerance, better="lower"
            ),
            "level": Fact(value=level, unit="level"),
            "tolerance": Fact(value=self.tolerance, unit="tolerance"),
        }
        if self.floor is not None and self.floor.value:
            facts["floor"] = Fact(value=self.floor.value, unit="score", split=split)
        if self.candidates == (self.best,) or self.on_floor:
            del facts["behind"]
        return facts

    def names(self, names: Sequence[object]) -> dict[str, object]:
        """Return what the best one is called, which may be the best, and what a trivial answer is, for templates."""
        best, candidates = names[self.best], tuple(names[i] for i in self.candidates)
        few = candidates if candidates != (best,) and len(candidates) < len(names) else ()
        every = tuple(names) if 1 < len(candidates) == len(names) else ()
        trivial = "" if self.floor is None or not self.floor.value else self.floor.by
        return {"layer": best, "candidates": few, "every": every, "trivial": trivial}

    def checks(self, names: Sequence[object], split: str, costs: Sequence[float] = ()) -> Iterator[Check]:
        """Yield which cheaper one is enough, and whether the best is above the floor."""
        if (smallest := self.smallest(costs)) not in (None, self.best):
            facts = self.facts(split) | {"lower": Fact(value=self.behind[smallest], least=self.tolerance)}
            yield Check(name="enough", passed=True, facts=facts, names={"enough": names[smallest]})
        if self.floor is not None and self.floor.value and not self.on_floor:
            yield Check(name="floor", passed=True)

    def flag(self, i: int, costs: Sequence[float] = ()) -> str | None:
        """Return what is to be said of one in a table."""
        if self.on_floor:
            return None
        best = "best guess" if self.verdict is Verdict.UNDECIDED else "best"
        best = best if self.chosen is None else "best by validation"
        flags = [best] if i == self.best else ["may be best"] if i in self.candidates else []
        if i == self.smallest(costs) != self.best:
            flags.append("smallest sufficient")
        return ", ".join(flags) or None


# ---- over seeds, and of several items -----------------------------------------------------------------


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
    return front_beyond_noise(items, lambda item: (cost(item), cost(item)), score)


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


# ---- within a margin ----------------------------------------------------------------------------------


MANY_TIMES = 1e6
"""More times the items than these are no advice."""


def upper_end(loss: float, error: Interval | None, *, failure: float, metric: str) -> float:
    """Return the upper confidence bound of a loss; infinity where its error is unknown.

    Args:
        loss: In points.
        error: Of the loss over items and seeds.
        failure: Points that one more item takes which fails as few or none of these do.
        metric: What the points are of.
    """
    if error is None or not failure:
        return math.inf if error is None else error.interval[1]
    reach = _reach(error, 1.0, error.seeds_error or 0.0, failure)
    return bounded(metric, (loss, loss + reach), difference=True)[1]


def margin_verdict(error: Interval | None, most: float, margin: float) -> MarginVerdict:
    """Return whether a loss with this upper bound is within a margin."""
    if most <= margin:
        return "within"
    return "worse" if error is not None and error.interval[0] > margin else "not shown"


def items_needed(loss: float, error: Interval, most: float, margin: float, failure: float) -> tuple[int, bool]:
    """Return how many items would show that a loss is within a margin, and whether it takes more seeds, too.

    0 items where those that there are would do with more seeds. No items and no seeds where nothing would.
    """
    room, seeds = margin - loss, error.seeds_error or 0.0
    if not error.n_items or room <= 0:
        return 0, False
    room *= _reach(error, 1.0, seeds, failure) / (most - loss)
    enough = _times(error, room, seeds, failure)
    times = enough or _times(error, room, 0.0, failure)
    return round(error.n_items * times) if times > 1 else 0, bool(times and not enough)


def _times(error: Interval, room: float, seeds: float, failure: float) -> float:
    """Return the factor of items at which the interval fits within `room`; 0 where none suffices."""
    times = 1.0
    while _reach(error, times, seeds, failure) > room:
        times *= 1.002
        if times > MANY_TIMES:
            return 0.0
    return times


def _reach(error: Interval, times: float, seeds: float, failure: float) -> float:
    """Return the half-width of the interval with `times` as many items, given the error over seeds."""
    from scipy.special import stdtrit  # takes a while to load

    of_seeds, of_items, one = seeds**2, (error.items_error or 0.0) ** 2 / times, failure / times
    share = of_seeds / (of_seeds + of_items)
    freedom = 1 / (share / max(error.n_seeds - 1, 1) + (1 - share) / ((error.n_items or 2) * times - 1))
    t = float(stdtrit(freedom, (1 + error.level) / 2))
    return t * t / 2 * one + math.hypot(t * math.sqrt(of_seeds + of_items), t * t * one / 2)
