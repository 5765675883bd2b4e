"""What the token states of texts are like: one forward pass, which also embeds the texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve

if TYPE_CHECKING:
    from layerprobe.readings.source import Source


def _prompt_entropy(source: Source) -> LayerCurve:
    tokens = source.tokens
    return LayerCurve(values=tokens.prompt_entropy, standard_errors=tokens.prompt_entropy_errors)


def _curvature(source: Source) -> LayerCurve:
    return LayerCurve(values=source.tokens.curvature, standard_errors=source.tokens.curvature_errors)


PROMPT_ENTROPY = Reading(
    description="von Neumann entropy of the cosines between the tokens of a text",
    unit="nats",
    direction=None,
    needs="tokens",
    compute=_prompt_entropy,
    source="Giraldo, Rao and Principe 2014 (arXiv 1211.2459); Skean et al. 2025 (arXiv 2502.02013)",
)
CURVATURE = Reading(
    description="mean angle between a step from token to token and the next one",
    unit="radians",
    direction=None,
    needs="tokens",
    compute=_curvature,
    source="Hosseini and Fedorenko 2023 (arXiv 2311.04930); Skean et al. 2025 (arXiv 2502.02013)",
)
