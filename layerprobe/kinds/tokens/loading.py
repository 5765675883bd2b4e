"""Sentences with a tag for every word: files in columns as of CoNLL, JSONL, the Hub and memory -> a task."""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.tokens.kind import TaggedSentences
from layerprobe.names import counted
from layerprobe.tasks.columns import Columns, plain_name
from layerprobe.tasks.discovery import data_files, split_files, split_role
from layerprobe.tasks.formats import Format
from layerprobe.tasks.hub import hub_splits, is_on_hub
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.labels import class_names
from layerprobe.tasks.loading import TaskSource, checked_splits
from layerprobe.tasks.memory import check_lengths, columns_of, is_data_set, splits_of
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.tables import CONLL_SUFFIXES, check_format, columns_in, encoding_of, read_json_lines, read_lines
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task

DOCUMENT = "-DOCSTART-"
UNIVERSAL = ".conllu"
"""Files of Universal Dependencies: ten columns, the word in the second, its part of speech in the fourth."""
WORD_NAMES = ("tokens", "words")
SUFFIXES = (*CONLL_SUFFIXES, ".txt", ".tsv", ".jsonl")
LOOKED_AT = 2000
"""Sentences by which a file is recognised as one of words with tags."""
_BETWEEN = re.compile("[ \t]+")
"""Columns without tabs alone; a no-break space is within a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence as the source has it."""

    words: tuple[str, ...]
    cells: tuple[str, ...]
    """The tag of every word, unread."""
    places: tuple[str, ...]
    """File and line of every word."""


def read_sentences(
    path: Path, columns: Columns | None, format: Format, target_columns: Sequence[str]
) -> list[Sentence]:
    """Return the sentences of a file; the columns are word and tag, by name in JSONL and by number elsewhere."""
    if not path.is_file():
        raise TaskError(f"{path} is no file: expected sentences, one of {', '.join(SUFFIXES)}")
    if path.suffix.lower() not in SUFFIXES:
        expected = f"expected a word and its tag a line, in one of {', '.join(SUFFIXES)}"
        raise TaskError(f"{path} has the extension {path.suffix!r}: {expected}, got a file{columns_in(path)}")
    check_format(path, format, ("encoding",))
    sentences = list(_sentences(path, columns, format.encoding or encoding_of(path), target_columns))
    if not sentences:
        raise TaskError(f"{path} is empty: expected sentences")
    return sentences


def first_cells(path: Path, target_columns: Sequence[str]) -> list[str]:
    """Return the tags of a file's first sentences, up to a line that is not as the others; none of other files."""
    cells: list[str] = []
    with contextlib.suppress(DataError, OSError):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            for sentence in itertools.islice(_sentences(path, None, encoding_of(path), target_columns), LOOKED_AT):
                cells += sentence.cells
    return cells


def sentences_of(
    name: str, columns: dict[str, Sequence[Any]], chosen: Columns | None, tags: Sequence[str]
) -> list[Sentence]:
    """Return the sentences of columns of lists: one of words, and one of as many tags."""
    word, tag = _names(name, list(columns), chosen, tags)
    check_lengths({word: columns[word], tag: columns[tag]}, name)
    rows = enumerate(zip(columns[word], columns[tag], strict=True), 1)
    return [_listed(*cells, f"{name}, row {number}") for number, cells in rows]


def _sentences(path: Path, columns: Columns | None, encoding: str, tags: Sequence[str]) -> Iterator[Sentence]:
    if path.suffix.lower() == ".jsonl":
        return _of_jsonl(path, columns, encoding, tags)
    return _of_lines(path, columns, encoding)


# ---- columns ---------------------------------------------------------------------------------------------


