"""What token states, embeddings of texts and those of their altered copies say of a layer without labels.

`layerprobe.extraction.embed` and `layerprobe.similarity.label_free` have the formulas. Source: Skean et al. 2025
(arXiv 2502.02013); their copies have letters and words altered, ours lack words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from layerprobe.context import current
from layerprobe.readings.reading import Reading
from layerprobe.readings.source import chosen_texts
from layerprobe.readings.values import LayerCurve
from layerprobe.similarity.label_free import dataset_entropy, dime, infonce_influences, lidar

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

SKEAN = "Skean et al. 2025 (arXiv 2502.02013)"


def _dataset_entropy(source: Source) -> LayerCurve:
    embedded = source.embeddings
    return source.by_layer(
        lambda layer, name: dataset_entropy(embedded.measured(layer), name=name), first_layer=embedded.first_layer
    )


def _infonce(source: Source) -> LayerCurve:
    influences = []

    def bound(layer: int, name: str) -> float:
        value, pulls = infonce_influences(source.copies(layer), name=name)
        influences.append(pulls)
        return value

    first, altered = source.first_copied_layer, chosen_texts(source.texts, source.views)
    values = source.by_layer(bound, first_layer=first).values
    curve = LayerCurve.of(values, influences, level=current().level, groups=source.group_numbers(altered))
    return replace(curve, first_layer=first)


def _of_copies(number: Callable[..., float]) -> Callable[[Source], LayerCurve]:
    """Return what computes a number from the copies of each layer."""
    return lambda source: source.by_layer(
        lambda layer, name: number(source.copies(layer), name=name), first_layer=source.first_copied_layer
    )


PROMPT_ENTROPY = Reading(
    description="von Neumann entropy of the cosines between the tokens of a text",
    unit="nats",
    direction=None,
    needs="tokens",
    compute=lambda of: LayerCurve(values=of.tokens.prompt_entropy, standard_errors=of.tokens.prompt_entropy_errors),
    source=f"Giraldo, Rao and Principe 2014 (arXiv 1211.2459); {SKEAN}",
)
CURVATURE = Reading(
    description="mean angle between a step from token to token and the next one",
    unit="radians",
    direction=None,
    needs="tokens",
    compute=lambda source: LayerCurve(
        values=source.tokens.curvature,
        standard_errors=source.tokens.curvature_errors,
        collapsed=source.tokens.n_turning.count(0),
    ),
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
    floor=0.05,
    needs="two views",
    compute=_infonce,
    source="van den Oord et al. 2018 (arXiv 1807.03748)",
)
LIDAR = Reading(
    description="effective rank of what tells texts apart, against what tells copies of a text apart",
    direction=1,
    needs="views",
    compute=_of_copies(lidar),
    source="Thilak et al. 2023 (arXiv 2312.04000)",
)
DIME = Reading(
    description="how much less two copies surprise together when they are of the same texts",
    unit="nats",
    direction=1,
    needs="two views",
    compute=_of_copies(dime),
    source="Skean et al. 2023 (arXiv 2301.08164)",
)
