"""How each text pulls at the numbers of the layers -> their errors, and how those go together. Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerprobe.readings.values import LayerCurve
from layerprobe.similarity.checks import Array
from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty


def curve_with_errors(
    values: tuple[float, ...], influences: Sequence[Array], *, level: float, clusters: Sequence[int] | None
) -> LayerCurve:
    """Return numbers by layer with their errors; without them where there are fewer than five texts or documents.

    Args:
        values: By layer.
        influences: For each layer (texts,) influence values of mean 0.
        level: Confidence level of intervals.
        clusters: Which document each text is of; None where texts are independent.
    """
    if (len(influences[0]) if clusters is None else len(set(clusters))) < MIN_UNITS:
        return LayerCurve(values=values)
    uncertainty = curve_uncertainty(
        values, influences, level=level, clusters=None if clusters is None else np.array(clusters)
    )
    return LayerCurve(values=values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)
