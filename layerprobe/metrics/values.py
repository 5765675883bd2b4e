"""What scores over seeds and items come to: values alone, without numpy, so that settings load quickly."""

from collections.abc import Iterable
from dataclasses import dataclass

from layerprobe.metrics.names import metric_title
from layerprobe.names import plural

POWER = 0.8
"""How often a difference that could have been seen is seen."""
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


def over_all(errors: Iterable[CrossedInterval]) -> str:
    """Return what several intervals are over, in words: those of one seed are over items only."""
    return ", or ".join(sorted({each.over for each in errors}, key=lambda over: " only" in over))
