"""Loading of sentences with a tag for every word, from CoNLL files or rows of lists."""

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError, option
from layerprobe.kinds.tokens.kind import ENTITIES, WORD_NAMES, TaggedSentences, get_entities
from layerprobe.names import counted
from layerprobe.tasks.cells import UnusableRowError, class_names, spelled_alike
from layerprobe.tasks.formats import (
    CONLL_SUFFIXES,
    Format,
    Grid,
    check_format,
    encoding_of,
    read_json_lines,
    read_lines,
)
from layerprobe.tasks.kind import KINDS, Kind
from layerprobe.tasks.loading import load_rows
from layerprobe.tasks.rows import Columns, Row, TaskSource, column_names, plain_name
from layerprobe.tasks.sources import data_files
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.values import Task

DOCUMENT = "-DOCSTART-"
UNIVERSAL = ".conllu"
"""Files of Universal Dependencies: ten columns, the word in the second, its part of speech in the fourth."""
SUFFIXES = (*CONLL_SUFFIXES, ".txt", ".tsv")
"""Endings of files with one word per line."""
INSPECTED = 2000
"""Number of sentences used to recognise a file of words with tags."""
OUTSIDE = "O"
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
    sentences = list(_sentences_in_lines(path, columns, format.encoding or encoding_of(path)))
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
        fields = line.split("\t") if (tabs if width else "\t" in line) else _split(line)
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


def _split(line: str) -> list[str]:
    return _BETWEEN.split(line.strip(" \t\r\n"))


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
                    [tag for _, tag, _ in sentence] for sentence in _sentences_in_lines(path, None, encoding_of(path))
                )
            for sentence in itertools.islice(read, INSPECTED):
                tags += sentence
    return tags, path.suffix.lower() in (".txt", ".tsv")


def _listed_tags(path: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tags of the sentences of a JSONL file, up to a line without lists of words and tags."""
    for _, record in read_json_lines(path, encoding_of(path)):
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
    before = (OUTSIDE, *tags)
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
    first = OUTSIDE if OUTSIDE in counts else max(sorted(counts), key=counts.__getitem__)
    labels = (first, *class_names({*counts, *unseen} - {first}))
    listed = ", ".join(f"{counts[label]:,} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return labels, f"read as {kind.name}; tags of the train split: {listed}{more}"
