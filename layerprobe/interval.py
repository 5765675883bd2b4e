"""A number, and how far that of other samples, items or seeds may be from it. Knows no numpy: settings load quickly."""

from dataclasses import dataclass, field, replace
from typing import Literal

from layerprobe.files.serialisation import RARE

POWER = 0.8
"""How often a difference that could have been seen is seen."""
LEAST_SHARE = 0.4
"""Effective share of the samples below which a 95 % interval of CKA may hold the truth in fewer than 93 of 100 cases.
Between layers of MiniLM it is 0.5 to 0.9 on captions, abstracts and sentences of STS-B, and 0.3 to 0.5 on lines of
Wikipedia with headings of a word among them."""
ClaimVerdict = Literal["confirmed", "refuted", "undecided"]
"""Whether a difference shows that the first score is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A score x 100, a similarity, or a difference of two on the same samples, with its error and its interval.

    Of a score over items and seeds, standard_error^2 = items_error^2 + seeds_error^2, of which one that is not known
    counts as 0.
    """

    value: float
    """Mean over samples, or seeds; a similarity is not clamped."""
    standard_error: float
    """Of the value, over other samples, items and seeds."""
    interval: tuple[float, float]
    """Its ends."""
    level: float
    """Confidence level of the interval, such as 0.95."""
    freedom: float
    """Degrees of freedom of the standard error."""
    p_value: float | None = field(default=None, repr=False, metadata=RARE)
    """Two-sided, of a difference that is 0; None where that was not asked."""
    label: str = field(default="", repr=False, metadata=RARE)
    """Of a difference, what less what, such as "layer 3 less layer 2"."""
    effective_share: float | None = field(default=None, repr=False, metadata=RARE)
    """Of CKA: effective share of the samples or groups, see `SimilarityMap`, of the layer where it is smaller."""
    items_error: float | None = field(default=None, repr=False, metadata=RARE)
    """What seeds without end would leave of it; None where outputs are not known: the interval is over seeds alone."""
    seeds_error: float | None = field(default=None, repr=False, metadata=RARE)
    """What further seeds take off it; None for one seed: the interval is over items alone."""
    n_items: int | None = field(default=None, repr=False, metadata=RARE)
    """None where outputs are not known."""
    n_seeds: int = field(default=1, repr=False, metadata=RARE)
    unit: str = field(default="item", repr=False, metadata=RARE)
    """What an item is called, such as pair."""
    shown: bool = field(default=False, repr=False, metadata=RARE)
    """Whether a difference is above what matters with at least the level, where that was asked."""

    @property
    def doubtful(self) -> bool:
        """Whether so few samples decide that the interval may be too narrow, and the value biased."""
        return self.effective_share is not None and self.effective_share < LEAST_SHARE

    @property
    def sign(self) -> int:
        """1 where all of the interval is above 0, -1 where all of it is below, and else 0."""
        return (self.interval[0] > 0) - (self.interval[1] < 0)

    @property
    def verdict(self) -> ClaimVerdict:
        """confirmed: the first score is higher; refuted: the second one is; undecided: neither is shown."""
        if self.sign == 0:
            return "undecided"
        return "confirmed" if self.sign > 0 else "refuted"

    def at(self, level: float) -> "Interval":
        """Return it at another level of confidence."""
        from scipy import stats  # takes a second to load

        half = float(stats.t.isf((1 - level) / 2, self.freedom)) * self.standard_error
        return replace(self, level=level, interval=(self.value - half, self.value + half))

    @property
    def visible(self) -> float:
        """The smallest true difference that `POWER` of such studies would detect.

        (t_((1 + level) / 2) + t_POWER) standard errors; at most a hundredth more studies see it from the other side.
        """
        from scipy import stats  # takes a second to load

        student = stats.t(self.freedom)
        return float(student.ppf((1 + self.level) / 2) + student.ppf(POWER)) * self.standard_error
