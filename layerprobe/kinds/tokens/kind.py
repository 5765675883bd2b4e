"""Entities and tags: a tag for every word of a sentence; scores, items and both kinds.

Entities are those of seqeval in its default mode: a run of B- and I- of one type, which can also begin with an I-.

Source: Tjong Kim Sang and De Meulder 2003 (CoNLL, F1 of whole entities); Nakayama 2018 (seqeval).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_extra
from layerprobe.errors import DataError, TaskError, option
from layerprobe.metrics.scores import Influences, macro_f1, ratio_influences
from layerprobe.stats.floors import NO_ENTITY, Floor, class_floors, zero_floors
from layerprobe.tasks.explored import ItemView, ReadOutputs, counts_of
from layerprobe.tasks.kind import Kind, Learning
from layerprobe.tasks.rows import TaskSource
from layerprobe.tasks.values import Items, Task

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedSentences(Items):
    """Sentences as words with tags. A sentence is an item; its text is the words joined by spaces."""

    by_item = ("words", "tags")
    words: tuple[tuple[str, ...], ...]
    """Words of every sentence."""
    tags: tuple[tuple[int, ...], ...]
    """Number of every word's tag in `labels`."""
    labels: tuple[str, ...]
    """Names of the tags; words that a model does not read get the first one: O, or the most frequent tag."""

    def __repr__(self) -> str:
        return f"<TaggedSentences: {len(self):,} sentences, {self.n_outputs:,} words>"

    @property
    def n_outputs(self) -> int:
        """Number of words of all sentences; each has an output."""
        return sum(map(len, self.words))

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The sentences as texts."""
        return (tuple(map(" ".join, self.words)),)

    @property
    def gold(self) -> TaggedSentences:
        """The sentences themselves, whose words have tags."""
        return self

    @property
    def word_tags(self) -> Numbers:
        """(word,) numbers in `labels`, sentence after sentence."""
        return np.array([tag for tags in self.tags for tag in tags], dtype=np.intp)

    @property
    def ends(self) -> Numbers:
        """(sentence + 1,) bounds: sentence i has the words `ends[i]` to `ends[i + 1]`."""
        return np.cumsum([0, *map(len, self.tags)], dtype=np.intp)

    def sum_by_sentence(self, values: Array) -> Array:
        """Return the (sentence, ...) sums of (word, ...) values over the words of each sentence."""
        sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0, dtype=np.float64)])
        totals: Array = np.diff(sums[self.ends], axis=0)
        return totals

    def prompted(self, prompt: str) -> TaggedSentences:
        """Return the sentences unchanged; DataError for a prompt, whose words would have no tags."""
        if prompt:
            raise DataError(f"expected no prompt before sentences whose words have tags, got {prompt[:40]!r}")
        return self


def entity_scores(outputs: Array, gold: TaggedSentences) -> dict[str, float]:
    """Return entity F1, precision and recall, and accuracy, of (word, tags) outputs, where the highest wins.

    An entity is found if its type, its first and its last word are right. F1 is 2 TP / (predicted +
    true), over the entities of all sentences.
    """
    predicted = _predicted(outputs, gold)
    correct, n_predicted, true = _entity_counts(predicted, gold).sum(axis=0)
    return {
        "entity f1": _ratio(2 * correct, n_predicted + true),
        "entity precision": _ratio(correct, n_predicted),
        "entity recall": _ratio(correct, true),
        "accuracy": float(np.mean(predicted == gold.word_tags)),
    }


def entity_influences(outputs: Array, gold: TaggedSentences) -> Influences:
    """Return the influences of sentences on the metrics of `entity_scores`, each a ratio of sums over sentences."""
    predicted = _predicted(outputs, gold)
    correct, n_predicted, true = _entity_counts(predicted, gold).T
    return {
        "entity f1": ratio_influences(2 * correct, n_predicted + true),
        "entity precision": ratio_influences(correct, n_predicted),
        "entity recall": ratio_influences(correct, true),
        "accuracy": _accuracy_influences(predicted, gold),
    }


def entity_floors(items: TaggedSentences) -> dict[str, Floor]:
    """Return the scores of predicting no entity in `TaggedSentences`: 0, and accuracy as the share of other words."""
    outside = items.labels.index("O") if "O" in items.labels else -1
    share = 100 * float(np.mean(items.word_tags == outside))
    floors = zero_floors("entity f1", "entity precision", "entity recall", by=NO_ENTITY)
    return {**floors, "accuracy": Floor(value=share, by=NO_ENTITY)}


def tag_scores(outputs: Array, gold: TaggedSentences) -> dict[str, float]:
    """Return accuracy and macro F1 of (word, tags) outputs, where the highest wins."""
    predicted = _predicted(outputs, gold)
    return {
        "accuracy": float(np.mean(predicted == gold.word_tags)),
        "macro f1": macro_f1(predicted, gold.word_tags.astype(float)),
    }


def tag_influences(outputs: Array, gold: TaggedSentences) -> Influences:
    """Return the influences of sentences on accuracy and macro F1, see `tag_scores`.

    The set of tags, over which macro F1 is the mean, counts as given.
    """
    predicted = _predicted(outputs, gold)
    by_tag = []
    for number in np.union1d(predicted, gold.word_tags):
        chosen, true = predicted == number, gold.word_tags == number
        sums = gold.sum_by_sentence(np.stack([2.0 * (chosen & true), chosen + true.astype(float)], axis=1))
        by_tag.append(ratio_influences(sums[:, 0], sums[:, 1]))
    return {"accuracy": _accuracy_influences(predicted, gold), "macro f1": np.mean(by_tag, axis=0)}


def sentence_errors(predicted: Numbers, gold: TaggedSentences, *, entities: bool) -> Array:
    """Return the error of predicted tags by sentence, 0 .. 100: the share of wrong words, or 1 - F1 of entities."""
    if entities:
        correct, ours, true = _entity_counts(predicted, gold).T
        f1: Array = np.where(ours + true > 0, 2 * correct / np.maximum(ours + true, 1), 1.0)
        return 100 * (1 - f1)
    wrong = gold.sum_by_sentence((predicted != gold.word_tags).astype(float))
    shares: Array = 100 * wrong / np.maximum(np.diff(gold.ends), 1)
    return shares


def _accuracy_influences(predicted: Numbers, gold: TaggedSentences) -> Array:
    right = (predicted == gold.word_tags).astype(float)
    return ratio_influences(gold.sum_by_sentence(right), np.diff(gold.ends).astype(float))


def _predicted(outputs: Array, gold: TaggedSentences) -> Numbers:
    if outputs.shape != (len(gold.word_tags), len(gold.labels)):
        expected = f"{len(gold.word_tags)} words and {len(gold.labels)} tags"
        raise DataError(f"expected outputs for {expected}, got {' x '.join(map(str, outputs.shape))}")
    predicted: Numbers = outputs.argmax(axis=1)
    return predicted


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else 0.0


def _entity_counts(predicted: Numbers, gold: TaggedSentences) -> Array:
    """Return (sentence, 3) counts of entities: found, predicted and true."""
    ours, true = (_entities(tags, gold) for tags in (predicted, gold.word_tags))
    return np.array([(len(a & b), len(a), len(b)) for a, b in zip(ours, true, strict=True)], dtype=np.float64)


def _entities(tags: Numbers, gold: TaggedSentences) -> list[set[tuple[str, int, int]]]:
    """Return the entities of every sentence: type, first and last word."""
    entities_of, outside = get_entities(), gold.labels.index("O") if "O" in gold.labels else -1
    some = gold.sum_by_sentence((tags != outside).astype(float)) > 0
    names = [gold.labels[tag] for tag in tags.tolist()]
    ends = gold.ends.tolist()
    return [
        set(entities_of(names[start:end])) if counted else set()
        for start, end, counted in zip(ends[:-1], ends[1:], some.tolist(), strict=True)
    ]


@functools.cache
def get_entities() -> Callable[[list[str]], list[tuple[Any, ...]]]:
    """Return the function that finds the entities of a sentence's tags; MissingPackageError without seqeval."""
    check_extra("tokens", needed_by="counting entities")
    from seqeval.metrics.sequence_labeling import get_entities as found

    function: Callable[[list[str]], list[tuple[Any, ...]]] = found
    return function


