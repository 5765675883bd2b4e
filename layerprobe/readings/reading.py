"""What a reading is: its meaning, its direction for rules, and what it needs. Knows no models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.readings.values import LayerCurve

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

Need = Literal["embeddings", "views", "labels", "reference"]
"""Pooled embeddings of the texts; those of altered copies of each text; a task; another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number by layer: its meaning, its direction for rules, and how it is computed.

    Examples:
        >>> reading = Reading(description="mean length of an embedding", direction=None, compute=lambda source: None)
        >>> reading.alone, reading.directions
        (True, (1, -1))
    """

    description: str
    """What it says of a layer, in one line."""
    direction: Literal[1, -1] | None
    """1 where a higher value promises a better layer, -1 where a lower one does; None where a rule must learn it."""
    compute: Callable[[Source], LayerCurve | None] | None = None
    """What computes it, with its errors where they are known; None for a layer's value that is not defined. No
    function where a comparison with a reference has it."""
    needs: Need = "embeddings"
    """What it is computed from."""
    unit: str = ""
    """Such as nats."""
    maximum: float | None = None
    """Of a share or a similarity, 1: rules take its falls as they are. None where they are parts of the curve's
    largest size."""
    floor: float = 0.0
    """How far it falls at least to mean anything, in its unit: with random weights it falls by less."""
    similarity: bool = False
    """Whether it is a similarity to something else: rules look for a plateau, not for its highest layer."""
    first: int = 0
    """The first layer that has a value of its own; layers before it repeat that of this one."""
    source: str = ""
    """The paper that it comes from."""

    def __post_init__(self) -> None:
        check_choice(self.needs, Need, name="needs")
        check_choice(self.direction, Literal[1, -1, None], name="direction")
        if (self.compute is None) != (self.needs == "reference"):
            raise DataError("expected a function that computes a reading, or one that needs a reference")

    @property
    def meaning(self) -> str:
        """Its meaning, which layers it favours, and its source."""
        better = {1: "higher promises better", -1: "lower promises better"}.get(self.direction or 0)
        return "; ".join(filter(None, (self.description, better, self.source)))

    @property
    def labelled(self) -> bool:
        """Whether it needs labels."""
        return self.needs == "labels"

    @property
    def alone(self) -> bool:
        """Whether it needs nothing but the model and texts."""
        return self.needs not in ("labels", "reference")

    @property
    def directions(self) -> tuple[int, ...]:
        """The signs that rules try: 1 as it is, -1 reversed."""
        return (1, -1) if self.direction is None else (self.direction,)
