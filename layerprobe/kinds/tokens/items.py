"""Sentences with a tag for every word, as items of a task. Knows neither files nor models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerprobe.errors import DataError
from layerprobe.kinds.tokens.metrics import WordTags
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.values import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedSentences(Items):
    """Sentences as words, each with a tag. A sentence is an item, and as a text its words with spaces between."""

    by_item = ("words", "tags")
    words: tuple[tuple[str, ...], ...]
    """Of every sentence."""
    tags: tuple[tuple[int, ...], ...]
    """The number of every word's tag in `labels`."""
    labels: tuple[str, ...]
    """Names of the tags; the first is what a word counts as that a model does not read: O, or the most frequent tag."""

    def __post_init__(self) -> None:
        if list(map(len, self.words)) != list(map(len, self.tags)):
            raise DataError("expected a tag for every word of every sentence")

    def __repr__(self) -> str:
        return f"<TaggedSentences: {len(self):,} sentences, {self.n_outputs:,} words>"

    @property
    def n_outputs(self) -> int:
        """Words of all sentences, each of which has an output."""
        return sum(map(len, self.words))

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The sentences as texts."""
        return (tuple(map(" ".join, self.words)),)

    @property
    def gold(self) -> WordTags:
        """The tags of all words."""
        import numpy as np  # which `--help` does without

        return WordTags(
            tags=np.array([tag for tags in self.tags for tag in tags], dtype=np.intp),
            ends=np.cumsum([0, *map(len, self.tags)], dtype=np.intp),
            labels=self.labels,
        )

    def prompted(self, prompt: str) -> TaggedSentences:
        """Return the sentences as they are; DataError if there is a prompt, whose words would have no tags."""
        if prompt:
            raise DataError(f"expected no prompt before sentences whose words have tags, got {prompt[:40]!r}")
        return self

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless all sentences have words, and their tags are the labels of the task."""
        if tuple(labels) != self.labels:
            raise DataError(f"expected the labels of the task in the {split} split, got {', '.join(self.labels[:20])}")
        for i, words in enumerate(self.words):
            if not words or not all(isinstance(word, str) and word.strip() for word in words):
                raise DataError(f"expected words at {split}.words[{i}], got {list(words)[:10]}: leave such ones out")
        if not all(0 <= tag < len(self.labels) for tags in self.tags for tag in tags):
            raise DataError(f"expected numbers of tags from 0 to {len(self.labels) - 1} in the {split} split")
