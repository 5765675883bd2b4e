"""Scores over models, and their intervals from redrawing what they have in common. Knows numbers only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.lab.dropbench.values import Score

Array = NDArray[np.float64]

ROUNDING = 1e-9


def redrawn(clusters: Sequence[str], *, draws: int, seed: int) -> Array:
    """Return (draws, models): how often each model is drawn when clusters are; nothing where there is one of them."""
    names = list(dict.fromkeys(clusters))
    n, size = len(names), draws if len(names) > 1 else 0
    drawn = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=size)
    return drawn[:, [names.index(cluster) for cluster in clusters]].astype(np.float64)


def ratio(above: Array, below: Array) -> Array:
    """Return above / below, NaN where that is not defined."""
    ratios: Array = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return ratios


def weighted_quantiles(values: Array, counts: Array, share: float = 0.5) -> Array:
    """Return a quantile, by default the median, of values as often as each row of (draws, values) counts says.

    Between two values that divide the whole just so it is their mean; NaN where no value counts.
    """
    order = np.argsort(values, kind="stable")
    ordered, totals = values[order], np.cumsum(counts[:, order], axis=1)
    part = totals[:, -1:] * share
    low, high = (totals >= part - ROUNDING).argmax(axis=1), (totals > part + ROUNDING).argmax(axis=1)
    quantiles: Array = np.where(totals[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)
    return quantiles


def score_of(values: NDArray[np.float64], level: float) -> Score | None:
    """Return the first value with percentiles of the others; None where it is not defined."""
    value, redrawn = float(values[0]), values[1:][np.isfinite(values[1:])]
    if np.isnan(value):
        return None
    if not len(redrawn):
        return Score(value=value, lower=None, upper=None)
    lower, upper = np.quantile(redrawn, ((1 - level) / 2, (1 + level) / 2))
    return Score(value=value, lower=float(lower), upper=float(upper))
