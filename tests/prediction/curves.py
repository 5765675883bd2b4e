"""Curves with a known covariance of their errors."""

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.checks import LEVEL
from layerprobe.similarity.values import CurveUncertainty, Matrix, SimilarityCurve


def uncertain(values: ArrayLike, covariance: ArrayLike, *, level: float = LEVEL) -> SimilarityCurve:
    numbers = np.asarray(values, dtype=np.float64)
    half = 1.96 * np.sqrt(np.diag(covariance))
    lower, upper = tuple((numbers - half).tolist()), tuple((numbers + half).tolist())
    return SimilarityCurve(
        values=tuple(numbers.tolist()),
        reference_layers=tuple(range(len(numbers))),
        alignment="same-index",
        uncertainty=CurveUncertainty(
            level=level, lower=lower, upper=upper, band_lower=lower, band_upper=upper, covariance=matrix(covariance)
        ),
    )


def matrix(covariance: ArrayLike) -> Matrix:
    return tuple(map(tuple, np.asarray(covariance, dtype=np.float64).tolist()))


def equicorrelated(n_layers: int, scale: float, correlation: float = 0.0) -> np.ndarray:
    """Errors of one size, correlated as those of neighbouring layers on the same texts are."""
    return scale**2 * (correlation * np.ones((n_layers, n_layers)) + (1 - correlation) * np.eye(n_layers))
