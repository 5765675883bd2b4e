"""Documents as sentences of which some are to be chosen. Knows texts and ROUGE, no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.kinds.summaries.metrics import ROUGE, rouge
from layerprobe.metrics.influence import Influences, mean_influences
from layerprobe.tasks.values import Items

if TYPE_CHECKING:
    from layerprobe.tasks.kind import Kind

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryItems(Items):
    """Documents as sentences, with the summary of each."""

    by_item = ("documents", "summaries", "oracle")
    documents: tuple[tuple[str, ...], ...]
    """By document its sentences, in their order."""
    summaries: tuple[tuple[str, ...], ...]
    """By document the sentences of its summary."""
    oracle: tuple[tuple[int, ...], ...]
    """By document the numbers of the sentences that are to be learnt, see `greedy_oracle`."""
    keep: int
    """Sentences that are chosen of each document."""
    prompt: str = ""
    """Before every sentence where it is embedded; ROUGE does not read it."""

    def __post_init__(self) -> None:
        lengths = len(self.documents), len(self.summaries), len(self.oracle)
        if len(set(lengths)) > 1:
            raise DataError(f"expected as many documents as summaries and oracles, got {lengths}")
        if self.keep < 1:
            raise DataError(f"expected at least one sentence to choose of each document, got {self.keep}")

    def __repr__(self) -> str:
        return f"<SummaryItems: {len(self):,} documents>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The documents, each as one text: those that are equal are not independent."""
        return (tuple(map("\n".join, self.documents)),)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct sentences in order of first appearance, document by document, with the prompt."""
        return tuple(dict.fromkeys(self.sentences))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Those of all documents, one after the other, with the prompt."""
        return tuple(self.prompt + sentence for document in self.documents for sentence in document)

    @property
    def gold(self) -> SummaryItems:
        """The items themselves: ROUGE is of the chosen sentences and the summary."""
        return self

    @property
    def targets(self) -> Array:
        """(sentences,) of all documents, one after the other: 1 where a sentence is to be chosen, else 0."""
        pairs = zip(self.documents, self.oracle, strict=True)
        return np.array([i in chosen for sentences, chosen in pairs for i in range(len(sentences))], dtype=np.float64)

    def __getitem__(self, rows: Sequence[int]) -> SummaryItems:
        return self.take(rows)

    def join(self, other: SummaryItems) -> SummaryItems:
        """Return these documents and then the others; DataError if not as many sentences are chosen of those."""
        if self.keep != other.keep:
            raise DataError(f"expected {self.keep} sentences to choose of each document, got {other.keep}")
        return super(SummaryItems, self).join(other)

    def prompted(self, prompt: str) -> SummaryItems:
        """Return the documents with the prompt before every sentence."""
        return replace(self, prompt=prompt + self.prompt)

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless every document and summary has a sentence, none empty."""
        for name, texts in ("document", self.documents), ("summary", self.summaries):
            for i, sentences in enumerate(texts):
                if not sentences or not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                    raise DataError(f"expected a {name} of sentences at {split}[{i}], got {sentences!r:.80}")

    def arranged(self, scores: Array) -> Array:
        """Return scores of all sentences as outputs, (documents, longest document), 0 after the end of a document."""
        outputs = np.zeros((len(self), max(map(len, self.documents), default=0)))
        start = 0
        for row, sentences in zip(outputs, self.documents, strict=True):
            row[: len(sentences)] = scores[start : start + len(sentences)]
            start += len(sentences)
        return outputs

    def chosen(self, outputs: Array) -> list[tuple[str, ...]]:
        """Return the sentences of each document with the highest outputs, the earlier of equals, in their order."""
        chosen = []
        for sentences, scores in zip(self.documents, outputs, strict=True):
            highest = np.argsort(-scores[: len(sentences)], kind="stable")[: self.keep]
            chosen.append(tuple(sentences[i] for i in sorted(highest.tolist())))
        return chosen

    def lead(self) -> Array:
        """Return outputs that choose the first sentences."""
        return self.arranged(
            np.concatenate([-np.arange(len(document), dtype=np.float64) for document in self.documents])
        )

    def best(self) -> Array:
        """Return outputs that choose the oracle, and where that has fewer sentences, the first others."""
        return self.arranged(self.targets) + self.lead() / (1 + max(map(len, self.documents)))


def summary_scores(outputs: Array, gold: SummaryItems) -> dict[str, float]:
    """Return the mean ROUGE of the sentences with the highest outputs, (documents, longest document)."""
    return {name: float(values.mean()) for name, values in document_scores(outputs, gold).items()}


def summary_influences(outputs: Array, gold: SummaryItems) -> Influences:
    """Return the influences of documents on `summary_scores`."""
    return {name: mean_influences(values) for name, values in document_scores(outputs, gold).items()}


def document_scores(outputs: Array, gold: SummaryItems) -> dict[str, Array]:
    """Return ROUGE by document, 0 .. 1, of the sentences with the highest outputs."""
    scores = [rouge(chosen, summary) for chosen, summary in zip(gold.chosen(outputs), gold.summaries, strict=True)]
    return {name: np.array([by_metric[name] for by_metric in scores]) for name in ROUGE}
