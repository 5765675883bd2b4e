"""Extractive summaries: ROUGE, items, JSONL files, and the kind. Knows texts, no models.

ROUGE is Google's `rouge-score`, with ROUGE-L of whole summaries (rougeLsum: the longest common subsequences of
sentences) and Porter's stemmer, as in papers on summaries. It reads only the letters a to z and digits.

Source: Lin 2004 (Text Summarization Branches Out); greedy oracle: Nallapati, Zhai and Zhou 2017 (AAAI), section 3.
Centrality in the graph of a document's sentences: Erkan and Radev 2004 (LexRank, JAIR 22), whose degree is the mean
cosine here; centroid: Radev, Jing, Stys and Tam 2004 (Information Processing and Management 40).
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_extra
from layerprobe.errors import TaskError
from layerprobe.metrics.scores import mean_influences
from layerprobe.names import counted
from layerprobe.similarity.checks import finite_matrix, unit_rows
from layerprobe.tasks.cells import TableLog, UnusableRowError
from layerprobe.tasks.evaluation import RowsOf
from layerprobe.tasks.explored import ItemView, ReadOutputs
from layerprobe.tasks.kind import Kind, learning_of
from layerprobe.tasks.loading import load_rows
from layerprobe.tasks.rows import Row, TaskSource
from layerprobe.tasks.sources import first_columns, folder_splits
from layerprobe.tasks.values import Items, Task

ROUGE = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeLsum"}
"""Names of metrics, here and in the library."""


@functools.lru_cache(maxsize=2**17)
def rouge(chosen: tuple[str, ...], summary: tuple[str, ...]) -> dict[str, float]:
    """Return F1 by ROUGE-1, -2 and -L, 0 .. 1, of chosen sentences against the sentences of a summary.

    Examples:
        >>> rouge(("the cat sat",), ("the cat slept",))["rouge-1"]
        0.6666666666666666
    """
    scores = _scorer(tuple(ROUGE.values())).score("\n".join(summary), "\n".join(chosen))
    return {name: float(scores[of_library].fmeasure) for name, of_library in ROUGE.items()}


def greedy_oracle(sentences: Sequence[str], summary: tuple[str, ...], *, keep: int) -> tuple[int, ...]:
    """Return the greedy oracle: at most `keep` sentences of a document, added one by one.

    Each one raises the sum of ROUGE-1 and ROUGE-2 most; if none raises it, no further one is added.

    Examples:
        >>> greedy_oracle(["the dog ran", "a cat sat", "it rained"], ("the cat sat",), keep=2)
        (1,)
    """
    scorer, chosen, highest = _scorer(("rouge1", "rouge2")), list[int](), 0.0
    reference = "\n".join(summary)
    while len(chosen) < min(keep, len(sentences)):
        gains: list[tuple[float, int]] = []
        for number in set(range(len(sentences))) - set(chosen):
            text = "\n".join(sentences[i] for i in sorted([*chosen, number]))
            gains.append((sum(rouge.fmeasure for rouge in scorer.score(reference, text).values()), -number))
        score, number = max(gains)
        if score <= highest:
            break
        highest, chosen = score, [*chosen, -number]
    return tuple(sorted(chosen))


def readable(text: str) -> bool:
    """Return whether the library finds a word in a text: a letter from a to z, or a digit."""
    return any(character.isascii() and character.isalnum() for character in text.lower())


@functools.cache
def _scorer(names: tuple[str, ...]) -> Any:
    check_extra("summaries", needed_by="scoring summaries")
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    stemmer = SimpleNamespace(stem=functools.lru_cache(maxsize=2**16)(PorterStemmer().stem))
    words = functools.lru_cache(maxsize=2**14)(lambda text: tokenize(text, stemmer))
    return RougeScorer(list(names), tokenizer=SimpleNamespace(tokenize=words))


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SummaryItems(Items):
    """Documents as sentences, with the summary of each."""

    by_item = ("documents", "summaries", "oracle")
    documents: tuple[tuple[str, ...], ...]
    """Sentences of each document, in order."""
    summaries: tuple[tuple[str, ...], ...]
    """Sentences of each summary."""
    oracle: tuple[tuple[int, ...], ...]
    """Numbers of the target sentences of each document, see `greedy_oracle`."""
    keep: int
    """Number of sentences to choose per document."""
    prompt: str = ""
    """Prompt before every sentence in embeddings; ROUGE ignores it."""

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The documents, each as one text."""
        return (tuple(map("\n".join, self.documents)),)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct sentences in order of first appearance, document by document, with the prompt."""
        return tuple(dict.fromkeys(self.sentences))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of all documents in turn, with the prompt."""
        return tuple(self.prompt + sentence for document in self.documents for sentence in document)

    @property
    def gold(self) -> SummaryItems:
        """The items themselves: ROUGE compares the chosen sentences with the summary."""
        return self

    @property
    def targets(self) -> Array:
        """(sentences,) targets of all documents in turn: 1 for a sentence to choose, else 0."""
        pairs = zip(self.documents, self.oracle, strict=True)
        return np.array([i in chosen for sentences, chosen in pairs for i in range(len(sentences))], dtype=np.float64)

    def __getitem__(self, rows: Sequence[int]) -> SummaryItems:
        return self.take(rows)

    def prompted(self, prompt: str) -> SummaryItems:
        """Return the documents with the prompt before every sentence."""
        return replace(self, prompt=prompt + self.prompt)

    def arranged(self, scores: Array) -> Array:
        """Return scores of all sentences as (documents, longest document) outputs, 0 after the end of a document."""
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
        """Return outputs that choose the oracle and, if it has fewer sentences, the first others."""
        return self.arranged(self.targets) + self.lead() / (1 + max(map(len, self.documents)))


