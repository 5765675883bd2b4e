"""Examples -> which of them share a text or a document. Knows texts, no scores."""

from collections.abc import Mapping

import numpy as np

from layerprobe.stats.links import Links
from layerprobe.tasks.texts import plain
from layerprobe.tasks.values import Items


def links_of(examples: Items, documents: Mapping[str, str] | None = None) -> Links | None:
    """Return which examples share a text, or texts of one document; None where no two do.

    Args:
        examples: The items.
        documents: Text -> the document it is from; a text that is not in it is a document of its own.

    Examples:
        >>> from layerprobe.tasks.values import Examples
        >>> links_of(Examples(first=("a", "b"), second=("c", "a"), targets=(0.0, 1.0))).sides[1].tolist()
        [2, 0]
        >>> links_of(Examples(first=("a", "b"), second=("c", "d"), targets=(0.0, 1.0)))
    """
    units = documents or {}
    numbers: dict[tuple[bool, str], int] = {}
    sides = [
        np.array(
            [numbers.setdefault((text in units, units.get(text) or plain(text)), len(numbers)) for text in side],
            np.intp,
        )
        for side in examples.sides
    ]
    if sum(len(set(item)) for item in zip(*sides, strict=True)) == len(numbers):
        return None
    return Links(sides=tuple(sides))
