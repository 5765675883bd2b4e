"""Sentence pairs and texts, as the user gave them."""

from __future__ import annotations

from dataclasses import dataclass

from layerprobe.errors import DataError
from layerprobe.results.serialisation import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePairs:
    """Sentence pairs with their gold similarity."""

    first: tuple[str, ...]
    """The first sentence of every pair."""
    second: tuple[str, ...]
    """The second sentence of every pair."""
    scores: tuple[float, ...]
    """Gold similarity, scaled to 0 .. 1."""

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.scores):
            lengths = len(self.first), len(self.second), len(self.scores)
            raise DataError(f"expected as many first as second sentences and scores, got {lengths}")

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct sentences in order of first appearance, pair by pair."""
        return tuple(dict.fromkeys(text for pair in zip(self.first, self.second, strict=True) for text in pair))


@dataclass(frozen=True, slots=True, kw_only=True)
class STSTask:
    """Semantic textual similarity: pairs to train on, to select on and to report."""

    name: str
    """As the user gave it."""
    train: SentencePairs
    """Fine-tuning sees these."""
    validation: SentencePairs
    """Epochs and layers are selected on these."""
    test: SentencePairs
    """Scores are reported on these; their texts are what CKA compares models on."""
    score_range: tuple[float, float]
    """What 0 and 1 were in the source."""
    notes: tuple[str, ...] = ()
    """How the data was understood, in plain words."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""

    @property
    def digest(self) -> str:
        """Return a sha256 of all sentences and scores."""
        return digest([self.train, self.validation, self.test])


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """Texts without scores, to extract embeddings of."""

    name: str
    """As the user gave it."""
    texts: tuple[str, ...]
    """In the order of the file; the same text can occur more than once."""
    documents: tuple[str, ...] | None = None
    """Where each text comes from, if the file says so."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""

    def __post_init__(self) -> None:
        if self.documents is not None and len(self.documents) != len(self.texts):
            raise DataError(f"expected a document for each of {len(self.texts)} texts, got {len(self.documents)}")
