"""How surely a rule says what it says: the rule on curves redrawn within their errors. Knows numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.results import CurveUncertainty, DropProbability, SimilarityCurve

Array: TypeAlias = NDArray[np.float64]

Onsets: TypeAlias = Callable[[Array], NDArray[np.intp]]
"""(draws, layers) curves -> (draws,) the first drop layer of each; the number of layers where there is no drop."""

DRAWS = 10_000
"""A share of a half is then right to a point, the end of an interval to a thirtieth of a standard error."""


def redraw(curve: SimilarityCurve, *, draws: int = DRAWS, seed: int = 0) -> Array:
    """Draw curves from the normal distribution around the observed one, with the covariance of its errors.

    Args:
        curve: With its uncertainty.
        draws: How many.
        seed: The same seed draws the same curves.

    Returns:
        (draws, layers); not clamped to the range of the measure.

    Raises:
        DataError: If the curve has no uncertainty, or there is nothing to draw.
    """
    if draws < 1:
        raise DataError(f"expected at least one draw, got {draws}")
    root = _root(_uncertainty(curve))
    noise = np.random.default_rng(seed).standard_normal((draws, len(root)))
    drawn: Array = np.array(curve.values) + noise @ root.T
    return drawn


def drop_probability(
    curve: SimilarityCurve, onsets: Onsets, *, plateau_layers: Sequence[int], draws: int = DRAWS, seed: int = 0
) -> DropProbability:
    """Apply a rule to redrawn curves, and count what it says.

    The redraws vary as the curve of another sample of as many texts would, were the observed curve the true one.
    For best-match the reference's layers stay those of the observed curve.

    Args:
        curve: With its uncertainty.
        onsets: The rule, for many curves at once.
        plateau_layers: The layers that the decline is measured from, those of the observed curve.
        draws: Curves to redraw.
        seed: Of the redraws.

    Raises:
        DataError: If the curve has no uncertainty, or there is nothing to draw.

    Source: the parametric bootstrap, Efron and Tibshirani 1993 (An Introduction to the Bootstrap), section 6.5.
    """
    drawn = redraw(curve, draws=draws, seed=seed)
    found, n_layers = onsets(drawn), len(curve.values)
    counts = np.bincount(found, minlength=n_layers + 1)
    flagged = np.cumsum(counts)[:-1] / draws
    tail = (1 - _uncertainty(curve).level) / 2
    declines = np.median(drawn[:, list(plateau_layers)], axis=1) - drawn[:, -1]
    low, high = np.quantile(declines, (tail, 1 - tail))
    return DropProbability(
        level=_uncertainty(curve).level,
        draws=draws,
        seed=seed,
        by_layer=tuple(flagged.tolist()),
        any_drop=float(flagged[-1]),
        recommended=tuple((counts[1:] / draws).tolist()),
        decline_interval=(float(low), float(high)),
    )


def _uncertainty(curve: SimilarityCurve) -> CurveUncertainty:
    if curve.uncertainty is None:
        raise DataError("expected a curve with intervals to redraw, got one without: compare by debiased CKA")
    return curve.uncertainty


def _root(uncertainty: CurveUncertainty) -> Array:
    """Return a root of the covariance, which has no Cholesky factor where two layers are copies of each other."""
    values, vectors = np.linalg.eigh(np.array(uncertainty.covariance))
    # The symmetric one, which rounding does not turn around as it does eigenvectors.
    root: Array = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root