def document_scores(outputs: Array, gold: SummaryItems) -> dict[str, Array]:
    """Return ROUGE by document, 0 .. 1, for the sentences with the highest (documents, longest document) outputs."""
    scores = [rouge(chosen, summary) for chosen, summary in zip(gold.chosen(outputs), gold.summaries, strict=True)]
    return {name: np.array([by_metric[name] for by_metric in scores]) for name in ROUGE}


def summary_view(task: Task, items: SummaryItems) -> ItemView:
    """Return the view of documents: the chosen sentences, and their ROUGE-L relative to the greedy oracle."""
    reachable = np.maximum(document_scores(items.best(), items)[PRIMARY], 1e-9)

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        scores = document_scores(outputs, items)[PRIMARY]
        errors = 100 * (1 - np.minimum(scores / reachable, 1))
        return ReadOutputs((100 * scores).tolist(), errors, list(map(" ".join, items.chosen(outputs))))

    return ItemView(
        form="shares",
        texts={"Document": list(map(" ".join, items.documents))},
        gold=list(map(" ".join, items.summaries)),
        output="summary",
        error="100 minus ROUGE-L in percent of the greedy oracle's",
        limit=50.0,
        read=read,
    )


Centrality = Literal["degree", "centroid"]
"""Centrality of a sentence in its document: mean cosine with the others, or cosine with the mean of all."""
TINY = 1e-12
"""Norm of a sum of unit vectors below which it has no direction."""


def centrality(embeddings: NDArray[np.floating], by: Centrality = "degree") -> Array:
    """Return the centrality of each sentence of a document, in [-1, 1].

    degree: the mean cosine with the other sentences; centroid: the cosine with the mean of all embeddings. A single
    sentence has 0. If all embeddings have the same norm, both give the same ranking.

    Args:
        embeddings: (sentences, width) embeddings.
        by: Kind of centrality.

    Examples:
        >>> centrality(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).round(3).tolist()
        [0.354, 0.354, 0.707]
    """
    values = finite_matrix(embeddings, name="the document")
    units = unit_rows(values, name="the document")
    if len(units) == 1:
        return np.zeros(1)
    if by == "degree":
        return (units @ units.sum(axis=0) - 1) / (len(units) - 1)
    centre = values.mean(axis=0)
    return units @ centre / max(float(np.linalg.norm(centre)), TINY)


