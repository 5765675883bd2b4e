"""CKA of each layer, with the layer before or with a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.similarity.values import SimilarityCurve

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

SOURCE = "Kornblith et al. 2019 (arXiv 1905.00414); Rep, Dukic and Snajder 2024 (arXiv 2402.13130)"


def layer_curve(curve: SimilarityCurve) -> LayerCurve:
    """Return a similarity curve as rules read it."""
    errors = None if curve.uncertainty is None else curve.uncertainty.standard_errors
    return LayerCurve(values=curve.values, standard_errors=errors, uncertainty=curve.uncertainty)


def _with_layer_before(source: Source) -> LayerCurve:
    """Return CKA of each layer with the one before; layer 0 has none before it and repeats the value of layer 1."""
    from layerprobe.comparison.compare import compare  # loads torch, which rules do without

    embedded = source.embeddings
    comparison = compare(
        embedded,
        embedded,
        alignment="previous-layer",
        documents=source.documents,
        device=source.checkpoint.options.device,
    )
    curve = layer_curve(comparison.curve)
    errors, first = curve.standard_errors, 1 + embedded.first_layer
    return LayerCurve(
        values=_from(first, curve.values),
        standard_errors=None if errors is None else _from(first, errors),
        first_layer=embedded.first_layer and first,
    )


def _from(first: int, values: tuple[float, ...]) -> tuple[float, ...]:
    return (values[first],) * first + values[first:]


SELF = Reading(
    description="CKA with the layer before",
    direction=1,
    compute=_with_layer_before,
    maximum=1.0,
    similarity=True,
    first=1,
    source=SOURCE,
)
WITH_REFERENCE = Reading(
    description="CKA with a reference", direction=1, needs="reference", maximum=1.0, similarity=True, source=SOURCE
)
