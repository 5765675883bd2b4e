"""Entities and tags: a tag for every word of a sentence; how outputs are scored, the items and both kinds.

Entities are those of seqeval in its default mode: a run of B- and I- of one type, which an I- without a B- begins too.

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
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.values import Items, Task

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


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
    def gold(self) -> TaggedSentences:
        """The sentences themselves, whose words have tags."""
        return self

    @property
    def word_tags(self) -> Numbers:
        """(word,) numbers in `labels`, one sentence behind the other."""
        return np.array([tag for tags in self.tags for tag in tags], dtype=np.intp)

    @property
    def ends(self) -> Numbers:
        """(sentence + 1,): sentence i has the words `ends[i]` to `ends[i + 1]`."""
        return np.cumsum([0, *map(len, self.tags)], dtype=np.intp)

    def by_sentence(self, values: Array) -> Array:
        """Return the sums over the words of each sentence, (sentence, ...), of (word, ...) values."""
        sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0, dtype=np.float64)])
        by_sentence: Array = np.diff(sums[self.ends], axis=0)
        return by_sentence

    def prompted(self, prompt: str) -> TaggedSentences:
        """Return the sentences as they are; DataError if there is a prompt, whose words would have no tags."""
        if prompt:
            raise DataError(f"expected no prompt before sentences whose words have tags, got {prompt[:40]!r}")
        return self


def entity_scores(outputs: Array, gold: TaggedSentences) -> dict[str, float]:
    """Return how well (word, tags) outputs, of which the highest wins, find the entities of sentences.

    An entity is found where its type, its first and its last word are as they should be. F1 is 2 TP / (predicted +
    true), over the entities of all sentences together.
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
    """Return how well (word, tags) outputs, of which the highest wins, tell the tags of words."""
    predicted = _predicted(outputs, gold)
    return {
        "accuracy": float(np.mean(predicted == gold.word_tags)),
        "macro f1": macro_f1(predicted, gold.word_tags.astype(float)),
    }


def tag_influences(outputs: Array, gold: TaggedSentences) -> Influences:
    """Return the influences of sentences on accuracy and macro F1, see `tag_scores`.

    Which tags there are, of which macro F1 is the mean, counts as given.
    """
    predicted = _predicted(outputs, gold)
    by_tag = []
    for number in np.union1d(predicted, gold.word_tags):
        chosen, true = predicted == number, gold.word_tags == number
        sums = gold.by_sentence(np.stack([2.0 * (chosen & true), chosen + true.astype(float)], axis=1))
        by_tag.append(ratio_influences(sums[:, 0], sums[:, 1]))
    return {"accuracy": _accuracy_influences(predicted, gold), "macro f1": np.mean(by_tag, axis=0)}


def by_sentence(predicted: Numbers, gold: TaggedSentences, *, entities: bool) -> Array:
    """Return how wrong predicted tags of words are by sentence, 0 .. 100: the share of words, of entities 1 - F1."""
    if entities:
        correct, ours, true = _entity_counts(predicted, gold).T
        f1: Array = np.where(ours + true > 0, 2 * correct / np.maximum(ours + true, 1), 1.0)
        return 100 * (1 - f1)
    wrong = gold.by_sentence((predicted != gold.word_tags).astype(float))
    shares: Array = 100 * wrong / np.maximum(np.diff(gold.ends), 1)
    return shares


def _accuracy_influences(predicted: Numbers, gold: TaggedSentences) -> Array:
    right = (predicted == gold.word_tags).astype(float)
    return ratio_influences(gold.by_sentence(right), np.diff(gold.ends).astype(float))


def _predicted(outputs: Array, gold: TaggedSentences) -> Numbers:
    if outputs.shape != (len(gold.word_tags), len(gold.labels)):
        expected = f"{len(gold.word_tags)} words and {len(gold.labels)} tags"
        raise DataError(f"expected outputs for {expected}, got {' x '.join(map(str, outputs.shape))}")
    predicted: Numbers = outputs.argmax(axis=1)
    return predicted


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else 0.0


def _entity_counts(predicted: Numbers, gold: TaggedSentences) -> Array:
    """Return (sentence, 3): entities that are found, predicted and true."""
    ours, true = (_entities(tags, gold) for tags in (predicted, gold.word_tags))
    return np.array([(len(a & b), len(a), len(b)) for a, b in zip(ours, true, strict=True)], dtype=np.float64)


def _entities(tags: Numbers, gold: TaggedSentences) -> list[set[tuple[str, int, int]]]:
    """Return the entities of every sentence: type, first and last word."""
    entities_of, outside = get_entities(), gold.labels.index("O") if "O" in gold.labels else -1
    some = gold.by_sentence((tags != outside).astype(float)) > 0
    names = [gold.labels[tag] for tag in tags.tolist()]
    ends = gold.ends.tolist()
    return [
        set(entities_of(names[start:end])) if counted else set()
        for start, end, counted in zip(ends[:-1], ends[1:], some.tolist(), strict=True)
    ]


@functools.cache
def get_entities() -> Callable[[list[str]], list[tuple[Any, ...]]]:
    """Return what finds the entities of a sentence's tags; MissingPackageError without seqeval."""
    check_extra("tokens", needed_by="counting entities")
    from seqeval.metrics.sequence_labeling import get_entities as found

    function: Callable[[list[str]], list[tuple[Any, ...]]] = found
    return function


