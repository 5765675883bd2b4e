"""How certain a rule is: the rule on curves redrawn within their errors. Knows numbers only."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.prediction.values import DropProbability
from layerprobe.similarity.values import Matrix

Array: TypeAlias = NDArray[np.float64]

DRAWS = 10_000
"""A share of a half is then right to a point, the end of an interval to a thirtieth of a standard error."""


def redraw(values: Sequence[float], covariance: Matrix, *, draws: int = DRAWS, seed: int = 0) -> Array:
    """Draw curves from the normal distribution around the observed one, with the covariance of its layers' errors.

    Returns:
        (draws, layers); not clamped to the range of the measure.
    """
    if draws < 1:
        raise DataError(f"expected at least one draw, got {draws}")
    root = _root(np.array(covariance))
    noise = np.random.default_rng(seed).standard_normal((draws, len(root)))
    drawn: Array = np.array(values) + noise @ root.T
    return drawn


def drop_probability(onsets: NDArray[np.intp], *, n_layers: int, seed: int) -> DropProbability:
    """Count what a rule says of redrawn curves: the first drop layer of each, the number of layers where there is none.

    The redraws vary as the curve of another sample of as many texts would, were the observed curve the true one.
    For best-match the reference's layers stay those of the observed curve.

    Source: the parametric bootstrap, Efron and Tibshirani 1993 (An Introduction to the Bootstrap), section 6.5.
    """
    draws = len(onsets)
    counts = np.bincount(onsets, minlength=n_layers + 1)
    flagged = np.cumsum(counts)[:-1] / draws
    return DropProbability(
        draws=draws,
        seed=seed,
        by_layer=tuple(flagged.tolist()),
        any_drop=float(flagged[-1]),
        recommended=tuple((counts[1:] / draws).tolist()),
    )


def decline_interval(drawn: Array, plateau_layers: Sequence[int], *, level: float) -> tuple[float, float]:
    """Return the interval of the median of some layers less the last layer, of (draws, layers) curves."""
    declines = np.median(drawn[:, list(plateau_layers)], axis=1) - drawn[:, -1]
    low, high = np.quantile(declines, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def _root(covariance: Array) -> Array:
    """Return a root of the covariance, which has no Cholesky factor where two layers are copies of each other."""
    values, vectors = np.linalg.eigh(covariance)
    # The symmetric one, which rounding does not turn around as it does eigenvectors.
    root: Array = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root
