"""What was fitted to models whose drops are known: parameters and records of rules, and what InfoNCE is worth.

Knows the file, `rules.json`. The lab writes it, and a test of the lab fits all of it anew.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from layerprobe.errors import DataError
from layerprobe.files.folders import parsed_as
from layerprobe.prediction.values import Record

FILE = Path(__file__).with_name("rules.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTo:
    """The models that something was fitted to."""

    zoos: dict[str, str]
    """sha256 of each zoo by the name of its file."""
    budgets: tuple[str, ...]
    """Of their fine-tuning."""
    models: int
    families: int
    """Pretraining objectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRule:
    """A rule with its parameters, as a file holds it."""

    name: str
    curves: tuple[str, ...]
    """The readings that it needs of a model."""
    labelled: bool
    """Whether it needs labels."""
    parameters: dict[str, Any]
    """By name, such as a threshold; empty for a rule that has none."""
    record: Record
    """How it fares on families that it was not fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfonceWorth:
    """What a nat of InfoNCE is worth in a search, in points of the score after fine-tuning."""

    fitted_to: FittedTo
    slope: float
    """Expected."""
    slope_sd: float
    """Standard deviation of what it is worth for one model and task."""
    log_bayes_factor: float
    """How much more likely it makes the scores of those models than InfoNCE that is worth nothing, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameters:
    """All that was fitted."""

    version: Literal[1]
    """Of the format."""
    fitted_to: FittedTo
    """The models that the rules are of."""
    rules: tuple[FittedRule, ...]
    search: InfonceWorth

    @property
    def by_name(self) -> dict[str, FittedRule]:
        """The rules by name."""
        return {rule.name: rule for rule in self.rules}


@functools.cache
def fitted_parameters() -> FittedParameters:
    """Return what comes with layerprobe."""
    try:
        parameters, checksum = parsed_as(FittedParameters, FILE.read_bytes())
        if checksum is None:
            raise DataError("it has no checksum")
        return parameters
    except (OSError, DataError) as error:
        raise DataError(f"cannot read the rules that come with layerprobe ({error}): install it again") from error
