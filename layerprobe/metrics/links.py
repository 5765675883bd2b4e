"""Which items are not independent of each other, and what that does to sums of squares. Knows numbers of texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from layerprobe.errors import DataError

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Items of one or two texts; two items are linked where they share a text, and an item with itself.

    Texts that count as one, such as those of a document, have one number.
    """

    first: Numbers
    """(n,) number of each item's text, or of its first one, from 0."""
    second: Numbers | None = None
    """(n,) of the second; None for single texts."""

    def __post_init__(self) -> None:
        if self.second is not None and self.second.shape != self.first.shape:
            raise DataError(f"expected as many second as first texts, got {len(self.second)} and {len(self.first)}")

    def __len__(self) -> int:
        return len(self.first)

    @property
    def units(self) -> float:
        """How many texts of equal weight would be worth as much: (sum_t n_t)^2 / sum_t n_t^2, at most n.

        Source: Carter, Schnepel and Steigerwald 2017 (Review of Economics and Statistics 99), of clusters.
        """
        sizes = self._incidence().sum(axis=0)
        return float(min(sizes.sum() ** 2 / np.square(sizes).sum(), len(self)))

    def products(self, influences: Array) -> Array:
        """Return sum over linked i, j of psi_ri psi_sj for (runs, n) influences psi, as (runs, runs).

        With A_rt the sum of psi_ri over the items of text t, that is sum_t A_rt A_st, less what pairs of items that
        share both of their texts count twice. Linear in the number of items.
        """
        by_text = influences @ self._incidence()
        products: Array = by_text @ by_text.T
        if self.second is not None:
            two = self.first != self.second
            ends = np.sort(np.stack([self.first[two], self.second[two]]), axis=0)
            _, numbers = np.unique(ends, axis=1, return_inverse=True)
            by_both = influences[:, two] @ _memberships(numbers)
            products -= by_both @ by_both.T
        return products

    def _incidence(self) -> sparse.csr_array:
        """(n, texts): whether an item has a text."""
        if self.second is None:
            return _memberships(self.first)
        texts = max(int(self.first.max(initial=-1)), int(self.second.max(initial=-1))) + 1
        both: sparse.csr_array = _memberships(self.first, texts) + _memberships(self.second, texts)
        both.data = np.minimum(both.data, 1)
        return both


def _memberships(numbers: Numbers, groups: int | None = None) -> sparse.csr_array:
    shape = (len(numbers), int(numbers.max(initial=-1)) + 1 if groups is None else groups)
    return sparse.csr_array((np.ones(len(numbers)), (np.arange(len(numbers)), numbers.ravel())), shape=shape)
