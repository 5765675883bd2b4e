"""Entities and tags: a tag for every word of a sentence; scores, items and both kinds.

Entities are those of seqeval in its default mode: a run of B- and I- of one type, which can also begin with an I-.

Source: Tjong Kim Sang and De Meulder 2003 (CoNLL, F1 of whole entities); Nakayama 2018 (seqeval).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_extra
from layerprobe.errors import DataError, TaskError, option
from layerprobe.metrics.scores import Influences, macro_f1, ratio_influences
from layerprobe.names import counted
from layerprobe.stats.floors import NO_ENTITY, Floor, class_floors, zero_floors
from layerprobe.tasks.cells import UnusableRowError, class_names, spelled_alike
from layerprobe.tasks.explored import ItemView, ReadOutputs, counts_of
from layerprobe.tasks.formats import (
    CONLL_SUFFIXES,
    Format,
    Grid,
    check_format,
    find_encoding,
    read_json_lines,
    read_lines,
)
from layerprobe.tasks.kind import KINDS, Kind, learning_of
from layerprobe.tasks.loading import load_rows
from layerprobe.tasks.rows import Columns, Row, TaskSource, column_names, plain_name
from layerprobe.tasks.sources import data_files
from layerprobe.tasks.splitting import SPLITS
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
        return np.diff(sums[self.ends], axis=0)

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
    return {name: _ratio(above.sum(), below.sum()) for name, (above, below) in _entity_parts(outputs, gold).items()}


def entity_influences(outputs: Array, gold: TaggedSentences) -> Influences:
    """Return the influences of sentences on the metrics of `entity_scores`, each a ratio of sums over sentences."""
    return {name: ratio_influences(*parts) for name, parts in _entity_parts(outputs, gold).items()}


def _entity_parts(outputs: Array, gold: TaggedSentences) -> dict[str, tuple[Array, Array]]:
    """Return the (sentence,) numerators and denominators of the metrics of entities."""
    predicted = _predicted(outputs, gold)
    correct, n_predicted, true = _entity_counts(predicted, gold).T
    return {
        "entity f1": (2 * correct, n_predicted + true),
        "entity precision": (correct, n_predicted),
        "entity recall": (correct, true),
        "accuracy": _right_words(predicted, gold),
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
    return {"accuracy": ratio_influences(*_right_words(predicted, gold)), "macro f1": np.mean(by_tag, axis=0)}


def sentence_errors(predicted: Numbers, gold: TaggedSentences, *, entities: bool) -> Array:
    """Return the error of predicted tags by sentence, 0 .. 100: the share of wrong words, or 1 - F1 of entities."""
    if entities:
        correct, ours, true = _entity_counts(predicted, gold).T
        f1: Array = np.where(ours + true > 0, 2 * correct / np.maximum(ours + true, 1), 1.0)
        return 100 * (1 - f1)
    right, words = _right_words(predicted, gold)
    return 100 * (words - right) / np.maximum(words, 1)


def _right_words(predicted: Numbers, gold: TaggedSentences) -> tuple[Array, Array]:
    """Return the (sentence,) numbers of words with the right tag, and of all words."""
    right = gold.sum_by_sentence((predicted == gold.word_tags).astype(float))
    return right, np.diff(gold.ends).astype(float)


def _predicted(outputs: Array, gold: TaggedSentences) -> Numbers:
    if outputs.shape != (len(gold.word_tags), len(gold.labels)):
        expected = f"{len(gold.word_tags)} words and {len(gold.labels)} tags"
        raise DataError(f"expected outputs for {expected}, got {' x '.join(map(str, outputs.shape))}")
    return outputs.argmax(axis=1)


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

    return found


def tagged_view(task: Task, sentences: TaggedSentences) -> ItemView:
    """Return the view of sentences: the share of words with a wrong tag, or 1 - F1 of entities."""
    entities = task.kind == ENTITIES.name

    def read(outputs: Any, threshold: float | None) -> ReadOutputs:
        predicted = outputs.argmax(axis=1)
        mistakes = []
        for words, tags, numbers in zip(
            sentences.words, sentences.tags, np.split(predicted, sentences.ends[1:-1]), strict=True
        ):
            triples = zip(words, tags, numbers, strict=True)
            wrong = (f"{word}/{sentences.labels[number]}" for word, tag, number in triples if tag != number)
            mistakes.append("; ".join(wrong) or "all right")
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


# ---- files -> sentences --------------------------------------------------------------------------------


WORD_NAMES = ("tokens", "words")
ENTITY_COLUMNS = ("nertags", "ner", "entitytags", "tags", "labels")
DOCUMENT = "-DOCSTART-"
UNIVERSAL = ".conllu"
"""Files of Universal Dependencies: ten columns, the word in the second, its part of speech in the fourth."""
SUFFIXES = (*CONLL_SUFFIXES, ".txt", ".tsv")
"""Endings of files with one word per line."""
INSPECTED = 2000
"""Number of sentences used to recognise a file of words with tags."""
_BETWEEN = re.compile("[ \t]+")
"""Separator of columns; a no-break space is within a word."""

Tagged = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of a sentence and their tags."""