def _of_lines(path: Path, columns: Columns | None, encoding: str) -> Iterator[Sentence]:
    """Yield the sentences of a file with a word a line. Lines of -DOCSTART- and comments are left out."""
    universal = path.suffix.lower() == UNIVERSAL
    places = _numbers(path, columns) if columns is not None else ((1, 3) if universal else None)
    width, first_line, tabs, tags = 0, 0, False, set[str]()
    rows: list[tuple[str, str, str]] = []
    for number, line in read_lines(path, encoding):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith(DOCUMENT):
            if rows:
                yield _sentence(rows)
            rows = []
            continue
        fields = line.split("\t") if (tabs if width else "\t" in line) else _split(line)
        # a word can begin with #, as in tweets, or be one, and then has a tag that others have
        if not rows and line.startswith("#") and (len(fields) != width if width else line.startswith("# ")):
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
        if not rows and line.startswith("# ") and not tabs:
            tags = tags or _tags_of_words(path, tag, encoding)
            if fields[tag] not in tags:
                continue
        if universal and not fields[0].isdigit():
            continue  # a word that several are written as, or one that is not written
        rows.append((fields[word], fields[tag], f"{path}, line {number}"))
    if rows:
        yield _sentence(rows)


def _split(line: str) -> list[str]:
    return _BETWEEN.split(line.strip(" \t\r\n"))


def _tags_of_words(path: Path, tag: int, encoding: str) -> set[str]:
    """Return the tags of the lines of a file that are surely no comments."""
    lines = (_split(line) for _, line in read_lines(path, encoding) if not line.startswith("#"))
    return {fields[tag] for fields in lines if len(fields) > tag}


def _sentence(rows: Sequence[tuple[str, str, str]]) -> Sentence:
    words, cells, places = zip(*rows, strict=True)
    return Sentence(words=words, cells=cells, places=places)


def _numbers(path: Path, columns: Columns) -> tuple[int, int]:
    items = [str(item).strip() for item in (columns.split(",") if isinstance(columns, str) else columns)]
    if len(items) != 2 or not all(item.isdecimal() for item in items) or items[0] == items[1]:
        raise TaskError(f"expected the columns of word and tag of {path} as two numbers from 0, got {','.join(items)}")
    return int(items[0]), int(items[1])


# ---- lists -----------------------------------------------------------------------------------------------


def _of_jsonl(path: Path, columns: Columns | None, encoding: str, tags: Sequence[str]) -> Iterator[Sentence]:
    for number, record in read_json_lines(path, encoding):
        place = f"{path}, line {number}"
        word, tag = _names(place, list(record), columns, tags)
        yield _listed(record[word], record[tag], place)


def _listed(words: Any, cells: Any, place: str) -> Sentence:
    lists = [values.tolist() if hasattr(values, "tolist") else values for values in (words, cells)]
    if not all(isinstance(cell, (list, tuple)) for cell in lists) or len(lists[0]) != len(lists[1]):
        raise TaskError(f"{place}: expected a list of words and one of as many tags")
    texts, tags = (tuple(map(_text, cell)) for cell in lists)
    return Sentence(words=texts, cells=tags, places=(place,) * len(tags))


def _text(cell: Any) -> str:
    """Return a word or a tag; nothing where it is missing: None, NaN or what pandas has in their place."""
    return str(cell) if isinstance(cell, str | Number) and cell == cell else ""


def _names(place: str, names: Sequence[str], columns: Columns | None, tags: Sequence[str]) -> tuple[str, str]:
    if columns is not None:
        items = [str(item).strip() for item in (columns.split(",") if isinstance(columns, str) else columns)]
        if len(items) != 2 or not set(items) <= set(names):
            raise TaskError(f"{place}: expected two columns of {', '.join(names)}, of words and tags, got {items}")
        return items[0], items[1]
    plain = {plain_name(name): name for name in reversed(names)}
    word, tag = (next((plain[name] for name in usual if name in plain), None) for usual in (WORD_NAMES, tags))
    if word is None or tag is None:
        raise TaskError(
            f"{place}: expected lists of words and tags, such as {WORD_NAMES[0]} and {tags[0]}, got "
            f"{', '.join(names)[:80]}: name them with --columns"
        )
    return word, tag


