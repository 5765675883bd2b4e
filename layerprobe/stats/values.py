"""Values of statistics over seeds and items, without numpy, so that settings load quickly."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.interval import Interval
from layerprobe.metrics.names import bounded
from layerprobe.names import plural
from layerprobe.results.conclusion import Check, Fact, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from layerprobe.stats.crossed import Links

TOLERANCE = 0.5
"""Default loss allowed for a smaller model, in points of a metric x 100."""
MarginVerdict = Literal["within", "not shown", "worse"]
"""Whether a loss is within a margin, above it ("worse"), or neither is significant ("not shown")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The score of a trivial baseline on the same items."""

    value: float
    """Score x 100."""
    by: str
    """The baseline, such as "always predicting the largest class"."""

    def unbeaten(self, interval: tuple[float, float] | None) -> bool:
        """Return whether a score with this interval is not significantly above the floor; False without interval."""
        return interval is not None and interval[0] <= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest:
    """Scores on the same items, x 100, compared with the best of them; all tuples are in the order of the scores."""

    scores: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    """Interval of each score over new items, Student's t; the lower end of the highest allows for selection."""
    behind: tuple[float, ...]
    """Upper bounds, jointly valid, on the points that each score is behind the best, at least 0."""
    candidates: tuple[int, ...]
    """Ascending numbers of the scores that include the best."""
    level: float
    """Confidence level of each interval, and of all other statements jointly."""
    tolerance: float
    """Points that a score may be behind the best."""
    floor: Floor | None = None
    """Score of a trivial baseline; None if there is none."""
    chosen: int | None = field(default=None, metadata=RARE)
    """Number of the score chosen on other data, such as the validation split; None: the highest score is chosen."""

    @property
    def best(self) -> int:
        """Number of the chosen score, or else of the highest one, the earlier of equals."""
        if self.chosen is not None:
            return self.chosen
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def on_floor(self) -> bool:
        """Whether no score is significantly above the floor, so that none is recommended."""
        return self.floor is not None and self.floor.unbeaten(self.intervals[self.best])

    def smallest(self, costs: Sequence[float] = ()) -> int | None:
        """Return the cheapest score (by default the first) that is surely within the tolerance; None if none is."""
        within = [i for i, behind in enumerate(self.behind) if behind <= self.tolerance and not self.on_floor]
        return min(within, key=costs.__getitem__ if costs else None, default=None)

    @property
    def verdict(self) -> Verdict:
        """Confidence in the best one."""
        if self.on_floor:
            return Verdict.FAILED
        if self.candidates == (self.best,):
            return Verdict.DECIDED
        return Verdict.PROBABLE if self.behind[self.best] <= self.tolerance else Verdict.UNDECIDED

    def facts(self, split: str) -> dict[str, Fact]:
        """Return the best score, the floor, and how far it may be behind if another score may be the best."""
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
        """Return the names of the best one, of those that may be the best, and of the floor, for templates."""
        best, candidates = names[self.best], tuple(names[i] for i in self.candidates)
        few = candidates if candidates != (best,) and len(candidates) < len(names) else ()
        every = tuple(names) if 1 < len(candidates) == len(names) else ()
        trivial = "" if self.floor is None or not self.floor.value else self.floor.by
        return {"layer": best, "candidates": few, "every": every, "trivial": trivial}

    def checks(self, names: Sequence[object], split: str, costs: Sequence[float] = ()) -> Iterator[Check]:
        """Yield checks of a cheaper one that is enough, and of the floor."""
        if (smallest := self.smallest(costs)) not in (None, self.best):
            facts = self.facts(split) | {"lower": Fact(value=self.behind[smallest], least=self.tolerance)}
            yield Check(name="enough", passed=True, facts=facts, names={"enough": names[smallest]})
        if self.floor is not None and self.floor.value and not self.on_floor:
            yield Check(name="floor", passed=True)

    def flag(self, i: int, costs: Sequence[float] = ()) -> str | None:
        """Return the flag of a score in a table."""
        if self.on_floor:
            return None
        best = "best guess" if self.verdict is Verdict.UNDECIDED else "best"
        best = best if self.chosen is None else "best by validation"
        flags = [best] if i == self.best else ["may be best"] if i in self.candidates else []
        if i == self.smallest(costs) != self.best:
            flags.append("smallest sufficient")
        return ", ".join(flags) or None


