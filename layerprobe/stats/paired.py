"""Scores of layers by which two saved results are compared, and what every item adds to them. Loads no numpy itself."""

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
"""Numbers that are saved with a result at most, 11 MB of JSON; of more, results are compared without their items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemInfluences:
    """What every item adds to the scores of a result, saved with it, so that two results are compared in pairs."""

    digest: str
    """sha256 of the items and their targets."""
    n: int
    """Number of items."""
    scale: float
    """What 1 in `influences` stands for, in points."""
    influences: str
    """(scores, n) in base64, as float16: by layer, and of each by seed."""
    texts: str = field(default="", metadata=RARE)
    """(sides, n) in base64, as int32: the texts of every item by number, where items share some."""

    @classmethod
    def of(cls, influences: ArrayLike | None, *, digest: str, links: Links | None) -> ItemInfluences | None:
        """Return influences, (scores, n), as they are saved; None of more than `LARGEST`, or that are not finite."""
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
        """Which items share texts; None where none do."""
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
            raise DataError(f"expected influences of {self.n} items as layerprobe saves them: {error}") from error


def _written(array: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLayers:
    """The scores of one model on one task by layer, as a result gives them to be compared with those of another."""

    model: str
    task: str
    split: str
    primary: str
    unit: str
    """What an item is called."""
    scores: Mapping[int, tuple[float, ...]]
    """By layer and seed, x 100."""
    seeds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By layer; none where nothing was trained with one."""
    errors: Mapping[int, Interval] = field(default_factory=dict)
    """Of the mean score of a layer, where that is known."""
    influences: ItemInfluences | None = None
    """Of the scores, in their order."""

    def influences_by_layer(self) -> dict[int, NDArray[np.float64]]:
        """Return the (seeds, n) influences on the scores of each layer, in points."""
        import numpy as np

        assert self.influences is not None
        rows, n_scores = self.influences.rows, [len(scores) for scores in self.scores.values()]
        if len(rows) != sum(n_scores):
            raise DataError(f"expected influences on each of {sum(n_scores)} scores of {self.task}, got {len(rows)}")
        return dict(zip(self.scores, np.split(rows, np.cumsum(n_scores)[:-1]), strict=True))
