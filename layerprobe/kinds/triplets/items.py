"""Triplets of texts: which of two is to be closer to a third. Knows texts, no models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerprobe.errors import DataError
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.texts import plain
from layerprobe.tasks.values import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class Triplets(Items):
    """Texts, each with one that is to be closer to it than another."""

    by_item = ("anchors", "positives", "negatives")
    anchors: tuple[str, ...]
    """The texts."""
    positives: tuple[str, ...]
    """What is to be closer."""
    negatives: tuple[str, ...]
    """What is to be farther away."""

    def __post_init__(self) -> None:
        lengths = tuple(map(len, self.sides))
        if len(set(lengths)) > 1:
            raise DataError(f"expected as many anchors as positives and negatives, got {lengths}")

    def __repr__(self) -> str:
        return f"<Triplets: {len(self):,}>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """Anchors, positives and negatives."""
        return self.anchors, self.positives, self.negatives

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Anchor and positive: with another negative it is learnt all the same."""
        return tuple((plain(anchor), plain(positive)) for anchor, positive in zip(*self.sides[:2], strict=True))

    @property
    def gold(self) -> Any:
        """(n,) ones: the sign that the difference of cosines should have."""
        import numpy as np  # which `--help` does without

        return np.ones(len(self))

    def prompted(self, prompt: str) -> "Triplets":
        """Return the triplets with the prompt before every text."""
        anchors, positives, negatives = (tuple(prompt + text for text in side) for side in self.sides)
        return replace(self, anchors=anchors, positives=positives, negatives=negatives)

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError if a text is empty."""
        for side, texts in zip(("anchors", "positives", "negatives"), self.sides, strict=True):
            for i, text in enumerate(texts):
                if not isinstance(text, str) or not text.strip():
                    raise DataError(f"expected a text at {split}.{side}[{i}], got {text!r}: leave such triplets out")
