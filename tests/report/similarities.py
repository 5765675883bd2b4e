"""Comparisons made by hand with everything that a comparison can have: intervals, tests, diagnostics, a null."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from layerprobe.comparison.values import Comparison
from layerprobe.encoders.model import ModelDescription
from layerprobe.interval import Interval
from layerprobe.names import distinct_names
from layerprobe.prediction.rules import plateau_rule
from layerprobe.prediction.values import DropPrediction
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.values import (
    CurveUncertainty,
    LayerDiagnostics,
    MapUncertainty,
    Matrix,
    SimilarityCurve,
    SimilarityMap,
)
from layerprobe.study.values import Prediction

ERROR = 0.01
"""Standard error of every value."""


def matrix(values: np.ndarray) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())


def uncertain_map(found: SimilarityMap) -> SimilarityMap:
    """Return the map with intervals and with what chance reaches."""
    values = np.array(found.values)
    errors = np.full_like(values, ERROR)
    return dataclasses.replace(
        found,
        uncertainty=MapUncertainty(
            level=0.95,
            standard_errors=matrix(errors),
            lower=matrix(values - 1.96 * errors),
            upper=matrix(values + 1.96 * errors),
            method="influence of each sample",
        ),
    )


def uncertain_curve(curve: SimilarityCurve, error: float = ERROR) -> SimilarityCurve:
    values = np.array(curve.values)
    covariance = error**2 * (0.5 + 0.5 * np.eye(len(values)))
    bounds = [tuple((values + times * error).tolist()) for times in (-1.96, 1.96, -2.7, 2.7)]
    return dataclasses.replace(
        curve,
        uncertainty=CurveUncertainty(
            level=0.95,
            lower=bounds[0],
            upper=bounds[1],
            band_lower=bounds[2],
            band_upper=bounds[3],
            covariance=matrix(covariance),
        ),
    )


def steps(curve: SimilarityCurve) -> tuple[Interval, ...]:
    changes = np.diff(curve.values).tolist()
    return tuple(
        Interval(
            label=f"layer {layer + 1} minus layer {layer}",
            value=value,
            standard_error=ERROR,
            interval=(value - 1.96 * ERROR, value + 1.96 * ERROR),
            freedom=30.0,
            level=0.95,
            p_value=math.erfc(abs(value) / ERROR / math.sqrt(2)),
        )
        for layer, value in enumerate(changes)
    )


def diagnostics(model: ModelDescription, n_samples: int) -> tuple[LayerDiagnostics, ...]:
    return tuple(
        LayerDiagnostics(
            n_samples=n_samples,
            n_features=model.hidden_size,
            dtype="float32",
            norm=model.norm,
            duplicates=3 if layer == 0 else 0,
            constant_features=0,
            mean_norm=9.5 + layer,
            mean_cosine=0.31 + 0.05 * layer,
            top_dimension_share=0.012 + 0.02 * layer,
            top_three_share=0.03 + 0.03 * layer,
            effective_rank=120.4 - 6.1 * layer,
            intrinsic_dimension=None if layer == 0 else 18.2 - 0.7 * layer,
            chance_cka=0.021 + 0.003 * layer,
        )
        for layer in range(model.n_layers)
    )


def whole_comparison(comparison: Comparison, warnings: tuple[str, ...] = ()) -> Comparison:
    """Return the comparison with everything that a comparison can have."""
    n_samples = comparison.map.n_samples
    higher = np.round(np.array(comparison.map.values) * 0.8 + 0.2, 4)
    measure = dataclasses.replace(comparison.map.measure, normalize="zscore")
    return dataclasses.replace(
        comparison,
        map=uncertain_map(comparison.map),
        curve=uncertain_curve(comparison.curve),
        other_normalization=uncertain_map(dataclasses.replace(comparison.map, measure=measure, values=matrix(higher))),
        steps=steps(comparison.curve),
        model_diagnostics=diagnostics(comparison.model, n_samples),
        reference_diagnostics=diagnostics(comparison.reference, n_samples),
        warnings=warnings,
    )


def predicted(comparison: Comparison) -> DropPrediction:
    model, _reference = distinct_names([comparison.model.name, comparison.reference.name])
    return plateau_rule(comparison.curve, model=model)


def with_intervals(plain: Prediction, references: Sequence[str] = (), warnings: tuple[str, ...] = ()) -> Prediction:
    """Return the pair with everything that similarities can have, also against further references."""
    first = whole_comparison(plain.comparison, warnings)
    further = [_against(first, name, flattened) for name, flattened in zip(references, (0.2, 0.9), strict=False)]
    return Prediction(comparisons=(first, *further), drops=tuple(map(predicted, (first, *further))))


def _against(first: Comparison, name: str, flattened: float) -> Comparison:
    """Return the comparison with another reference, whose curve lies nearer to its highest value."""
    top = max(first.curve.values)
    values = tuple(value + flattened * (top - value) for value in first.curve.values)
    curve = dataclasses.replace(first.curve, values=values)
    reference = dataclasses.replace(first.reference, name=name)
    return dataclasses.replace(first, reference=reference, curve=uncertain_curve(curve), warnings=())


def rbf(found: SimilarityMap, multiplier: float) -> SimilarityMap:
    rows, columns = found.shape
    return dataclasses.replace(
        found,
        measure=CKA(kernel="rbf", bandwidth_multiplier=multiplier),
        sigma_squared=((1.5,) * rows, (2.5,) * columns),
        sigma_samples=2048,
    )
