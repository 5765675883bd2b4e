"""What scores over seeds and items come to: values alone, without numpy, so that settings load quickly."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layerprobe.metrics.names import metric_title
from layerprobe.names import in_percent, listed, plural

TOLERANCE = 1.0
"""Points of a metric x 100 that what is enough may be behind the best."""
POWER = 0.8
"""How often a difference that could have been seen is seen."""
MANY = 8
"""More names than these are counted in a sentence."""
CLOSE = 0.4
"""Of two parts of a variance, neither is most of it where both have a larger share than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedInterval:
    """A score, or a difference of scores, with its errors over items and seeds, x 100.

    standard_error^2 = items_error^2 + seeds_error^2, of which one that is not known counts as 0.
    """

    value: float
    """Mean over seeds."""
    standard_error: float
    """Of the mean, over other items and other seeds."""
    items_error: float | None
    """What seeds without end would leave of it; None where outputs are not known: the interval is over seeds alone."""
    seeds_error: float | None
    """What further seeds take off it; None for one seed: the interval is over items alone."""
    freedom: float
    """Degrees of freedom of the standard error."""
    interval: tuple[float, float]
    """Student's t."""
    level: float
    """Confidence level of the interval."""
    n_items: int | None
    """None where outputs are not known."""
    n_seeds: int
    unit: str = "item"
    """What an item is called, such as pair."""

    @property
    def over(self) -> str:
        """What is drawn anew in the studies that the interval speaks of, in words."""
        if self.n_items is None:
            return "over new seeds only, as outputs by item were not kept"
        if self.seeds_error is None:
            return f"over new {plural(self.unit)} only, as there is one seed"
        return f"over new {plural(self.unit)} and new seeds"

    @property
    def sources(self) -> str:
        """What the interval is over and where most of its error comes from, in words."""
        if self.items_error is None or self.seeds_error is None or not self.standard_error:
            return self.over
        items, seeds = f"the {self.n_items:,} {plural(self.unit)}", f"the {self.n_seeds} seeds"
        share = self.items_error**2 / self.standard_error**2
        if CLOSE < share < 1 - CLOSE:
            return f"{self.over}, about as much of the error from {items} as from {seeds}"
        return f"{self.over}, most of the error from {items if share > CLOSE else seeds}"

    @property
    def visible(self) -> float:
        """The smallest true difference that is seen, apart from 0 by the interval, in `POWER` of all studies like this.

        (t_((1 + level) / 2) + t_POWER) standard errors; at most a hundredth more studies see it from the other side.
        """
        from scipy import stats  # takes a second to load

        student = stats.t(self.freedom)
        return float(student.ppf((1 + self.level) / 2) + student.ppf(POWER)) * self.standard_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The score of a trivial answer on the same items."""

    value: float
    """x 100."""
    by: str
    """The answer, as in "always naming the largest class"."""

    def unbeaten(self, interval: tuple[float, float] | None) -> bool:
        """Return whether what has this interval is not above it; not where none is known."""
        return interval is not None and interval[0] <= self.value

    @property
    def sentence(self) -> str:
        """What it scores."""
        return f"{self.by[0].upper()}{self.by[1:]} scores {self.value:.2f}."

    def no_layer(self, metric: str, best: str, score: str) -> str:
        """Return that no layer is above it, in a sentence: the one that is best, and its score with the interval."""
        return f"No layer predicts better than {self.by} ({metric_title(metric)} {self.value:.2f}): {best} has {score}."


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

    @property
    def best(self) -> int:
        """The number of the highest score, the earlier of equals."""
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def on_floor(self) -> bool:
        """Whether none is above the floor with its error: then none is recommended."""
        return self.floor is not None and self.floor.unbeaten(self.intervals[self.best])

    def smallest(self, costs: Sequence[float] = ()) -> int | None:
        """Return the cheapest, by default the first, that is shown to be within the tolerance; None where none is."""
        within = [i for i, behind in enumerate(self.behind) if behind <= self.tolerance and not self.on_floor]
        return min(within, key=costs.__getitem__ if costs else None, default=None)

    def flag(self, i: int, costs: Sequence[float] = ()) -> str | None:
        """Return what is to be said of one in a table."""
        if self.on_floor:
            return None
        flags = ["best"] if i == self.best else ["may be best"] if i in self.candidates else []
        if i == self.smallest(costs) != self.best:
            flags.append("smallest sufficient")
        return ", ".join(flags) or None

    def written(self, i: int) -> str:
        """Return a score with its interval."""
        return with_interval(self.scores[i], self.intervals[i], self.level)

    def rest(self, names: Sequence[str], what: str, costs: Sequence[float] = ()) -> str:
        """Return which may be the best, the smallest that is enough, and the floor; names are those of all scores."""
        level, may_be = in_percent(self.level), [names[i] for i in self.candidates]
        parts = [f"At {level} the best {what} is {listed(may_be, 'or')}."]
        if len(names) == 1:
            parts = []
        elif len(may_be) in (1, len(names)):
            parts = [f"It is the best {what} at {level}." if len(may_be) == 1 else f"No {what} can be ruled out."]
        elif len(may_be) > MANY:
            parts = [f"At {level} the best is one of {len(may_be)} of the {len(names)} {what}s."]
        smallest, points = self.smallest(costs), f"{self.tolerance:g} point{'' if self.tolerance == 1 else 's'}"
        if smallest not in (None, self.best):
            name = names[smallest] if costs else f"{what.capitalize()} {names[smallest]}"
            found = f"{self.scores[smallest]:.2f}, at most {self.behind[smallest]:.2f} behind"
            parts.append(f"{name} is the smallest shown to be within {points} of the best: {found}.")
        elif self.best != min(range(len(names)), key=costs.__getitem__ if costs else None):
            parts.append(f"No {'smaller' if costs else 'earlier'} {what} is shown to be within {points} of it.")
        return " ".join([*parts, *([self.floor.sentence] if self.floor else [])])


def over_all(errors: Iterable[CrossedInterval]) -> str:
    """Return what several intervals are over, in words: those of one seed are over items only."""
    return ", or ".join(sorted({each.over for each in errors}, key=lambda over: " only" in over))


def with_interval(score: float, interval: tuple[float, float] | None, level: float | None) -> str:
    """Return a score with its interval, where that is known."""
    if interval is None or level is None:
        return f"{score:.2f}"
    return f"{score:.2f} ({in_percent(level)} {interval[0]:.2f} to {interval[1]:.2f})"
