"""Diagnostics of layers as readings; `diagnose` has the formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from layerprobe.context import current
from layerprobe.files.serialisation import digest
from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.similarity.diagnostics import rank_influences
from layerprobe.versions import RANK_VERSION

if TYPE_CHECKING:
    from layerprobe.extraction.embeddings import Embeddings
    from layerprobe.readings.source import Source


def _diagnosed(field: str) -> Callable[[Source], LayerCurve | None]:
    """Return what reads a field of `LayerDiagnostics`: nothing where a layer lacks it."""

    def compute(source: Source) -> LayerCurve | None:
        values = tuple(getattr(layer, field) for layer in source.diagnostics)
        return None if None in values else LayerCurve(values=values, first_layer=source.embeddings.first_layer)

    return compute


def rank_curve(embeddings: Embeddings, *, level: float, documents: Mapping[str, str] | None = None) -> LayerCurve:
    """Return the effective rank of every layer, with its errors; made once for stored embeddings.

    Returns:
        Without errors where there are fewer than five texts or documents.
    """
    from layerprobe.comparison.compare import cluster_numbers, diagnostics  # loads torch, which rules do without

    values = tuple(layer.effective_rank for layer in diagnostics(embeddings))  # refuses layers that have no rank
    clusters = None if documents is None else cluster_numbers(embeddings.bare, documents)
    key = digest([RANK_VERSION, embeddings.fingerprint, level, clusters])
    stored = embeddings.store.load_result("ranks", key, LayerCurve)
    if stored is not None:
        return stored
    influences = [rank_influences(embeddings.measured(layer))[1] for layer in range(embeddings.n_layers)]
    curve = LayerCurve.of(values, influences, level=level, clusters=clusters)
    curve = replace(curve, first_layer=embeddings.first_layer)
    embeddings.store.save_result("ranks", key, curve)
    return curve


MEAN_COSINE = Reading(
    description="mean cosine of two texts: anisotropy",
    direction=-1,
    compute=_diagnosed("mean_cosine"),
    maximum=1.0,
    source="Ethayarajh 2019 (arXiv 1909.00512)",
)
EFFECTIVE_RANK = Reading(
    description="effective rank of the centred embeddings",
    direction=1,
    compute=lambda source: rank_curve(source.embeddings, level=current().level, documents=source.documents),
    source="Roy and Vetterli 2007 (EUSIPCO)",
)
INTRINSIC_DIMENSION = Reading(
    description="intrinsic dimension, from the distances to the two nearest neighbours",
    direction=None,
    compute=_diagnosed("intrinsic_dimension"),
    source="Facco et al. 2017 (Scientific Reports 7)",
)
TOP_DIMENSION_SHARE = Reading(
    description="share of the variance in the feature that varies most",
    direction=1,
    compute=_diagnosed("top_dimension_share"),
    maximum=1.0,
)
