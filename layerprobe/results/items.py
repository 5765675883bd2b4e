"""Single items and what layers output for each, as values. Knows no task, no model and no page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.names import counted, short_name

Array = NDArray[np.float64]
Form = Literal["score", "classes", "ranks", "shares"]
"""What is drawn of two layers: each one's score by gold, or confusions; or ranks, or shares of 100, of one by those of
the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayersOf:
    """What the layers of one model output for the items of a page."""

    name: str
    layers: Sequence[str]
    """What each is called."""
    scores: Sequence[float]
    """By layer, the metric x 100 over all items."""
    values: Sequence[Array]
    """By layer and item, what is drawn."""
    errors: Sequence[Array]
    """By layer and item, from 0 to 100."""
    words: Sequence[Sequence[str]] = ()
    """By layer and item, what was output, in words; empty where the values say it."""
    counts: Sequence[Sequence[Sequence[int]]] = ()
    """By layer, gold x predicted class; empty where there are none."""
    places: Sequence[Sequence[Array]] = ()
    """By layer and side, (item, 2) on a map; empty where there is none."""
    shares: Sequence[float] = ()
    """By layer, what share of the variance the map shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explored:
    """Items with what layers output for each, for a page or a notebook."""

    task: str
    unit: str
    """What an item is called."""
    units: str
    """What several are."""
    n_items: int
    """Of the split, of which a page may have a part."""
    split: str
    metric: str
    form: Form
    texts: Mapping[str, Sequence[str]]
    """By title."""
    gold: Sequence[float | str]
    output: str
    """What outputs are called."""
    error: str
    """What an error counts."""
    limit: float
    """A larger error counts as wrong."""
    labels: Sequence[str]
    """Names of the classes; empty where there are none."""
    groups: Sequence[LayersOf]
    start: tuple[tuple[int, int], tuple[int, int]]
    """Which two are compared first: a group, and the place of one of its layers."""

    @property
    def counted(self) -> str:
        """How many items a page shows, and of how many."""
        of = "" if len(self.gold) == self.n_items else f" of {self.n_items:,}, drawn at random"
        split = "all data" if self.split == "all" else f"the {self.split} split"
        return f"{counted(len(self.gold), self.unit)}{of} from {split} of {short_name(self.task)}"
