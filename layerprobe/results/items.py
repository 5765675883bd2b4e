"""Single items with the outputs of layers, as values. Knows no task, no model and no page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.names import counted, short_name

Array = NDArray[np.float64]
Form = Literal["score", "classes", "ranks", "shares"]
"""The figure of two layers: the score of each by gold, the confusions of each, or the ranks (or shares of 100) of one
by those of the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayersOf:
    """Outputs of the layers of one model for the items of a page."""

    name: str
    layers: Sequence[str]
    """Names of the layers."""
    scores: Sequence[float]
    """The metric x 100 over all items, by layer."""
    values: Sequence[Array]
    """The numbers to draw, by layer and item."""
    errors: Sequence[Array]
    """Errors from 0 to 100, by layer and item."""
    words: Sequence[Sequence[str]] = ()
    """Outputs in words, by layer and item; empty where the values are enough."""
    counts: Sequence[Sequence[Sequence[int]]] = ()
    """Confusions (gold x predicted class), by layer; empty without classes."""
    places: Sequence[Sequence[Array]] = ()
    """(item, 2) places on a map, by layer and side; empty without a map."""
    shares: Sequence[float] = ()
    """Share of the variance that the map shows, by layer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explored:
    """Items with the outputs of layers, for a page or a notebook."""

    task: str
    unit: str
    """Name of an item, such as pair."""
    units: str
    """Its plural."""
    n_items: int
    """Number of items in the split; a page may have a part of them."""
    split: str
    metric: str
    form: Form
    texts: Mapping[str, Sequence[str]]
    """Texts of the items by title."""
    gold: Sequence[float | str]
    output: str
    """Name of the outputs."""
    error: str
    """Meaning of an error."""
    limit: float
    """Largest error that does not count as wrong."""
    labels: Sequence[str]
    """Names of the classes; empty where there are none."""
    groups: Sequence[LayersOf]
    start: tuple[tuple[int, int], tuple[int, int]]
    """The first two layers to compare: each an index of a group, and of one of its layers."""

    @property
    def counted(self) -> str:
        """How many items a page shows, out of how many."""
        of = "" if len(self.gold) == self.n_items else f" of {self.n_items:,}, drawn at random"
        split = "all data" if self.split == "all" else f"the {self.split} split"
        return f"{counted(len(self.gold), self.unit)}{of} from {split} of {short_name(self.task)}"