def tagged_view(task: Task, sentences: TaggedSentences) -> ItemView:
    """Return the view of sentences: the share of words with a wrong tag, or 1 - F1 of entities."""
    entities = task.kind == ENTITIES.name

    def read(outputs: Any, threshold: float | None) -> ReadOutputs:
        predicted = outputs.argmax(axis=1)
        mistakes = ["; ".join(wrong) or "all right" for wrong in _mistakes(sentences, predicted)]
        errors = sentence_errors(predicted, sentences, entities=entities)
        counts = counts_of(sentences.word_tags, predicted, len(sentences.labels))
        return ReadOutputs((100 - errors).tolist(), errors, mistakes, counts)

    rows = zip(sentences.words, sentences.tags, strict=True)
    return ItemView(
        form="classes",
        texts={"Sentence": sentences.sides[0]},
        gold=[" ".join(f"{w}/{sentences.labels[t]}" for w, t in zip(*row, strict=True) if t) or "–" for row in rows],
        output="words with another tag",
        error="100 minus entity F1 of the sentence" if entities else "percent of its words",
        limit=0.0,
        read=read,
        labels=sentences.labels,
        embedded=sentences.sides,
    )


def _mistakes(sentences: TaggedSentences, predicted: Any) -> Iterator[list[str]]:
    """Yield the words with a wrong tag, sentence by sentence."""
    left = iter(predicted.tolist())
    for words, tags in zip(sentences.words, sentences.tags, strict=True):
        given = [next(left) for _ in words]
        yield [f"{w}/{sentences.labels[p]}" for w, t, p in zip(words, tags, given, strict=True) if t != p]