def joint_error_sources(errors: Iterable[Interval]) -> str:
    """Return the sources of error in several intervals; those of a single seed cover items only."""
    return ", or ".join(sorted(dict.fromkeys(map(_error_sources, errors)), key=lambda over: " only" in over))


def _error_sources(error: Interval) -> str:
    """Return the sources of error in an interval: items, seeds or both."""
    if error.n_items is None:
        return "over new seeds only, because outputs per item were not kept"
    if error.seeds_error is None:
        return f"over new {plural(error.unit)} only, because only one seed was run"
    return f"over new {plural(error.unit)} and new seeds"


# ---- over seeds, and of several items -----------------------------------------------------------------


T = TypeVar("T")
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """One metric at one layer over seeds, x 100."""

    values: tuple[float, ...]
    """Values by seed."""
    mean: float
    std: float | None
    """Sample standard deviation; None for one seed."""
    interval: tuple[float, float] | None
    """Interval of the mean, Student's t; None if its error is unknown, as for one seed."""


def seed_scores(values: Sequence[float], level: float = LEVEL, *, metric: str) -> SeedScores:
    """Return at least one score by seed, x 100, with mean, deviation and the interval over seeds alone.

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
    """Return the Pareto front: the items that no other beats, by ascending cost.

    An item is beaten by one with no higher cost and no lower score, if one of the two is better.

    Examples:
        >>> pareto_front([(3, 70), (5, 69), (8, 75)], cost=lambda x: x[0], score=lambda x: x[1])
        ((3, 70), (8, 75))
    """
    return front_beyond_noise(items, lambda item: (cost(item), cost(item)), score)


def front_beyond_noise(items: Iterable[T], cost: Callable[[T], Ends], score: Callable[[T], float]) -> tuple[T, ...]:
    """Return the items that no other surely beats if costs are ranges, by ascending lower end.

    An item is beaten by one with a higher score whose cost range is below or equal to its own, or by one with no lower
    score whose cost range is below.

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
    """Return the layer with the highest score, the earlier of equals.

    Examples:
        >>> best_of([1.0, 3.0, 3.0])
        1
    """
    return max(range(len(scores)), key=scores.__getitem__)


# ---- within a margin ----------------------------------------------------------------------------------


MANY_TIMES = 1e6
"""Largest factor of items that is suggested."""


def upper_end(loss: float, error: Interval | None, *, failure: float, metric: str) -> float:
    """Return the upper confidence bound of a loss; infinity if its error is unknown.

    Args:
        loss: Loss in points.
        error: Error of the loss over items and seeds.
        failure: Points lost by one more failing item, for losses with few or no failing items.
        metric: Metric of the points.
    """
    if error is None or not failure:
        return math.inf if error is None else error.interval[1]
    reach = _reach(error, 1.0, error.seeds_error or 0.0, failure)
    return bounded(metric, (loss, loss + reach), difference=True)[1]


def margin_verdict(error: Interval | None, most: float, margin: float) -> MarginVerdict:
    """Return whether a loss with an upper bound of `most` is within a margin."""
    if most <= margin:
        return "within"
    return "worse" if error is not None and error.interval[0] > margin else "not shown"


