"""What a reading is, the curve that it gives of a model, and the readings that have a name. Loads no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.registry import Registry
from layerprobe.results.charts import Chart, Line
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.shown import LeavesOut, Shown, mask_left_out
from layerprobe.results.table import Column, Table
from layerprobe.similarity.values import CurveUncertainty

if TYPE_CHECKING:
    from layerprobe.readings.source import Source
    from layerprobe.similarity.checks import Array


DIGITS = ".4g"
"""How readings are written: the same in tables, sentences and pages."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerCurve(LeavesOut, Shown):
    """A number for every layer with its uncertainty."""

    by_layer = "values", "standard_errors"

    values: tuple[float, ...]
    """By layer."""
    standard_errors: tuple[float, ...] | None = None
    """Of the values; None where they are not known."""
    uncertainty: CurveUncertainty | None = None
    """How the errors of layers go together; None where it is not known. What a zoo holds has none."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; values before it repeat its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """How many of the last layers give all texts one embedding and are left out; they repeat the value before them."""

    def __post_init__(self) -> None:
        if self.standard_errors is not None and len(self.standard_errors) != len(self.values):
            raise DataError(f"expected {len(self.values)} standard errors, got {len(self.standard_errors)}")
        if self.uncertainty is not None and len(self.uncertainty.lower) != len(self.values):
            raise DataError(f"expected intervals of {len(self.values)} layers, got {len(self.uncertainty.lower)}")

    @classmethod
    def of(
        cls, values: tuple[float, ...], influences: Sequence[Array], *, level: float, groups: Sequence[int] | None
    ) -> LayerCurve:
        """Return numbers by layer with their errors; without them where there are fewer than five texts or groups.

        Influences are, for each layer, (texts,) values of mean 0; groups say which group a text is of.
        """
        import numpy as np  # takes a while to load, scipy too

        from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty

        if len(influences[0] if groups is None else set(groups)) < MIN_UNITS:
            return cls(values=values)
        numbers = None if groups is None else np.array(groups)
        uncertainty = curve_uncertainty(values, influences, level=level, groups=numbers)
        return cls(values=values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)

    @property
    def layers(self) -> range:
        """Those that are not left out."""
        return range(self.first_layer, len(self.values) - self.collapsed)

    @property
    def table(self) -> Table:
        """A row a layer: the number and its standard error."""
        layers = Column("layer", tuple(range(len(self.values))), meaning="Blocks kept.")
        return Table(columns=(layers, *self.columns("value")), charts=(Chart(lines=(Line("value"),), name="readings"),))

    def columns(
        self, name: str, *, first: int = 0, n_layers: int = 0, unit: str = "", meaning: str = ""
    ) -> Iterator[Column]:
        """Yield the number and its standard error under a name, from a first layer on, for as many layers or more."""
        layers = self.layers[max(first - self.first_layer, 0) :]
        for title, values in ((name, self.values), (f"{name} standard error", self.standard_errors)):
            errors = () if values is None else mask_left_out(layers, values)
            filled = (*errors, *[None] * (max(n_layers, len(self.values)) - len(errors)))
            yield Column(title, filled, form=DIGITS, unit=unit, meaning=meaning, shown=title == name)

    @property
    def conclusion(self) -> Conclusion:
        """Where it is highest, and how far it falls from there."""
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
"""A new one is a `Reading` in a module of its own and a row here, or an entry point of another package."""


def cka_with(reference: str) -> str:
    """Return what CKA with a reference is called.

    Examples:
        >>> cka_with("bert")
        'CKA, bert'
    """
    return f"{CKA}, {reference}"


def reading_of(name: str) -> Reading:
    """Return the reading of a name, which for CKA can be `CKA, <reference>`; raise DataError if there is none."""
    return READINGS[CKA if name.startswith(cka_with("")) else name]


def alone() -> list[str]:
    """Return the names of the readings that need nothing but the model and texts."""
    return [name for name, reading in READINGS.usable().items() if reading.alone]


def curves_table(curves: Mapping[str, LayerCurve]) -> Table:
    """Return the numbers by layer of one model side by side, by name, and below what those of readings mean."""
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
