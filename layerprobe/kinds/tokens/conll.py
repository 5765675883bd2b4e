"""Files of words with tags -> sentences: columns as of CoNLL, and JSONL. Knows files, not what a tag means."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError
from layerprobe.tasks.columns import Columns, plain_name
from layerprobe.tasks.formats import Format
from layerprobe.tasks.memory import check_lengths
from layerprobe.tasks.tables import CONLL_SUFFIXES, check_format, columns_in, encoding_of, read_json_lines, read_lines

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
