"""Readings of embeddings: diagnostics, CKA with another layer or model, altered copies, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from layerprobe.context import current
from layerprobe.files.serialisation import digest
from layerprobe.readings.reading import LayerCurve, Reading
from layerprobe.similarity.diagnostics import infonce_influences, rank_influences
from layerprobe.similarity.values import SimilarityCurve
from layerprobe.tasks.kind import KINDS
from layerprobe.versions import RANK_VERSION

if TYPE_CHECKING:
    from layerprobe.extraction.embeddings import Embeddings
    from layerprobe.readings.source import Source
    from layerprobe.scoring.values import LayerScores


def _diagnosed(field: str) -> Callable[[Source], LayerCurve | None]:
    """Return a function that reads a field of `LayerDiagnostics`: None if a layer lacks it."""

    def compute(source: Source) -> LayerCurve | None:
        values = tuple(getattr(layer, field) for layer in source.diagnostics)
        return None if None in values else LayerCurve(values=values, first_layer=source.embeddings.first_layer)

    return compute


def rank_curve(embeddings: Embeddings, *, level: float, groups: Mapping[str, str] | None = None) -> LayerCurve:
    """Return the effective rank of every layer, with its errors; computed once for stored embeddings.

    Returns:
        Without errors for fewer than five texts or groups.
    """
    from layerprobe.comparison.compare import diagnostics, groups_of  # loads torch, which rules do not need

    values = tuple(layer.effective_rank for layer in diagnostics(embeddings))  # refuses layers without a rank
    numbers = None if groups is None else groups_of(embeddings.bare, groups)
    key = digest([RANK_VERSION, embeddings.fingerprint, level, numbers])
    stored = embeddings.store.load_result("ranks", key, LayerCurve)
    if stored is not None:
        return stored
    influences = [rank_influences(embeddings.measured(layer))[1] for layer in range(embeddings.n_layers)]
    curve = LayerCurve.of(values, influences, level=level, groups=numbers)
    curve = replace(curve, first_layer=embeddings.first_layer)
    embeddings.store.save_result("ranks", key, curve)
    return curve


MEAN_COSINE = Reading(
    description="mean cosine between two texts (anisotropy)",
    direction=-1,
    compute=_diagnosed("mean_cosine"),
    maximum=1.0,
    source="Ethayarajh 2019 (arXiv 1909.00512)",
)
EFFECTIVE_RANK = Reading(
    description="effective rank of the centred embeddings",
    direction=1,
    compute=lambda source: rank_curve(source.embeddings, level=current().level, groups=source.groups),
    source="Roy and Vetterli 2007 (EUSIPCO)",
)
INTRINSIC_DIMENSION = Reading(
    description="intrinsic dimension, from the distances to the two nearest neighbours",
    direction=None,
    compute=_diagnosed("intrinsic_dimension"),
    source="Facco et al. 2017 (Scientific Reports 7)",
)
TOP_DIMENSION_SHARE = Reading(
    description="share of the variance in the feature with the largest variance",
    direction=1,
    compute=_diagnosed("top_dimension_share"),
    maximum=1.0,
)


def _infonce(source: Source) -> LayerCurve:
    from layerprobe.readings.source import chosen_texts  # loads torch, which rules do not need

    influences = []

    def bound(layer: int, name: str) -> float:
        value, pulls = infonce_influences(source.copies(layer), name=name)
        influences.append(pulls)
        return value

    first, altered = source.first_copied_layer, chosen_texts(source.texts, source.n_altered)
    values = source.by_layer(bound, first_layer=first).values
    curve = LayerCurve.of(values, influences, level=current().level, groups=source.group_numbers(altered))
    return replace(curve, first_layer=first)


INFONCE = Reading(
    description="a lower bound on the information shared by two copies of a text with dropped words",
    unit="nats",
    direction=1,
    floor=0.05,
    needs="views",
    compute=_infonce,
    source="van den Oord et al. 2018 (arXiv 1807.03748)",
)
SOURCE = "Kornblith et al. 2019 (arXiv 1905.00414); Rep, Dukic and Snajder 2024 (arXiv 2402.13130)"


def layer_curve(curve: SimilarityCurve) -> LayerCurve:
    """Return a similarity curve in the form for rules."""
    errors = None if curve.uncertainty is None else curve.uncertainty.standard_errors
    return LayerCurve(values=curve.values, standard_errors=errors, uncertainty=curve.uncertainty)


def _with_layer_before(source: Source) -> LayerCurve:
    """Return CKA of each layer with the one before; layer 0 has none and repeats the value of layer 1."""
    from layerprobe.comparison.compare import compare_all  # loads torch, which rules do not need

    embedded = source.embeddings
    comparisons = compare_all(
        embedded,
        [embedded],
        alignment="previous-layer",
        groups=source.groups,
        device=source.checkpoint.asked.device,
    )
    curve = layer_curve(comparisons.comparisons[0].curve)
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


def _zero_shot(source: Source) -> LayerCurve:
    from layerprobe.scoring.score import zero_shot  # loads torch, which rules do not need

    task, kind = source.labels, KINDS[source.labels.kind]
    if (untrained := kind.learning().untrained) is not None:
        return _curve(untrained(source.checkpoint, task, split="validation"))
    fit = kind.fitted_on
    fitted = None if fit is None else source.split(fit)
    validation = source.split("validation")
    return _curve(zero_shot(validation, task, split="validation", fitted=fitted))


def _probe(source: Source) -> LayerCurve | None:
    from layerprobe.scoring.score import probed  # loads torch, which rules do not need

    kind = KINDS[source.labels.kind]
    if kind.zero_shot != "cosine" or kind.learning().probe is None:
        return None  # zero-shot scores already come from a probe, or there is none
    validation, fitted = source.split("validation"), source.split("train")
    return _curve(probed(validation, source.labels, split="validation", fitted=fitted))


def _curve(scores: LayerScores) -> LayerCurve:
    return LayerCurve(values=scores.scores, first_layer=scores.first_layer, collapsed=scores.collapsed)


ZERO_SHOT = Reading(
    description="primary metric of the task x 100, without training", direction=1, needs="labels", compute=_zero_shot
)
PROBE = Reading(
    description="primary metric x 100 of ridge regression on frozen pairs", direction=1, needs="labels", compute=_probe
)