def tagged_view(task: Task, sentences: TaggedSentences) -> ItemView:
    """Return how sentences are shown: how many of their words have a wrong tag, of entities 1 - F1."""
    entities = task.kind == ENTITIES.name

    def read(outputs: Any, threshold: float | None) -> ReadOutputs:
        predicted = outputs.argmax(axis=1)
        mistakes = ["; ".join(wrong) or "all right" for wrong in _mistakes(sentences, predicted)]
        errors = by_sentence(predicted, sentences, entities=entities)
        counts = counts_of(sentences.word_tags, predicted, len(sentences.labels))
        return ReadOutputs((100 - errors).tolist(), errors, mistakes, counts)

    rows = zip(sentences.words, sentences.tags, strict=True)
    return ItemView(
        form="classes",
        texts={"Sentence": sentences.sides[0]},
        gold=[" ".join(f"{w}/{sentences.labels[t]}" for w, t in zip(*row, strict=True) if t) or "–" for row in rows],
        output="words with another tag",
        error="100 less entity F1 of the sentence" if entities else "percent of its words",
        limit=0.0,
        read=read,
        labels=sentences.labels,
        embedded=sentences.sides,
    )


def _mistakes(sentences: TaggedSentences, predicted: Any) -> Iterator[list[str]]:
    """Yield, sentence by sentence, the words that were given another tag than theirs."""
    left = iter(predicted.tolist())
    for words, tags in zip(sentences.words, sentences.tags, strict=True):
        given = [next(left) for _ in words]
        yield [f"{w}/{sentences.labels[p]}" for w, t, p in zip(words, tags, given, strict=True) if t != p]


BIO = re.compile(r"O|[BI]-[^\s,]+")
WORD_NAMES = ("tokens", "words")
ENTITY_COLUMNS = ("nertags", "ner", "entitytags", "tags", "labels")


def bio_tag(cell: str, place: str) -> str:
    """Return a BIO tag, of several with commas between, as annotators differ, the first; empty where it is missing."""
    tags = cell.strip().split(",")
    for tag in tags if cell.strip() else ():
        if BIO.fullmatch(tag) is None:
            raise TaskError(
                f"{place}: expected O, B-TYPE or I-TYPE as the tag of a word, got {tag[:40]!r}: mend it, name the "
                f"column of the tag with {option('columns')}, or choose {option('kind')}"
            )
    return tags[0]


def has_bio_tags(path: Path) -> bool:
    """Return whether a file, or one of a folder, holds words with BIO tags."""
    from layerprobe.kinds.tokens.loading import first_tags

    cells, may_be_table = first_tags(path, ENTITY_COLUMNS)
    begun = any(cell.startswith(("B-", "I-")) for cell in cells)
    return begun and not (may_be_table and not all(BIO.fullmatch(cell.split(",")[0]) for cell in cells))


ENTITIES = Kind(
    name="entities",
    view="layerprobe.kinds.tokens.kind:tagged_view",
    pairs=False,
    labelled=True,
    metrics=("entity f1", "entity precision", "entity recall", "accuracy"),
    score=entity_scores,
    influences=entity_influences,
    loss="layerprobe.kinds.tokens.loss:WordClasses",
    zero_shot="own",
    probe="layerprobe.scoring.probes:LOGISTIC",
    untrained="layerprobe.kinds.tokens.loss:score_words",
    one_target=True,
    columns={"words": WORD_NAMES, "tags": ENTITY_COLUMNS},
    read_label=bio_tag,
    items="layerprobe.kinds.tokens.kind:TaggedSentences",
    item="sentence",
    loader="layerprobe.kinds.tokens.loading:load_tagged",
    recognises=has_bio_tags,
    averages="probabilities",
    floors=entity_floors,
)


TAG_COLUMNS = ("postags", "pos", "upostags", "upos", "xpos", "tags", "labels")


def has_tags(path: Path) -> bool:
    """Return whether a file, or one of a folder, holds words with tags that are not of BIO."""
    from layerprobe.kinds.tokens.loading import first_tags
    from layerprobe.tasks.tables import CONLL_SUFFIXES

    cells, may_be_table = first_tags(path, TAG_COLUMNS)
    if not cells and path.suffix.lower() in CONLL_SUFFIXES:
        return path.is_file()  # what is wrong with it is said where it is read
    return bool(cells) and not may_be_table and not any(cell.startswith(("B-", "I-")) for cell in cells)


TAGS = Kind(
    name="tags",
    view="layerprobe.kinds.tokens.kind:tagged_view",
    pairs=False,
    labelled=True,
    metrics=("accuracy", "macro f1"),
    score=tag_scores,
    influences=tag_influences,
    loss="layerprobe.kinds.tokens.loss:WordClasses",
    zero_shot="own",
    probe="layerprobe.scoring.probes:LOGISTIC",
    untrained="layerprobe.kinds.tokens.loss:score_words",
    one_target=True,
    columns={"words": WORD_NAMES, "tags": TAG_COLUMNS},
    items="layerprobe.kinds.tokens.kind:TaggedSentences",
    item="sentence",
    loader="layerprobe.kinds.tokens.loading:load_tagged",
    recognises=has_tags,
    averages="probabilities",
    floors=lambda items: class_floors(items.word_tags),
)