def load_tagged(source: TaskSource) -> Task:
    """Load sentences with a tag for every word, in three splits.

    Files have one word and its tag per line, as in CoNLL, by default with the tag in the last column; or one row per
    sentence, with a list of words and a list of tags. They are found and split like tables.
    """
    kind = KINDS[str(source.settings.kind)]
    if kind is ENTITIES:
        get_entities()  # needs a package
    several: list[str] = []

    def splits_of(
        parts: Mapping[str, Sequence[Tagged]], notes: list[str], warnings: list[str]
    ) -> dict[str, TaggedSentences]:
        if several:
            warnings.append(
                f"{counted(len(several), 'word')} with several tags (first: {several[0]}): the first one counts"
            )
        return _splits(kind, parts, notes, warnings)

    return load_rows(
        source,
        kind,
        functools.partial(_sentence, kind=kind, several=several),
        splits_of,
        key=lambda sentence: (" ".join(sentence[0]), ""),
        together="duplicates",
        readers=dict.fromkeys(SUFFIXES, functools.partial(_read, kind=kind, columns=source.settings.columns)),
    )


def _sentence(row: Row, kind: Kind, several: list[str]) -> Tagged:
    """Return a sentence with its tags, and add words with more than one tag to `several`."""
    words, cells = row.values
    if not (isinstance(words, list) and isinstance(cells, list) and len(words) == len(cells)):
        raise TaskError(f"{row.place}: expected a list of words and a list of as many tags")
    placed = [cell if isinstance(cell, tuple) else (_text(cell), row.place) for cell in cells]
    tags = [kind.read_label(cell, place) for cell, place in placed]
    several += [
        f"{cell[:40]} at {place}"
        for (cell, place), tag in zip(placed, tags, strict=True)
        if "," in cell and tag != cell.strip()
    ]
    cleaned = [" ".join(row.log.clean(_text(word)).split()) for word in words]
    missing = [p for word, tag, (_, p) in zip(cleaned, tags, placed, strict=True) if not word or not tag]
    if missing or not cleaned:
        raise UnusableRowError("with an empty word or tag", name=(missing or [row.place])[0].rpartition(", ")[2])
    return tuple(cleaned), tuple(tags)


def _text(cell: Any) -> str:
    """Return a word or a tag; empty if it is missing: None, NaN or their equivalents in pandas."""
    return str(cell) if isinstance(cell, str | Number) and cell == cell else ""


# ---- one word per line -----------------------------------------------------------------------------------


