"""Which sentences of a document are its summary: ROUGE, items, JSONL files, and the kind. Knows texts, no models.

By Google's `rouge-score`, whose ROUGE-L is here that of whole summaries (rougeLsum: the longest common subsequences of
sentences), with Porter's stemmer, as papers on summaries report it. It reads the letters a to z and digits alone.

Source: Lin 2004 (Text Summarization Branches Out); greedy oracle: Nallapati, Zhai and Zhou 2017 (AAAI), section 3.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_extra
from layerprobe.errors import TaskError
from layerprobe.metrics.scores import mean_influences
from layerprobe.names import counted
from layerprobe.tasks.cells import TableLog, UnusableRowError
from layerprobe.tasks.examples import Cells
from layerprobe.tasks.explored import ItemView, ReadOutputs
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.loading import TaskSource, load_rows
from layerprobe.tasks.sources import folder_splits
from layerprobe.tasks.tables import first_columns
from layerprobe.tasks.values import Items, Task

ROUGE = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeLsum"}
"""Names of metrics, and of the library."""


@functools.lru_cache(maxsize=2**17)
def rouge(chosen: tuple[str, ...], summary: tuple[str, ...]) -> dict[str, float]:
    """Return F1 by ROUGE-1, -2 and -L of some sentences of a document against the sentences of a summary, 0 .. 1.

    Examples:
        >>> rouge(("the cat sat",), ("the cat slept",))["rouge-1"]
        0.6666666666666666
    """
    scores = _scorer(tuple(ROUGE.values())).score("\n".join(summary), "\n".join(chosen))
    return {name: float(scores[of_library].fmeasure) for name, of_library in ROUGE.items()}


def greedy_oracle(sentences: Sequence[str], summary: tuple[str, ...], *, keep: int) -> tuple[int, ...]:
    """Return which sentences of a document, at most `keep`, make the summary that scores best, one added after another.

    Each is the one that raises the sum of ROUGE-1 and ROUGE-2 most; where none raises it, no further one is added.

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
    """By document its sentences, in their order."""
    summaries: tuple[tuple[str, ...], ...]
    """By document the sentences of its summary."""
    oracle: tuple[tuple[int, ...], ...]
    """By document the numbers of the sentences that are to be learnt, see `greedy_oracle`."""
    keep: int
    """Sentences that are chosen of each document."""
    prompt: str = ""
    """Before every sentence where it is embedded; ROUGE does not read it."""

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

    def prompted(self, prompt: str) -> SummaryItems:
        """Return the documents with the prompt before every sentence."""
        return replace(self, prompt=prompt + self.prompt)

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


def document_scores(outputs: Array, gold: SummaryItems) -> dict[str, Array]:
    """Return ROUGE by document, 0 .. 1, of the sentences with the highest outputs, (documents, longest document)."""
    scores = [rouge(chosen, summary) for chosen, summary in zip(gold.chosen(outputs), gold.summaries, strict=True)]
    return {name: np.array([by_metric[name] for by_metric in scores]) for name in ROUGE}


def summary_view(task: Task, items: SummaryItems) -> ItemView:
    """Return how documents are shown: what is chosen of each, and its ROUGE-L beside that of the greedy oracle."""
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
        error="100 less ROUGE-L in percent of what the greedy oracle scores",
        limit=50.0,
        read=read,
    )


Document = tuple[tuple[str, ...], tuple[str, ...]]
"""Its sentences, and those of its summary."""
_BETWEEN = re.compile(r"(?<=[.!?])\s+|\n+")


def sentences_of(text: str) -> tuple[str, ...]:
    """Return the sentences of a text: it is cut at line ends, and at white space after a full stop, `!` or `?`.

    What has no letter and no digit is left out. Abbreviations are cut, too: give lists of sentences where that matters.

    Examples:
        >>> sentences_of("It rained . Why? Nobody knew.")
        ('It rained .', 'Why?', 'Nobody knew.')
    """
    return tuple(part.strip() for part in _BETWEEN.split(text) if any(map(str.isalnum, part)))


# ---- rows -----------------------------------------------------------------------------------------------


def is_summaries(path: Path) -> bool:
    """Return whether a JSONL file, or the train file of a folder, has a document and a summary in its first line."""
    try:
        file = folder_splits(path)["train"] if path.is_dir() else path
    except TaskError:
        return False
    return file.suffix.lower() == ".jsonl" and set(SUMMARIZATION.columns) <= first_columns(file)


def load_summaries(source: TaskSource) -> Task:
    """Load documents with summaries: a row has a `document`, a text or a list of its sentences, and a `summary`.

    The columns can have other names. Texts become sentences by `sentences_of`. Of each document as many sentences are
    chosen as training summaries have in the median.
    """
    return load_rows(source, SUMMARIZATION, _document, _splits, key=lambda row: ("\n".join(row[0]), ""))


def _document(row: Cells) -> Document:
    document, summary = (
        _sentences(value, row.log, f"{row.place}, {name}") for name, value in zip(row.columns, row.values, strict=True)
    )
    if not document or not summary:
        raise UnusableRowError("without sentences or without a summary")
    if not readable(" ".join(summary)):
        raise TaskError(f"{row.place}: expected a summary with letters from a to z or digits, which is all ROUGE reads")
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
    notes.append(f"chooses {counted(keep, 'sentence')} of each document, as the median training summary has")
    if short := sum(len(document) <= keep for part in parts.values() for document, _ in part):
        warnings.append(
            f"{counted(short, 'document')} of no more than {counted(keep, 'sentence')} leave nothing to choose"
        )
    splits = {}
    for role, rows in parts.items():
        documents, summaries = zip(*rows, strict=True)
        oracle = tuple(greedy_oracle(document, summary, keep=keep) for document, summary in rows)
        splits[role] = SummaryItems(documents=documents, summaries=summaries, oracle=oracle, keep=keep)
    return splits


PRIMARY = "rouge-l"
"""Defined, and seldom 0, for summaries as short as a title too; papers report all three."""


SUMMARIZATION = Kind(
    name="summarization",
    pairs=False,
    labelled=False,
    metrics=(PRIMARY, *(name for name in ROUGE if name != PRIMARY)),
    score=lambda *outputs: {name: float(values.mean()) for name, values in document_scores(*outputs).items()},
    influences=lambda *outputs: {name: mean_influences(values) for name, values in document_scores(*outputs).items()},
    loss="layerprobe.kinds.summaries.loss:SentenceScorer",
    zero_shot="own",
    untrained="layerprobe.kinds.summaries.loss:central_sentences",
    outputs="layerprobe.kinds.summaries.loss:central",
    ways="layerprobe.kinds.summaries.loss:summary_ways",
    view="layerprobe.kinds.summaries.kind:summary_view",
    one_target=True,
    items="layerprobe.kinds.summaries.kind:SummaryItems",
    item="document",
    columns={"document": ("document",), "summary": ("summary",)},
    loader="layerprobe.kinds.summaries.kind:load_summaries",
    recognises=is_summaries,
    averages="values",
)