OUTSIDE = "O"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A sentence with its tags as they are read."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def load_tagged(source: TaskSource, kind: Kind) -> Task:
    """Load sentences with a tag for every word, in three splits.

    Files are columns as of CoNLL or JSONL, found and split as tables are; the tag is in the last column where nobody
    says otherwise.
    """
    read, notes = _sources(source, kind)
    warnings: list[str] = []
    splits = {role: _tagged(source, role, sentences, kind, warnings) for role, sentences in read.items()}
    keys = [(" ".join(sentence.words), "") for sentence in splits["train"]]
    splits, drawn = checked_splits(source, splits, keys, unit="sentence", together="duplicates")
    for role in SPLITS:
        if len(tags := {tag for sentence in splits[role] for tag in sentence.tags}) == 1:
            raise TaskError(f"all words of the {role} split are {tags.pop()[:40]}: expected at least two tags")
    labels, remarks = _labels(kind, splits, warnings)
    number = {label: i for i, label in enumerate(labels)}
    train, validation, test = (
        TaggedSentences(
            words=tuple(sentence.words for sentence in splits[role]),
            tags=tuple(tuple(number[tag] for tag in sentence.tags) for sentence in splits[role]),
            labels=labels,
        )
        for role in SPLITS
    )
    return Task(
        name=source.name,
        kind=kind.name,
        train=train,
        validation=validation,
        test=test,
        labels=labels,
        notes=(*notes, *drawn, remarks),
        warnings=tuple(warnings),
    )


def cells_of(path: Path, target_columns: Sequence[str]) -> tuple[list[str], bool]:
    """Return the tags of the first sentences of a file, or of a folder's first one; none where there are none.

    Also whether the file could be a table as well, of which such a reading may be a wrong one.
    """
    if path.is_dir():
        try:
            files = data_files(path, SUFFIXES)
        except TaskError:
            return [], False
        path = next(iter(files), path)
    return first_cells(path, target_columns), path.suffix.lower() in (".txt", ".tsv")


# ---- sources ---------------------------------------------------------------------------------------------


def _sources(source: TaskSource, kind: Kind) -> tuple[dict[str, list[Sentence]], list[str]]:
    """Return sentences by split, and where they come from; what was given goes before files that were found."""
    others = {role: _read(data, f"{source.name} {role}", source, kind) for role, data in source.other_splits.items()}
    if not isinstance(source.source, (str, Path)):
        columns = isinstance(source.source, Mapping) and not any(map(split_role, map(str, source.source)))
        parts = {"train": (source.name, source.source)} if columns else splits_of(source.source, source.name)
        return {role: _read(part, name, source, kind) for role, (name, part) in parts.items()} | others, []
    if is_on_hub(source.source):
        hub = hub_splits(str(source.source))
        return {role: _read(split, f"{source.name} {role}", source, kind) for role, split in hub.items()} | others, []
    files, notes = split_files(from_home(source.source), others, suffixes=SUFFIXES)
    return {role: _read(file, "", source, kind) for role, file in files.items()} | others, notes


def _read(data: Any, name: str, source: TaskSource, kind: Kind) -> list[Sentence]:
    if isinstance(data, (str, Path)):
        return read_sentences(from_home(data), source.columns, source.format, kind.target_columns)
    check_format(name, source.format, ())
    columns = _columns_of_data_set(data) if is_data_set(data) else columns_of(data, name)
    if not columns:
        raise TaskError(f"{name}: expected columns of words and of tags")
    sentences = sentences_of(name, columns, source.columns, kind.target_columns)
    if not sentences:
        raise TaskError(f"{name} is empty: expected sentences")
    return sentences