def central(values: NDArray[np.float32], rows: RowsOf, items: SummaryItems, by: Centrality = "degree") -> Array:
    """Return the centrality of the sentences of all documents, from (text, width) embeddings; see `centrality`."""
    ends = np.cumsum([len(sentences) for sentences in items.documents])
    documents = np.split(values[rows(items.sentences)], ends[:-1])
    return items.arranged(np.concatenate([centrality(document, by) for document in documents]))


Document = tuple[tuple[str, ...], tuple[str, ...]]
"""Sentences of a document, and those of its summary."""
_BETWEEN = re.compile(r"(?<=[.!?])\s+|\n+")


def sentences_of(text: str) -> tuple[str, ...]:
    """Return the sentences of a text, split at line ends, and at white space after a full stop, `!` or `?`.

    Sentences without letters and digits are left out. Abbreviations are split, too: if that matters, give lists.

    Examples:
        >>> sentences_of("It rained . Why? Nobody knew.")
        ('It rained .', 'Why?', 'Nobody knew.')
    """
    return tuple(part.strip() for part in _BETWEEN.split(text) if any(map(str.isalnum, part)))


def is_summaries(path: Path) -> bool:
    """Return whether the first line of a JSONL file, or of a folder's train file, has a document and a summary."""
    try:
        file = folder_splits(path)["train"] if path.is_dir() else path
    except TaskError:
        return False
    return file.suffix.lower() == ".jsonl" and set(SUMMARIZATION.columns) <= first_columns(file)


def load_summaries(source: TaskSource) -> Task:
    """Load documents with summaries: a row has a `document`, a text or a list of its sentences, and a `summary`.

    The columns can have other names. Texts become sentences by `sentences_of`. The number of sentences to choose is
    the median of the training summaries.
    """
    return load_rows(source, SUMMARIZATION, _document, _splits, key=lambda row: ("\n".join(row[0]), ""))


def _document(row: Row) -> Document:
    document, summary = (
        _sentences(value, row.log, f"{row.place}, {name}") for name, value in zip(row.columns, row.values, strict=True)
    )
    if not document or not summary:
        raise UnusableRowError("without sentences or without a summary")
    if not readable(" ".join(summary)):
        raise TaskError(f"{row.place}: expected a summary with letters from a to z or digits: ROUGE reads only these")
    return document, summary


def _sentences(value: Any, log: TableLog, place: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return sentences_of(log.clean(value))
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        cleaned = (" ".join(log.clean(sentence).split()) for sentence in value)
        return tuple(sentence for sentence in cleaned if any(map(str.isalnum, sentence)))
    raise TaskError(f"{place}: expected a text or a list of sentences, got {value!r:.40}")


def _splits(parts: Mapping[str, Sequence[Document]], notes: list[str], warnings: list[str]) -> dict[str, SummaryItems]:
    keep = max(1, round(statistics.median(len(summary) for _, summary in parts["train"])))
    notes.append(f"chooses {counted(keep, 'sentence')} of each document, the median of the training summaries")
    if short := sum(len(document) <= keep for part in parts.values() for document, _ in part):
        warnings.append(
            f"{counted(short, 'document')} with at most {counted(keep, 'sentence')} leave nothing to choose"
        )
    splits = {}
    for role, rows in parts.items():
        documents, summaries = zip(*rows, strict=True)
        oracle = tuple(greedy_oracle(document, summary, keep=keep) for document, summary in rows)
        splits[role] = SummaryItems(documents=documents, summaries=summaries, oracle=oracle, keep=keep)
    return splits


PRIMARY = "rouge-l"
"""Defined and rarely 0 even for summaries as short as a title; papers report all three."""


SUMMARIZATION = Kind(
    name="summarization",
    pairs=False,
    labelled=False,
    metrics=(PRIMARY, *(name for name in ROUGE if name != PRIMARY)),
    score=lambda *outputs: {name: float(values.mean()) for name, values in document_scores(*outputs).items()},
    influences=lambda *outputs: {name: mean_influences(values) for name, values in document_scores(*outputs).items()},
    learning=learning_of("summarization"),
    zero_shot="own",
    view=summary_view,
    one_target=True,
    items=SummaryItems,
    item="document",
    columns={"document": ("document",), "summary": ("summary",)},
    loader=load_summaries,
    recognises=is_summaries,
    averages="values",
)