def _read(path: Path, format: Format, kind: Kind, columns: Columns | None) -> Grid:
    """Return the sentences of a file with one word per line as rows of two lists; each tag has its place."""
    check_format(path, format, ("encoding",))
    sentences = list(_sentences_in_lines(path, columns, format.encoding or find_encoding(path)))
    rows = tuple(
        ([word for word, *_ in sentence], [(tag, f"{path}, line {number}") for _, tag, number in sentence])
        for sentence in sentences
    )
    numbers = tuple(sentence[0][2] for sentence in sentences)
    usual = [names[0] for names in kind.columns.values()]
    header = tuple(usual if columns is None else column_names(columns))
    return Grid(name=str(path), header=header, rows=rows, numbers=numbers, nested={0: 0, 1: 0})


def _sentences_in_lines(path: Path, columns: Columns | None, encoding: str) -> Iterator[list[tuple[str, str, int]]]:
    """Yield the sentences of a file: words, tags and lines. Lines of -DOCSTART- and comments are ignored."""
    universal = path.suffix.lower() == UNIVERSAL
    places = _numbers(path, columns) if columns is not None else ((1, 3) if universal else None)
    width, first_line, tabs = 0, 0, False
    rows: list[tuple[str, str, int]] = []
    for number, line in read_lines(path, encoding):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith(DOCUMENT):
            if rows:
                yield rows
            rows = []
            continue
        is_tabbed = tabs if width else "\t" in line
        fields = line.split("\t") if is_tabbed else _BETWEEN.split(line.strip(" \t\r\n"))
        # a word can begin with #, as in tweets
        if not rows and (line.startswith("# ") or (line.startswith("#") and width and len(fields) != width)):
            continue
        if not width:
            width, first_line, tabs = len(fields), number, "\t" in line
            word, tag = places or (0, width - 1)
            if width < 2 or max(word, tag) >= width:
                raise TaskError(
                    f"{path}, line {number}: expected a word and its tag in columns {word} and {max(tag, 1)}, got "
                    f"{width} column{'s' * (width > 1)}: {line[:40]!r}"
                )
        if len(fields) != width:
            raise TaskError(
                f"{path}, line {number}: expected {width} columns as in line {first_line}, got {len(fields)}: "
                f"{line[:40]!r}"
            )
        if universal and not fields[0].isdigit():
            continue  # a contraction of several words, or an empty node
        rows.append((fields[word], fields[tag], number))
    if rows:
        yield rows


def _numbers(path: Path, columns: Columns) -> tuple[int, int]:
    items = column_names(columns)
    if len(items) != 2 or not all(item.isdecimal() for item in items) or items[0] == items[1]:
        raise TaskError(f"expected the columns of word and tag of {path} as two numbers from 0, got {','.join(items)}")
    return int(items[0]), int(items[1])


def first_tags(path: Path, names: Sequence[str]) -> tuple[list[str], bool]:
    """Return the tags of the first sentences of a file, or of a folder's first one; empty without any.

    Also return whether the file could be a table instead, so that this reading may be wrong.

    Args:
        path: A file or a folder.
        names: Usual names of a column of tags.
    """
    tags: list[str] = []
    with contextlib.suppress(DataError, OSError):
        if path.is_dir():
            path = next(iter(data_files(path, (*SUFFIXES, ".jsonl"))), path)
        if path.is_file() and path.suffix.lower() in (*SUFFIXES, ".jsonl"):
            if path.suffix.lower() == ".jsonl":
                read = _listed_tags(path, names)
            else:
                read = (
                    [tag for _, tag, _ in sentence] for sentence in _sentences_in_lines(path, None, find_encoding(path))
                )
            for sentence in itertools.islice(read, INSPECTED):
                tags += sentence
    return tags, path.suffix.lower() in (".txt", ".tsv")