def _columns_of_data_set(split: Any) -> dict[str, Sequence[Any]]:
    """Return the columns of a data set, numbers of classes by their names."""
    columns: dict[str, Sequence[Any]] = split.to_dict()
    for column, feature in split.features.items():
        if names := getattr(getattr(feature, "feature", None), "names", None):
            # -1 and less, as -100, say that there is none
            columns[column] = [
                None if cells is None else [None if cell is None or cell < 0 else names[cell] for cell in cells]
                for cells in columns[column]
            ]
    return columns


# ---- splits ----------------------------------------------------------------------------------------------


def _tagged(
    source: TaskSource, role: str, sentences: Sequence[Sentence], kind: Kind, warnings: list[str]
) -> list[Tagged]:
    """Return sentences with their tags read, and add to the warnings what was changed or left out."""
    cleaner, tagged, several, empty = Cleaner(), list[Tagged](), list[str](), list[str]()
    for sentence in sentences:
        tags = [kind.read_label(cell, place) for cell, place in zip(sentence.cells, sentence.places, strict=True)]
        several += [
            f"{cell[:40]} at {place}"
            for cell, tag, place in zip(sentence.cells, tags, sentence.places, strict=True)
            if "," in cell and tag != cell.strip()
        ]
        words = [" ".join(cleaner.clean(word).split()) for word in sentence.words]
        missing = [p for word, tag, p in zip(words, tags, sentence.places, strict=True) if not word or not tag]
        if missing or not words:
            empty.append(missing[0] if missing else f"{source.name}, a sentence without words")
            continue
        tagged.append(Tagged(words=tuple(words), tags=tuple(tags)))
    if empty and not source.skip_empty:
        raise TaskError(
            f"{counted(len(empty), 'sentence')} of the {role} split with an empty word or tag (first: {empty[0]}): "
            "mend or drop them, or go on without them with --skip-empty (skip_empty=True)"
        )
    if empty:
        warnings.append(f"left out {counted(len(empty), 'sentence')} of the {role} split with an empty word or tag")
    if several:
        warnings.append(
            f"{counted(len(several), 'word')} of the {role} split have several tags (first: {several[0]}): the first "
            "of them counts"
        )
    if alone := sum(map(_without_begin, tagged)):
        warnings.append(
            f"{counted(alone, 'run')} of I- tags in the {role} split begin without B-: entities, as in seqeval"
        )
    warnings += cleaner.warnings(f"the {role} split", "word")
    return tagged


def _without_begin(sentence: Tagged) -> int:
    """Return how many runs of I- of one type have neither B- nor I- of it before them."""
    before = (OUTSIDE, *sentence.tags)
    return sum(tag.startswith("I-") and last[1:] != tag[1:] for last, tag in zip(before, sentence.tags, strict=False))


def _labels(kind: Kind, splits: Mapping[str, list[Tagged]], warnings: list[str]) -> tuple[tuple[str, ...], str]:
    """Return all tags, O or the most frequent one first, and a note of how often each is in the train split."""
    counts = Counter(tag for sentence in splits["train"] for tag in sentence.tags)
    words = sum(counts.values())
    if len(counts) > max(2, words // 2):
        raise TaskError(
            f"the train split has {len(counts)} different tags for {words} words (such as "
            f"{', '.join(repr(tag[:40]) for tag in sorted(counts)[:5])}): name the column of the tag with --columns"
        )
    unseen = Counter(tag for role in SPLITS[1:] for s in splits[role] for tag in s.tags if tag not in counts)
    if unseen:
        warnings.append(
            f"{counted(sum(unseen.values()), 'word')} of the other splits have tags that the train split lacks: "
            f"{', '.join(sorted(unseen)[:5])}"
        )
    first = OUTSIDE if OUTSIDE in counts else max(sorted(counts), key=counts.__getitem__)
    labels = (first, *class_names({*counts, *unseen} - {first}))
    listed = ", ".join(f"{counts[label]:,} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return labels, f"read as {kind.name}; tags of the train split: {listed}{more}"
