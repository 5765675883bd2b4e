"""What a result says, as numbers: a verdict, named facts, checks and next steps. Knows no words; see `words`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from layerprobe.interval import Interval


class Verdict(StrEnum):
    """How much is known of what a result says."""

    DECIDED = "decided"
    """Shown at the requested level."""
    PROBABLE = "probable"
    """The likeliest answer, which is good enough at the requested level."""
    UNDECIDED = "undecided"
    """The best guess: another answer may be right, and better by more than what was allowed."""
    FAILED = "failed"
    """Shown to be wrong, too bad, or no better than a trivial answer."""
    NOTHING_TO_DO = "nothing to do"
    """The model is best as it is."""


Unit = Literal[
    "points",  # of a metric x 100
    "score",  # of a metric x 100, not a difference
    "share",  # 0 .. 1, written as percent
    "level",  # of confidence, 0 .. 1, written with all of its digits
    "chance",  # a probability, of which 0 and 1 are never written
    "times",  # a ratio, such as of two times
    "parameters",
    "count",
    "layer",
    "seconds",
    "milliseconds",
    "bytes",
    "tolerance",  # points that were asked for, written as they were
    "similarity",  # such as CKA
    "number",  # without a unit, with three significant digits
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number with all that a reader has to know of it."""

    value: float
    unit: Unit = "points"
    split: str = ""
    """Of the data that it was measured on: validation, test, or empty."""
    interval: tuple[float, float] | None = None
    """Its low and high end."""
    level: float | None = None
    """Confidence level of the interval; None of a range."""
    over: tuple[str, ...] = ()
    """What the interval allows for, such as pairs and seeds."""
    better: Literal["higher", "lower", ""] = ""
    least: float | None = None
    """A number that it is compared with: it gets as many digits as tell it apart."""

    @classmethod
    def of(cls, error: Interval, unit: Unit = "points", split: str = "", **about: object) -> Fact:
        """Return a fact of a number with its interval."""
        sources = (
            "" if error.n_items is None else f"{error.n_items:,} {error.unit}s",
            "" if error.seeds_error is None else f"{error.n_seeds} seeds",
        )
        over = tuple(filter(None, sources))
        return cls(
            value=error.value,
            unit=unit,
            split=split,
            interval=error.interval,
            level=error.level,
            over=over,
            **about,  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which blocks of a model a result keeps, or may have to keep."""

    n_blocks: int
    """Of the whole model."""
    blocks: tuple[int, ...]
    """Those that stay, ascending, from 1."""
    candidates: tuple[int, ...] = ()
    """Layers of which one is the best at the requested level, ascending; empty where that is not asked."""
    is_guess: bool = False
    """Whether others may be better by more than what was allowed."""

    @classmethod
    def upto(cls, n_blocks: int, layer: int, candidates: Collection[int] = ()) -> Choice:
        """Return the choice of a model that is truncated at a layer."""
        return cls(n_blocks=n_blocks, blocks=tuple(range(1, layer + 1)), candidates=tuple(sorted(candidates)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A reason to trust a result or not: a line of "Can I trust it?"."""

    name: str
    """A key of `checks` in `words.toml`."""
    passed: bool | None
    """None: open, or a remark."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    names: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do next: a command, and what it costs."""

    name: str
    """A key of `steps` in `words.toml`."""
    command: tuple[str, ...]
    """The words of the command, without `layerprobe`."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Among them what it costs."""
    names: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a result says, of which `words` makes a headline, a certainty, a sentence, tiles and lines."""

    kind: str
    """Which section of `words.toml` has its words, such as find."""
    case: str
    """Which of the cases of that section it is, such as cut."""
    verdict: Verdict
    subject: tuple[str, ...] = ()
    """What it is about: names of models and of the data."""
    choice: Choice | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """By name, the most important first: those of the first four that `words.toml` has a tile for are tiles."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Texts, and tuples of layers, that templates name, such as the metric."""
    checks: tuple[Check, ...] = ()
    steps: tuple[Step, ...] = ()
    """At most two, the one to take first."""
