"""The numbers by layer that have a name. Knows names, loads no model."""

from collections.abc import Mapping, Sequence

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.registry import Registry
from layerprobe.results.table import Column, Table
from layerprobe.stats.sentences import highest_and_last

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


def course(curves: Mapping[str, Sequence[float]], *, layers: range) -> str:
    """Return where each of some curves is highest, of some layers, and where it ends, with the units of readings."""
    units = {name: READINGS[name].unit for name in curves if name in READINGS}
    return highest_and_last(curves, layers=layers, units=units)


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
    return Table(columns=tuple(columns), notes=tuple(notes))