def items_needed(loss: float, error: Interval, most: float, margin: float, failure: float) -> tuple[int, bool]:
    """Return the number of items that would show that a loss is within a margin, and whether more seeds are needed.

    0 items if the present ones are enough with more seeds; 0 and False if neither would suffice.
    """
    room, seeds = margin - loss, error.seeds_error or 0.0
    if not error.n_items or room <= 0:
        return 0, False
    room *= _reach(error, 1.0, seeds, failure) / (most - loss)
    enough = _times(error, room, seeds, failure)
    times = enough or _times(error, room, 0.0, failure)
    return round(error.n_items * times) if times > 1 else 0, bool(times and not enough)


def _times(error: Interval, room: float, seeds: float, failure: float) -> float:
    """Return the factor of items at which the interval fits within `room`; 0 if none does."""
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


# ---- of two saved results ------------------------------------------------------------------------------


LARGEST = 2**22
"""Largest number of influences saved with a result (11 MB of JSON); with more, results are compared without items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemInfluences:
    """Influences of items on the scores of a result, saved with it for paired comparisons."""

    digest: str
    """sha256 of the items and their targets."""
    n: int
    """Number of items."""
    scale: float
    """Points that correspond to 1 in `influences`."""
    influences: str
    """(scores, n) influences by layer and seed, float16 in base64."""
    texts: str = field(default="", metadata=RARE)
    """(sides, n) numbers of each item's texts, int32 in base64; empty if no items share texts."""

    @classmethod
    def of(cls, influences: ArrayLike | None, *, digest: str, links: Links | None) -> ItemInfluences | None:
        """Return (scores, n) influences in their saved form; None if more than `LARGEST`, or not finite."""
        import numpy as np

        if influences is None or (psi := np.asarray(influences)).size > LARGEST or not np.isfinite(psi).all():
            return None
        scale, texts = float(np.abs(psi).max(initial=0.0)) or 1.0, ""
        if links is not None:
            sides = np.stack(links.sides)
            texts = _written(np.unique(sides, return_inverse=True)[1].reshape(sides.shape), "<i4")
        return cls(digest=digest, n=psi.shape[1], scale=scale, influences=_written(psi / scale, "<f2"), texts=texts)

    @property
    def rows(self) -> NDArray[np.float64]:
        """(scores, n) influences, in points."""
        return self.scale * self._read(self.influences, "<f2").astype("f8")

    @property
    def links(self) -> Links | None:
        """Items that share texts; None if none do."""
        from layerprobe.stats.crossed import Links

        return Links(sides=tuple(self._read(self.texts, "<i4").astype("i8"))) if self.texts else None

    def _read(self, text: str, dtype: str) -> NDArray[Any]:
        import numpy as np

        try:
            read = np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).reshape(-1, self.n)
            if not np.isfinite(read).all() or (dtype == "<i4" and not 0 <= read.min() <= read.max() < read.size):
                raise ValueError("a number is out of range")
            return read
        except ValueError as error:
            raise DataError(f"cannot read the influences of {self.n} items: {error}") from error


def _written(array: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLayers:
    """Scores of one model on one task by layer, to compare with those of another result."""

    model: str
    task: str
    split: str
    primary: str
    unit: str
    """Name of an item."""
    scores: Mapping[int, tuple[float, ...]]
    """Scores x 100 by layer and seed."""
    seeds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Seeds by layer; empty if nothing was trained with seeds."""
    errors: Mapping[int, Interval] = field(default_factory=dict)
    """Error of the mean score by layer, where known."""
    influences: ItemInfluences | None = None
    """Influences on the scores, in their order."""

    def influences_by_layer(self) -> dict[int, NDArray[np.float64]]:
        """Return the (seeds, n) influences on the scores of each layer, in points."""
        import numpy as np

        assert self.influences is not None
        rows, n_scores = self.influences.rows, [len(scores) for scores in self.scores.values()]
        if len(rows) != sum(n_scores):
            raise DataError(f"expected influences on {sum(n_scores)} scores of {self.task}, got {len(rows)}")
        return dict(zip(self.scores, np.split(rows, np.cumsum(n_scores)[:-1]), strict=True))
