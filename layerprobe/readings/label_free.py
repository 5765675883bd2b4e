"""What token states, embeddings of texts and those of their altered copies say of a layer without labels.

`layerprobe.extraction.tokens` and `layerprobe.similarity.label_free` have the formulas. Source: Skean et al. 2025
(arXiv 2502.02013); their copies have letters and words altered, ours lack words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.readings.views import chosen_texts
from layerprobe.similarity.label_free import dataset_entropy, dime, infonce_influences, lidar

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

SKEAN = "Skean et al. 2025 (arXiv 2502.02013)"


def _prompt_entropy(source: Source) -> LayerCurve:
    return LayerCurve(values=source.tokens.prompt_entropy, standard_errors=source.tokens.prompt_entropy_errors)


def _dataset_entropy(source: Source) -> LayerCurve:
    rows = source.embeddings.stored.rows
    return source.by_layer(lambda layer, name: dataset_entropy(rows(layer), name=name))


def _infonce(source: Source) -> LayerCurve:
    influences = []

    def bound(layer: int, name: str) -> float:
        value, pulls = infonce_influences(source.copies(layer), name=name)
        influences.append(pulls)
        return value

    values, altered = source.by_layer(bound).values, chosen_texts(source.texts, source.views)
    return LayerCurve.of(values, influences, level=source.level, clusters=source.clusters(altered))


PROMPT_ENTROPY = Reading(
    description="von Neumann entropy of the cosines between the tokens of a text",
    unit="nats",
    direction=None,
    needs="tokens",
    compute=_prompt_entropy,
    source=f"Giraldo, Rao and Principe 2014 (arXiv 1211.2459); {SKEAN}",
)
CURVATURE = Reading(
    description="mean angle between a step from token to token and the next one",
    unit="radians",
    direction=None,
    needs="tokens",
    compute=lambda source: LayerCurve(values=source.tokens.curvature, standard_errors=source.tokens.curvature_errors),
    source=f"Hosseini and Fedorenko 2023 (arXiv 2311.04930); {SKEAN}",
)
DATASET_ENTROPY = Reading(
    description="von Neumann entropy of the cosines between texts",
    unit="nats",
    direction=None,
    compute=_dataset_entropy,
    source=SKEAN,
)
INFONCE = Reading(
    description="what one copy of a text, which lacks some words, tells of another copy at least",
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
