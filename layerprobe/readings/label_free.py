"""What pooled embeddings of texts and of their altered copies say of a layer without labels.

`layerprobe.similarity.label_free` has the formulas. Source: Skean et al. 2025 (arXiv 2502.02013); their copies have
letters and words altered, ours lack words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.errors import curve_with_errors
from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.similarity.label_free import dataset_entropy, dime, infonce_influences, lidar

if TYPE_CHECKING:
    from layerprobe.readings.source import Source


def _dataset_entropy(source: Source) -> LayerCurve:
    rows = source.embeddings.stored.rows
    return source.by_layer(lambda layer, name: dataset_entropy(rows(layer), name=name))


def _infonce(source: Source) -> LayerCurve:
    pulls = []

    def bound(layer: int, name: str) -> float:
        value, influences = infonce_influences(source.copies(layer), name=name)
        pulls.append(influences)
        return value

    values = source.by_layer(bound).values
    return curve_with_errors(values, pulls, level=source.level, clusters=source.clusters(source.altered_texts))


DATASET_ENTROPY = Reading(
    description="von Neumann entropy of the cosines between texts",
    unit="nats",
    direction=None,
    compute=_dataset_entropy,
    source="Skean et al. 2025 (arXiv 2502.02013)",
)
INFONCE = Reading(
    description="what a copy of a text that lacks some words tells of another copy, at least",
    unit="nats",
    direction=1,
    needs="two views",
    compute=_infonce,
    source="van den Oord et al. 2018 (arXiv 1807.03748)",
)
LIDAR = Reading(
    description="effective rank of what tells texts apart, against what tells copies of a text apart",
    direction=1,
    needs="views",
    compute=lambda source: source.by_layer(lambda layer, name: lidar(source.copies(layer), name=name)),
    source="Thilak et al. 2023 (arXiv 2312.04000)",
)
DIME = Reading(
    description="how much less two copies surprise together when they are of the same texts",
    unit="nats",
    direction=1,
    needs="two views",
    compute=lambda source: source.by_layer(lambda layer, name: dime(source.copies(layer), name=name)),
    source="Skean et al. 2023 (arXiv 2301.08164)",
)
