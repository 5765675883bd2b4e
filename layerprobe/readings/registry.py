"""The numbers by layer that have a name. Knows names, loads no model."""

from collections.abc import Mapping, Sequence

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.registry import Registry
from layerprobe.results.table import Column, Table
from layerprobe.stats.sentences import highest_and_last

CKA, SELF_CKA, INFONCE, ZERO_SHOT = "CKA", "self CKA", "InfoNCE", "zero-shot"
LOG_EVIDENCE, H_SCORE, CONTRASTIVE_LOSS = "LogME", "H-score", "contrastive loss"
READINGS = Registry(
    "layerprobe.readings",
    Reading,
    what="reading",
    shipped={  # token states first: the pass that reads them embeds the texts, too
        "prompt entropy": "layerprobe.readings.label_free:PROMPT_ENTROPY",
        "curvature": "layerprobe.readings.label_free:CURVATURE",
        SELF_CKA: "layerprobe.readings.frozen:SELF",
        "mean cosine": "layerprobe.readings.frozen:MEAN_COSINE",
        "effective rank": "layerprobe.readings.frozen:EFFECTIVE_RANK",
        "intrinsic dimension": "layerprobe.readings.frozen:INTRINSIC_DIMENSION",
        "top dimension share": "layerprobe.readings.frozen:TOP_DIMENSION_SHARE",
        "dataset entropy": "layerprobe.readings.label_free:DATASET_ENTROPY",
        INFONCE: "layerprobe.readings.label_free:INFONCE",
        "LiDAR": "layerprobe.readings.label_free:LIDAR",
        "DiME": "layerprobe.readings.label_free:DIME",
        ZERO_SHOT: "layerprobe.readings.frozen:ZERO_SHOT",
        "probe": "layerprobe.readings.frozen:PROBE",
        LOG_EVIDENCE: "layerprobe.readings.transferability:LOG_EVIDENCE",
        H_SCORE: "layerprobe.readings.transferability:H_SCORE",
        "LinMSE": "layerprobe.readings.transferability:LINEAR_MSE",
        "kNN": "layerprobe.readings.transferability:NEIGHBOURS",
        CONTRASTIVE_LOSS: "layerprobe.readings.transferability:CONTRASTIVE_LOSS",
        CKA: "layerprobe.readings.frozen:WITH_REFERENCE",
    },
)
"""A new one is a `Reading` in a module of its own and a row here, or an entry point of another package."""
RIVALS = {
    "LOES without labels": "layerprobe.readings.rivals:ISOTROPY",
    "alpha-ReQ": "layerprobe.readings.rivals:ALPHA_REQ",
    "subspace displacement": "layerprobe.readings.rivals:DISPLACEMENT",
    "neighbour retention": "layerprobe.readings.rivals:RETENTION",
    "LOES": "layerprobe.readings.rivals:LOES",
    "KITE": "layerprobe.readings.rivals:KITE",
}
"""What others choose a layer by: computed where it is requested by name, in no list."""
READINGS.add(RIVALS, listed=False)


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
        if name not in READINGS:
            columns += curve.columns(name, n_layers=len(layers))
            continue
        reading = READINGS[name]
        columns += curve.columns(
            name, first=reading.first, n_layers=len(layers), unit=reading.unit, meaning=reading.description
        )
        notes.append(f"{name}: {reading.meaning}")
    return Table(columns=tuple(columns), notes=tuple(notes))
