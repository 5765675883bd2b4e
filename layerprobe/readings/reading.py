"""Readings, their curves by layer, and the registry of named readings. Loads no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.registry import Registry
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.shown import LeavesOut, Shown, mask_left_out
from layerprobe.results.table import Chart, Column, Line, Table
from layerprobe.similarity.values import CurveUncertainty

if TYPE_CHECKING:
    from layerprobe.readings.source import Source
    from layerprobe.similarity.checks import Array


DIGITS = ".4g"
"""Format of readings, the same in tables, sentences and pages."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerCurve(LeavesOut, Shown):
    """A number for every layer, with its uncertainty."""

    by_layer = "values", "standard_errors"

    values: tuple[float, ...]
    """Values by layer."""
    standard_errors: tuple[float, ...] | None = None
    """Standard errors of the values; None if unknown."""
    uncertainty: CurveUncertainty | None = None
    """Joint uncertainty of the layers; None if unknown, as in a zoo."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; earlier values repeat its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """Number of last layers left out because they give all texts the same embedding; they repeat the value before."""

    def __post_init__(self) -> None:
        if self.standard_errors is not None and len(self.standard_errors) != len(self.values):
            raise DataError(f"expected {len(self.values)} standard errors, got {len(self.standard_errors)}")
        if self.uncertainty is not None and len(self.uncertainty.lower) != len(self.values):
            raise DataError(f"expected intervals of {len(self.values)} layers, got {len(self.uncertainty.lower)}")

    @classmethod
    def of(
        cls, values: tuple[float, ...], influences: Sequence[Array], *, level: float, groups: Sequence[int] | None
    ) -> LayerCurve:
        """Return numbers by layer with their errors; without errors for fewer than five texts or groups.

        Influences are (texts,) values with mean 0 for each layer; `groups` are the groups of the texts.
        """
        import numpy as np  # takes a while to load, scipy too

        from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty, mean_spread

        if len(influences[0] if groups is None else set(groups)) < MIN_UNITS:
            return cls(values=values)
        numbers = None if groups is None else np.array(groups)
        errors = [mean_spread(row, numbers) for row in influences]
        uncertainty = curve_uncertainty(values, errors, level=level)
        return cls(values=values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)

    @property
    def layers(self) -> range:
        """The layers that are not left out."""
        return range(self.first_layer, len(self.values) - self.collapsed)

    @property
    def table(self) -> Table:
        """One row per layer: the number and its standard error."""
        layers = Column("layer", tuple(range(len(self.values))), meaning="Blocks kept.")
        return Table(columns=(layers, *self.columns("value")), charts=(Chart(lines=(Line("value"),), name="readings"),))

    def columns(
        self, name: str, *, first: int = 0, n_layers: int = 0, unit: str = "", meaning: str = ""
    ) -> Iterator[Column]:
        """Yield the columns of the number and its standard error under a name."""
        layers = self.layers[max(first - self.first_layer, 0) :]
        for title, values in ((name, self.values), (f"{name} standard error", self.standard_errors)):
            errors = () if values is None else mask_left_out(layers, values)
            filled = (*errors, *[None] * (max(n_layers, len(self.values)) - len(errors)))
            yield Column(title, filled, form=DIGITS, unit=unit, meaning=meaning, shown=title == name)

    @property
    def conclusion(self) -> Conclusion:
        """The highest layer, and the fall to the last one."""
        top, last = max(self.layers, key=self.values.__getitem__), self.layers[-1]
        numbers = {"highest": self.values[top], "lowest": self.values[last]}
        numbers |= {"fall": self.values[top] - self.values[last]} if top != last else {}
        return Conclusion(
            kind="reading",
            case="falls" if top != last else "highest at the end",
            verdict=Verdict.DECIDED,
            facts={name: Fact(value=value, unit="number") for name, value in numbers.items()},
            names={"layer": top, "last": last},
        )


Need = Literal["embeddings", "views", "labels", "reference"]
"""Inputs of readings: embeddings of the texts, embeddings of altered copies, a task, or another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number by layer: its meaning, its direction for rules, and its computation.

    Examples:
        >>> reading = Reading(description="mean length of an embedding", direction=None, compute=lambda source: None)
        >>> reading.alone, reading.directions
        (True, (1, -1))
    """

    description: str
    """Its meaning in one line."""
    direction: Literal[1, -1] | None
    """1 if a higher value promises a better layer, -1 if a lower one does; None if a rule has to learn it."""
    compute: Callable[[Source], LayerCurve | None] | None = None
    """Function that computes it, with its errors if known; it returns None if the value of a layer is undefined. None
    if a comparison with a reference provides it."""
    needs: Need = "embeddings"
    """Its input."""
    unit: str = ""
    """Its unit, such as nats."""
    maximum: float | None = None
    """1 for a share or a similarity, whose falls rules take unscaled. None: falls are relative to the curve's largest
    absolute value."""
    floor: float = 0.0
    """Smallest meaningful fall, in its unit: with random weights it falls by less."""
    similarity: bool = False
    """Whether it is a similarity to something else: rules then look for a plateau, not for the highest layer."""
    first: int = 0
    """The first layer with a value of its own; earlier layers repeat it."""
    source: str = ""
    """Its source, such as a paper."""

    def __post_init__(self) -> None:
        check_choice(self.needs, Need, name="needs")
        check_choice(self.direction, Literal[1, -1, None], name="direction")
        if (self.compute is None) != (self.needs == "reference"):
            raise DataError("expected a reading with a function compute, or one with needs='reference'")

    @property
    def meaning(self) -> str:
        """Its meaning, the direction of better layers, and its source."""
        better = {1: "higher is better", -1: "lower is better"}.get(self.direction or 0)
        return "; ".join(filter(None, (self.description, better, self.source)))

    @property
    def labelled(self) -> bool:
        """Whether it needs labels."""
        return self.needs == "labels"

    @property
    def alone(self) -> bool:
        """Whether it needs only the model and texts."""
        return self.needs not in ("labels", "reference")

    @property
    def directions(self) -> tuple[int, ...]:
        """The signs that rules try: 1 unchanged, -1 reversed."""
        return (1, -1) if self.direction is None else (self.direction,)


CKA, SELF_CKA, INFONCE, ZERO_SHOT = "CKA", "self CKA", "InfoNCE", "zero-shot"
READINGS = Registry(
    "layerprobe.readings",
    Reading,
    what="reading",
    shipped={
        SELF_CKA: "layerprobe.readings.frozen:SELF",
        "mean cosine": "layerprobe.readings.frozen:MEAN_COSINE",
        "effective rank": "layerprobe.readings.frozen:EFFECTIVE_RANK",
        "intrinsic dimension": "layerprobe.readings.frozen:INTRINSIC_DIMENSION",
        "top dimension share": "layerprobe.readings.frozen:TOP_DIMENSION_SHARE",
        INFONCE: "layerprobe.readings.frozen:INFONCE",
        ZERO_SHOT: "layerprobe.readings.frozen:ZERO_SHOT",
        "probe": "layerprobe.readings.frozen:PROBE",
        CKA: "layerprobe.readings.frozen:WITH_REFERENCE",
    },
)
"""Named readings. A new one is a `Reading` in its own module and a row here, or an entry point of another package."""


def cka_with(reference: str) -> str:
    """Return the name of CKA with a reference.

    Examples:
        >>> cka_with("bert")
        'CKA, bert'
    """
    return f"{CKA}, {reference}"


def reading_of(name: str) -> Reading:
    """Return the reading with a name, for CKA also `CKA, <reference>`; raise DataError if there is none."""
    return READINGS[CKA if name.startswith(cka_with("")) else name]


def alone() -> list[str]:
    """Return the names of the readings that need only the model and texts."""
    return [name for name, reading in READINGS.usable().items() if reading.alone]


def curves_table(curves: Mapping[str, LayerCurve]) -> Table:
    """Return the table of a model's curves by name, with the meanings of readings as notes."""
    layers = range(max(len(curve.values) for curve in curves.values()))
    columns = [Column("layer", tuple(layers), meaning="Blocks kept.")]
    notes = []
    for name, curve in curves.items():
        reading = READINGS[name]
        columns += curve.columns(
            name, first=reading.first, n_layers=len(layers), unit=reading.unit, meaning=reading.description
        )
        notes.append(f"{name}: {reading.meaning}")
    return Table(columns=tuple(columns), title="Readings", notes=tuple(notes))