def _listed_tags(path: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tags of the sentences of a JSONL file, up to a line without lists of words and tags."""
    for _, record in read_json_lines(path, find_encoding(path)):
        plain = {plain_name(name): cells for name, cells in record.items() if isinstance(cells, list)}
        tags = next((plain[name] for name in names if name in plain), None)
        if tags is None or not set(WORD_NAMES) & plain.keys():
            return
        yield list(map(_text, tags))


# ---- splits ----------------------------------------------------------------------------------------------


def _splits(
    kind: Kind, parts: Mapping[str, Sequence[Tagged]], notes: list[str], warnings: list[str]
) -> dict[str, TaggedSentences]:
    for role in SPLITS:
        if len(tags := {tag for _, tags in parts[role] for tag in tags}) == 1:
            raise TaskError(f"all words of the {role} split are {tags.pop()[:40]}: expected at least two tags")
    if alone := sum(_without_begin(tags) for part in parts.values() for _, tags in part):
        warnings.append(f"{counted(alone, 'run')} of I- tags begin without B-: entities, as in seqeval")
    labels, remarks = _labels(kind, parts, warnings)
    notes.append(remarks)
    number = {label: i for i, label in enumerate(labels)}
    return {
        role: TaggedSentences(
            words=tuple(words for words, _ in part),
            tags=tuple(tuple(number[tag] for tag in tags) for _, tags in part),
            labels=labels,
        )
        for role, part in parts.items()
    }


def _without_begin(tags: Sequence[str]) -> int:
    """Return the number of runs of I- tags that do not follow a tag of the same type."""
    before = ("O", *tags)
    return sum(tag.startswith("I-") and last[1:] != tag[1:] for last, tag in zip(before, tags, strict=False))


def _labels(kind: Kind, parts: Mapping[str, Sequence[Tagged]], warnings: list[str]) -> tuple[tuple[str, ...], str]:
    """Return all tags, O or the most frequent one first, and a note with their counts in the train split."""
    counts = Counter(tag for _, tags in parts["train"] for tag in tags)
    words = sum(counts.values())
    if len(counts) > max(2, words // 2):
        raise TaskError(
            f"the train split has {len(counts)} different tags for {words} words (such as "
            f"{', '.join(repr(tag[:40]) for tag in sorted(counts)[:5])}): name the column of the tag with "
            f"{option('columns')}"
        )
    unseen = Counter(tag for role in SPLITS[1:] for _, tags in parts[role] for tag in tags if tag not in counts)
    if unseen:
        warnings.append(
            f"{counted(sum(unseen.values()), 'word')} of the other splits have tags that the train split lacks: "
            f"{', '.join(sorted(unseen)[:5])}"
        )
    warnings += spelled_alike(Counter(tag for part in parts.values() for _, tags in part for tag in tags), "tags")
    first = "O" if "O" in counts else max(sorted(counts), key=counts.__getitem__)
    labels = (first, *class_names({*counts, *unseen} - {first}))
    listed = ", ".join(f"{counts[label]:,} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return labels, f"read as {kind.name}; tags of the train split: {listed}{more}"


# ---- both kinds ----------------------------------------------------------------------------------------


BIO = re.compile(r"O|[BI]-[^\s,]+")


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
    cells, may_be_table = first_tags(path, ENTITY_COLUMNS)
    begun = any(cell.startswith(("B-", "I-")) for cell in cells)
    return begun and not (may_be_table and not all(BIO.fullmatch(cell.split(",")[0]) for cell in cells))


TAG_COLUMNS = ("postags", "pos", "upostags", "upos", "xpos", "tags", "labels")


def has_tags(path: Path) -> bool:
    """Return whether a file, or one in a folder, holds words with tags other than BIO."""
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
    learning=learning_of("tags"),
    zero_shot="own",
    own_probe=True,
    one_target=True,
    columns={"words": WORD_NAMES, "tags": TAG_COLUMNS},
    items=TaggedSentences,
    item="sentence",
    loader=load_tagged,
    recognises=has_tags,
    averages="probabilities",
    floors=lambda items: class_floors(items.word_tags),
)
ENTITIES = replace(
    TAGS,
    name="entities",
    metrics=("entity f1", "entity precision", "entity recall", "accuracy"),
    score=entity_scores,
    influences=entity_influences,
    columns={"words": WORD_NAMES, "tags": ENTITY_COLUMNS},
    read_label=bio_tag,
    recognises=has_bio_tags,
    floors=entity_floors,
)
