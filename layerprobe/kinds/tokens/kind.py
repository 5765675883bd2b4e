"""Entities and tags: a tag for every word of a sentence; the items and both kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError, option
from layerprobe.kinds.tokens.metrics import (
    WordTags,
    by_sentence,
    entity_floors,
    entity_influences,
    entity_scores,
    get_entities,
    tag_influences,
    tag_scores,
)
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.explored import ItemView, ReadOutputs, counts_of
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.loading import TaskSource
from layerprobe.tasks.values import Items, Task


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


def tagged_view(task: Task, sentences: TaggedSentences) -> ItemView:
    """Return how sentences are shown: how many of their words have a wrong tag, of entities 1 - F1."""
    gold, entities = sentences.gold, task.kind == ENTITIES.name

    def read(outputs: Any, threshold: float | None) -> ReadOutputs:
        predicted = outputs.argmax(axis=1)
        told = ("all right" if not wrong else "; ".join(wrong) for wrong in _mistakes(sentences, predicted))
        errors = by_sentence(predicted, gold, entities=entities)
        return ReadOutputs((100 - errors).tolist(), errors, [*told], counts_of(gold.tags, predicted, len(gold.labels)))

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


def load_entities(source: TaskSource) -> Task:
    """Load sentences with BIO tags."""
    from layerprobe.kinds.tokens.loading import load_tagged

    get_entities()
    return load_tagged(source, ENTITIES)


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
    loader="layerprobe.kinds.tokens.kind:load_entities",
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


def load_tags(source: TaskSource) -> Task:
    """Load sentences with a tag a word; TaskError as `load_tagged`."""
    from layerprobe.kinds.tokens.loading import load_tagged

    return load_tagged(source, TAGS)


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
    loader="layerprobe.kinds.tokens.kind:load_tags",
    recognises=has_tags,
    averages="probabilities",
    floors=lambda items: class_floors(items.gold.tags),
)
