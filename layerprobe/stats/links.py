"""Items that share texts, and their effect on sums of squares. Knows numbers of texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Items of one or more texts; two items are linked if they share a text, and every item with itself.

    Texts that count as one, such as those of a group, have the same number.
    """

    sides: tuple[Numbers, ...]
    """(n,) numbers from 0 of each item's texts: the first texts, the second texts and so on."""

    def __len__(self) -> int:
        return len(self.sides[0])

    @property
    def units(self) -> float:
        """Effective number of texts: (sum_t n_t)^2 / sum_t n_t^2, at most n.

        With several sides it is the smallest value for all sides together and for each side: if many questions are
        about few contexts, the contexts count, however many different questions there are.

        Source: Carter, Schnepel and Steigerwald 2017 (Review of Economics and Statistics 99), on clusters.
        """
        together = next(self._shared())[1].sum(axis=0)
        sizes = [together, *(np.bincount(side).astype(np.float64) for side in self.sides)]
        return float(min(*(size.sum() ** 2 / np.square(size).sum() for size in sizes), len(self)))

    def products(self, influences: Array) -> Array:
        """Return sum over linked i, j of psi_ri psi_sj for (runs, n) influences psi, as (runs, runs).

        With A_rt the sum of psi_ri over the items of text t, it is sum_t A_rt A_st, minus the pairs of items that share
        two texts and count twice, and so on. Linear in the number of items.
        """
        products: Array = np.zeros((len(influences), len(influences)))
        for sign, memberships in self._shared():
            sums = influences @ memberships
            products += sign * (sums @ sums.T)
        return products

    def _shared(self) -> Iterator[tuple[int, sparse.csr_array]]:
        """Yield (n, sets) matrices: whether an item has all texts of a set, for single texts, pairs of texts and so on.

        By their signs, the common sets of two items that share any text add up to 1.
        """
        texts = np.sort(np.stack(self.sides, axis=1), axis=1)
        again = np.zeros(texts.shape, dtype=bool)
        again[:, 1:] = texts[:, 1:] == texts[:, :-1]
        for size in range(1, len(self.sides) + 1):
            items, sets = [], []
            for columns in map(list, itertools.combinations(range(len(self.sides)), size)):
                here = np.flatnonzero(~again[:, columns].any(axis=1))
                items.append(here)
                sets.append(texts[:, columns][here])
            row, members = np.concatenate(items), np.concatenate(sets)
            numbers = members.ravel() if size == 1 else np.unique(members, axis=0, return_inverse=True)[1].ravel()
            shape = (len(self), int(numbers.max(initial=-1)) + 1)
            yield 1 if size % 2 else -1, sparse.csr_array((np.ones(len(row)), (row, numbers)), shape=shape)


def joined(*sides: Numbers) -> Numbers:
    """Return (n,) numbers of the connected components of items; items that share a text are connected.

    Examples:
        >>> joined(np.array([0, 1, 3]), np.array([1, 2, 4])).tolist()
        [0, 0, 1]
    """
    size = max(int(side.max()) for side in sides) + 1
    first, second = np.tile(sides[0], len(sides)), np.concatenate(sides)
    graph = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(size, size))
    components: Numbers = np.unique(connected_components(graph, directed=False)[1][sides[0]], return_inverse=True)[1]
    return components
