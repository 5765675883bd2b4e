"""Layers minus the means of their features, over powers of two: independent of shift and unit. Knows only arrays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.arrays import NUMBERS, Layer
from layerprobe.errors import DegenerateLayerError

Array = NDArray[np.float64]
CONSTANT = 1e-6
"""Deviation over the root mean square up to which a feature counts as constant."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scale:
    """Shift and divisors of (n, d) rows: scaled values neither overflow nor underflow.

    Multiplications by powers of two are exact, so that rows and rows times a power of two are scaled to equal values.
    """

    exponents: NDArray[np.intc]
    """Values over 2 to these exponents, (d,), are between -1 and 1."""
    mean: Array
    """Means of these values, (d,)."""
    spreads: NDArray[np.intc]
    """Deviations from the means over 2 to these exponents, (d,), are between -1 and 1."""

    @classmethod
    def of(cls, parts: Callable[[], Iterable[NDArray[Any]]]) -> "Scale":
        """Return the scale of rows in parts, which are read twice; DegenerateLayerError if all rows are equal."""
        ends = np.array([(part.min(axis=0), part.max(axis=0)) for part in parts()], dtype=np.float64)
        low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
        exponents = np.frexp(np.maximum(np.abs(low), np.abs(high)))[1]
        low, high = np.ldexp(low, -exponents), np.ldexp(high, -exponents)
        counts, sums = 0, np.zeros(len(low))
        for part in parts():
            sums += np.ldexp(part.astype(np.float64), -exponents).sum(axis=0)
            counts += len(part)
        if (low == high).all():
            raise DegenerateLayerError(f"it is the same for all {counts:,} samples")
        mean = np.where(low == high, low, sums / counts)
        return cls(exponents=exponents, mean=mean, spreads=np.frexp(np.maximum(high - mean, mean - low))[1])

    def __call__(self, rows: NDArray[Any]) -> Array:
        """Return (n, d) rows in float64, each deviation between -1 and 1."""
        values = rows.astype(np.float64)
        np.ldexp(values, -self.exponents, out=values)
        values -= self.mean
        return np.ldexp(values, -self.spreads, out=values)

    def undone(self, mean: Array, spread: Array) -> tuple[Array, Array]:
        """Return the means and standard deviations, (d,), of scaled rows in the original unit."""
        raw = np.ldexp(self.mean + np.ldexp(mean, self.spreads), self.exponents)
        return raw, np.ldexp(spread, self.spreads + self.exponents)


def scaled(layer: Layer, *, shifted: bool) -> tuple[Layer, Scale]:
    """Return an (n, d) layer whose rows are scaled when read, and cached if they are few.

    Without shift, all features have the same exponent and keep their means, so that cosines do not change.

    Raises:
        DegenerateLayerError: If all rows are equal, or a value is not finite.
    """
    scale = Scale.of(lambda: (block for _, block in layer.blocks()))
    if not shifted:
        largest = np.full_like(scale.exponents, scale.exponents.max())
        scale = Scale(exponents=largest, mean=np.zeros_like(scale.mean), spreads=np.zeros_like(scale.spreads))
    n, width = layer.shape
    if n * width <= NUMBERS:
        return replace(layer, read=scale(layer.rows(slice(0, n))).__getitem__), scale
    return replace(layer, read=lambda rows: scale(layer.rows(rows))), scale


def standard(rows: Array) -> tuple[Array, Array]:
    """Return the means and standard deviations, (d,), of scaled rows; infinite for a constant feature."""
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    return mean, np.where(spread <= CONSTANT * np.abs(mean), np.inf, spread)
