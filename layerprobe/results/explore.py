"""Single items with the outputs of layers: values, and their data for a page. Knows no task, no model and no HTML.

The page carries the items as compressed JSON; `assets/explore.js` draws them, and inserts texts as plain text.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.names import counted, short_name
from layerprobe.results.words import number

LARGEST = 1_500_000
"""Largest number of bytes that items add to a page unless requested."""
LONGEST = 400
"""Largest number of characters of a text on a page; the rest is left out."""
GRID = 999
"""Grid steps from the middle of a map to its edge."""
REACH = 3.0
"""Distance of the edge, in mean distances from the middle; points farther out are drawn at the edge."""
Array = NDArray[np.float64]
OutputForm = Literal["score", "classes", "ranks", "shares"]
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
    form: OutputForm
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


def items_of(result: Any) -> Explored | None:
    """Return the items of a result; None if it has none."""
    source = getattr(result, "item_source", None)
    return None if source is None else source.explored()


def page_data(explored: Explored, look: Any) -> dict[str, Any]:
    """Return the data for the page's script, rounded to whole numbers where a screen shows no more.

    `look` is an empty figure in the style of the page.
    """
    words = {word: None for group in explored.groups for layer in group.words for word in layer}
    places = {word: place for place, word in enumerate(words)}
    return {
        "unit": explored.unit,
        "units": explored.units,
        "metric": explored.metric,
        "form": explored.form,
        "titles": [*explored.texts],
        "texts": [[_cut(text) for text in texts] for texts in explored.texts.values()],
        "gold": [_cut(gold) if isinstance(gold, str) else _short(gold) for gold in explored.gold],
        "output": explored.output,
        "error": explored.error,
        "limit": explored.limit,
        "labels": [*explored.labels],
        "words": [_cut(word) for word in words],
        "start": explored.start,
        "look": look,
        "groups": [
            {
                "name": group.name,
                "layers": [*group.layers],
                "scores": [number(score, 1) for score in group.scores],
                "values": [[_short(value) for value in layer.tolist()] for layer in group.values],
                "errors": [_whole(layer, explored.limit) for layer in group.errors],
                "words": [[places[word] for word in layer] for layer in group.words],
                "counts": group.counts,
                "places": [[_on_grid(side) for side in layer] for layer in group.places],
                "shares": group.shares,
            }
            for group in explored.groups
        ],
    }


def packed(explored: Explored, look: Any) -> str:
    """Return the data for the page's script as base64 of compressed JSON."""
    text = json.dumps(page_data(explored, look), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _short(value: float) -> float | int:
    """Return a number rounded to three decimals, as an integer if it is whole."""
    short = round(value, 3)
    return int(short) if short == int(short) else short


def _whole(errors: Array, limit: float) -> list[int]:
    """Return errors as whole numbers on the same side of the limit, a whole number too."""
    return [*map(int, np.where(errors > limit, np.ceil(errors), np.floor(errors)))]


def _on_grid(places: Array) -> list[list[int]]:
    """Return the two coordinates of (item, 2) places on the grid; points beyond `REACH` are at its edge."""
    steps = np.clip(np.round(places * GRID / REACH), -GRID, GRID).astype(int)
    return [[*map(int, axis)] for axis in steps.T]
