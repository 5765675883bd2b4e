"""Scores of layers, and influences of items on them, to compare two saved results. Does not load numpy itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.interval import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from layerprobe.stats.links import Links

LARGEST = 2**22
"""Largest number of influences saved with a result (11 MB of JSON); with more, results are compared without items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemInfluences:
    """Influences of items on the scores of a result, saved with it for paired comparisons."""

    digest: str
    """sha256 of the items and their targets."""
    n: int
    """Number of items."""
    scale: float
    """Points that correspond to 1 in `influences`."""
    influences: str
    """(scores, n) influences by layer and seed, float16 in base64."""
    texts: str = field(default="", metadata=RARE)
    """(sides, n) numbers of each item's texts, int32 in base64; empty if no items share texts."""

    @classmethod
    def of(cls, influences: ArrayLike | None, *, digest: str, links: Links | None) -> ItemInfluences | None:
        """Return (scores, n) influences in their saved form; None if more than `LARGEST`, or not finite."""
        import numpy as np

        if influences is None or (psi := np.asarray(influences)).size > LARGEST or not np.isfinite(psi).all():
            return None
        scale, texts = float(np.abs(psi).max(initial=0.0)) or 1.0, ""
        if links is not None:
            sides = np.stack(links.sides)
            texts = _written(np.unique(sides, return_inverse=True)[1].reshape(sides.shape), "<i4")
        return cls(digest=digest, n=psi.shape[1], scale=scale, influences=_written(psi / scale, "<f2"), texts=texts)

    @property
    def rows(self) -> NDArray[np.float64]:
        """(scores, n) influences, in points."""
        rows: NDArray[np.float64] = self.scale * self._read(self.influences, "<f2").astype("f8")
        return rows

    @property
    def links(self) -> Links | None:
        """Items that share texts; None if none do."""
        from layerprobe.stats.links import Links

        return Links(sides=tuple(self._read(self.texts, "<i4").astype("i8"))) if self.texts else None

    def _read(self, text: str, dtype: str) -> NDArray[Any]:
        import numpy as np

        try:
            read = np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).reshape(-1, self.n)
            if not np.isfinite(read).all() or (dtype == "<i4" and not 0 <= read.min() <= read.max() < read.size):
                raise ValueError("a number is out of range")
            return read
        except ValueError as error:
            raise DataError(f"cannot read the influences of {self.n} items: {error}") from error


def _written(array: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLayers:
    """Scores of one model on one task by layer, to compare with those of another result."""

    model: str
    task: str
    split: str
    primary: str
    unit: str
    """Name of an item."""
    scores: Mapping[int, tuple[float, ...]]
    """Scores x 100 by layer and seed."""
    seeds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Seeds by layer; empty if nothing was trained with seeds."""
    errors: Mapping[int, Interval] = field(default_factory=dict)
    """Error of the mean score by layer, where known."""
    influences: ItemInfluences | None = None
    """Influences on the scores, in their order."""

    def influences_by_layer(self) -> dict[int, NDArray[np.float64]]:
        """Return the (seeds, n) influences on the scores of each layer, in points."""
        import numpy as np

        assert self.influences is not None
        rows, n_scores = self.influences.rows, [len(scores) for scores in self.scores.values()]
        if len(rows) != sum(n_scores):
            raise DataError(f"expected influences on {sum(n_scores)} scores of {self.task}, got {len(rows)}")
        return dict(zip(self.scores, np.split(rows, np.cumsum(n_scores)[:-1]), strict=True))
