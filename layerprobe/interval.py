"""A number with its error over other samples, items or seeds. Knows no numpy: settings load quickly."""

from dataclasses import dataclass, field, replace
from typing import Literal

from layerprobe.files.serialisation import RARE

POWER = 0.8
"""Probability of detecting a difference as large as `Interval.visible`."""
LEAST_SHARE = 0.4
"""Effective share of the samples below which a 95 % interval of CKA may hold the truth in fewer than 93 of 100 cases.
Between layers of MiniLM it is 0.5 to 0.9 on captions, abstracts and sentences of STS-B, and 0.3 to 0.5 on lines of
Wikipedia with headings of a word among them."""
ClaimVerdict = Literal["confirmed", "refuted", "undecided"]
"""Whether a difference shows that the first score is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A score x 100, a similarity, or a difference of two on the same samples, with its error and interval.

    For scores over items and seeds, standard_error^2 = items_error^2 + seeds_error^2, where an unknown error
    counts as 0.
    """

    value: float
    """Mean over samples, or seeds; a similarity is not clamped."""
    standard_error: float
    """Standard error of the value over other samples, items and seeds."""
    interval: tuple[float, float]
    """Lower and upper end."""
    level: float
    """Confidence level of the interval, such as 0.95."""
    freedom: float
    """Degrees of freedom of the standard error."""
    p_value: float | None = field(default=None, repr=False, metadata=RARE)
    """Two-sided p-value of no difference; None where none was computed."""
    label: str = field(default="", repr=False, metadata=RARE)
    """Name of a difference, such as "layer 3 minus layer 2"."""
    effective_share: float | None = field(default=None, repr=False, metadata=RARE)
    """For CKA: the smaller effective share of the samples or groups of both layers, see `SimilarityMap`."""
    items_error: float | None = field(default=None, repr=False, metadata=RARE)
    """Standard error over items alone; None without item outputs: the interval is over seeds alone."""
    seeds_error: float | None = field(default=None, repr=False, metadata=RARE)
    """Standard error over seeds alone; None for one seed: the interval is over items alone."""
    n_items: int | None = field(default=None, repr=False, metadata=RARE)
    """Number of items; None without item outputs."""
    n_seeds: int = field(default=1, repr=False, metadata=RARE)
    unit: str = field(default="item", repr=False, metadata=RARE)
    """Noun for an item, such as pair."""
    shown: bool = field(default=False, repr=False, metadata=RARE)
    """Whether a difference exceeds the tolerance with at least the confidence level, where a tolerance was set."""

    @property
    def doubtful(self) -> bool:
        """Whether the samples are so few that the interval may be too narrow and the value biased."""
        return self.effective_share is not None and self.effective_share < LEAST_SHARE

    @property
    def sign(self) -> int:
        """1 where all of the interval is above 0, -1 where all of it is below, 0 otherwise."""
        return (self.interval[0] > 0) - (self.interval[1] < 0)

    @property
    def verdict(self) -> ClaimVerdict:
        """confirmed: the first score is higher; refuted: the second is higher; undecided: neither."""
        if self.sign == 0:
            return "undecided"
        return "confirmed" if self.sign > 0 else "refuted"

    def at(self, level: float) -> "Interval":
        """Return the same value with an interval at another confidence level."""
        from scipy import stats  # takes a second to load

        half = float(stats.t.isf((1 - level) / 2, self.freedom)) * self.standard_error
        return replace(self, level=level, interval=(self.value - half, self.value + half))

    @property
    def visible(self) -> float:
        """The smallest true difference that `POWER` of such studies would detect.

        (t_((1 + level) / 2) + t_POWER) standard errors; at most 1 % of studies would report the wrong sign.
        """
        from scipy import stats  # takes a second to load

        student = stats.t(self.freedom)
        return float(student.ppf((1 + self.level) / 2) + student.ppf(POWER)) * self.standard_error