BIO = re.compile(r"O|[BI]-[^\s,]+")
WORD_NAMES = ("tokens", "words")
ENTITY_COLUMNS = ("nertags", "ner", "entitytags", "tags", "labels")


def bio_tag(cell: str, place: str) -> str:
    """Return a BIO tag (the first of several joined by commas, if annotators differ); empty if it is missing."""
    tags = cell.strip().split(",")
    for tag in tags if cell.strip() else ():
        if BIO.fullmatch(tag) is None:
            raise TaskError(
                f"{place}: expected O, B-TYPE or I-TYPE as the tag of a word, got {tag[:40]!r}: fix it, name the "
                f"column of the tag with {option('columns')}, or choose {option('kind')}"
            )
    return tags[0]


def has_bio_tags(path: Path) -> bool:
    """Return whether a file, or one in a folder, holds words with BIO tags."""
    from layerprobe.kinds.tokens.loading import first_tags

    cells, may_be_table = first_tags(path, ENTITY_COLUMNS)
    begun = any(cell.startswith(("B-", "I-")) for cell in cells)
    return begun and not (may_be_table and not all(BIO.fullmatch(cell.split(",")[0]) for cell in cells))


def _load(source: TaskSource) -> Task:
    from layerprobe.kinds.tokens.loading import load_tagged

    return load_tagged(source)


def _learning() -> Learning:
    from layerprobe.kinds.tokens.loss import WordClasses, score_words

    return Learning(loss=WordClasses, untrained=score_words)


ENTITIES = Kind(
    name="entities",
    view=tagged_view,
    pairs=False,
    labelled=True,
    metrics=("entity f1", "entity precision", "entity recall", "accuracy"),
    score=entity_scores,
    influences=entity_influences,
    learning=_learning,
    zero_shot="own",
    own_probe=True,
    one_target=True,
    columns={"words": WORD_NAMES, "tags": ENTITY_COLUMNS},
    read_label=bio_tag,
    items=TaggedSentences,
    item="sentence",
    loader=_load,
    recognises=has_bio_tags,
    averages="probabilities",
    floors=entity_floors,
)


TAG_COLUMNS = ("postags", "pos", "upostags", "upos", "xpos", "tags", "labels")


def has_tags(path: Path) -> bool:
    """Return whether a file, or one in a folder, holds words with tags other than BIO."""
    from layerprobe.kinds.tokens.loading import first_tags
    from layerprobe.tasks.formats import CONLL_SUFFIXES

    cells, may_be_table = first_tags(path, TAG_COLUMNS)
    if not cells and path.suffix.lower() in CONLL_SUFFIXES:
        return path.is_file()  # its problem is reported when it is read
    return bool(cells) and not may_be_table and not any(cell.startswith(("B-", "I-")) for cell in cells)


TAGS = Kind(
    name="tags",
    view=tagged_view,
    pairs=False,
    labelled=True,
    metrics=("accuracy", "macro f1"),
    score=tag_scores,
    influences=tag_influences,
    learning=_learning,
    zero_shot="own",
    own_probe=True,
    one_target=True,
    columns={"words": WORD_NAMES, "tags": TAG_COLUMNS},
    items=TaggedSentences,
    item="sentence",
    loader=_load,
    recognises=has_tags,
    averages="probabilities",
    floors=lambda items: class_floors(items.word_tags),
)
