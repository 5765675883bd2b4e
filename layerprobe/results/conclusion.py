"""The conclusion of a result as numbers: a verdict, named facts, checks and next steps. Knows no words; see `words`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from layerprobe.names import plural

if TYPE_CHECKING:
    from layerprobe.interval import Interval


class Verdict(StrEnum):
    """The confidence in a conclusion."""

    DECIDED = "decided"
    """Significant at the requested level."""
    PROBABLE = "probable"
    """The likeliest answer, and good enough at the requested level."""
    UNDECIDED = "undecided"
    """The best guess: another answer may be right, and better by more than the tolerance."""
    FAILED = "failed"
    """Significantly wrong, too bad, or no better than a trivial baseline."""
    NOTHING_TO_DO = "nothing to do"
    """The model is best as it is."""


Unit = Literal[
    "points",  # of a metric x 100
    "score",  # of a metric x 100, not a difference
    "share",  # 0 .. 1, written as percent
    "level",  # of confidence, 0 .. 1, written with all of its digits
    "chance",  # a probability; 0 and 1 are never written
    "times",  # a ratio, such as that of two durations
    "parameters",
    "count",
    "layer",
    "seconds",
    "milliseconds",
    "bytes",
    "tolerance",  # requested points, written as given
    "similarity",  # such as CKA
    "number",  # without a unit, with three significant digits
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number with its unit, split and interval."""

    value: float
    unit: Unit = "points"
    split: str = ""
    """The split of the data it was measured on: validation, test, or empty."""
    interval: tuple[float, float] | None = None
    """Its low and high end."""
    level: float | None = None
    """Confidence level of the interval; None for a range."""
    over: tuple[str, ...] = ()
    """Sources of error in the interval, such as pairs and seeds."""
    better: Literal["higher", "lower", ""] = ""
    least: float | None = None
    """A number it is compared with: it gets enough digits to differ from it."""

    @classmethod
    def of(cls, error: Interval, unit: Unit = "points", split: str = "", **about: object) -> Fact:
        """Return a fact with the value and interval of an estimate."""
        sources = (
            "" if error.n_items is None else f"{error.n_items:,} {plural(error.unit)}",
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


def counts(**numbers: float | None) -> dict[str, Fact]:
    """Return counts as facts; None is left out."""
    return {name: Fact(value=number, unit="count") for name, number in numbers.items() if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The blocks of a model that a result keeps, or may have to keep."""

    n_blocks: int
    """Number of blocks of the whole model."""
    blocks: tuple[int, ...]
    """Blocks that are kept, ascending, from 1."""
    candidates: tuple[int, ...] = ()
    """Layers that include the best one at the requested level, ascending; empty if that was not requested."""
    is_guess: bool = False
    """Whether others may be better by more than the tolerance."""

    @classmethod
    def upto(cls, n_blocks: int, layer: int, candidates: Collection[int] = ()) -> Choice:
        """Return the choice for a model that is truncated at a layer."""
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
    """A next step: a command and its cost."""

    name: str
    """A key of `steps` in `words.toml`."""
    command: tuple[str, ...]
    """The words of the command, without `layerprobe`."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Its facts by name, including the cost."""
    names: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The conclusion of a result; `words` turns it into a headline, a certainty, a sentence, tiles and lines."""

    kind: str
    """The section of `words.toml` with its words, such as find."""
    case: str
    """The case in that section, such as cut."""
    verdict: Verdict
    subject: tuple[str, ...] = ()
    """Names of the models and the data."""
    choice: Choice | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts by name, the most important first: the first four with a tile in `words.toml` are shown as tiles."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Texts and tuples of layers for the templates, such as the metric."""
    checks: tuple[Check, ...] = ()
    steps: tuple[Step, ...] = ()
    """At most two next steps, the more important first."""
