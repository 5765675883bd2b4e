"""Documents with summaries: sentences of which some are to be chosen. Knows JSONL files and ROUGE, no models."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.summaries.items import SummaryItems
from layerprobe.kinds.summaries.metrics import greedy_oracle, readable
from layerprobe.names import counted
from layerprobe.tasks.discovery import folder_splits, split_files
from layerprobe.tasks.formats import Format
from layerprobe.tasks.memory import splits_of
from layerprobe.tasks.splitting import SPLITS, with_all_splits
from layerprobe.tasks.tables import check_format, columns_in, encoding_of, read_json_lines
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task

if TYPE_CHECKING:
    from layerprobe.tasks.columns import Columns
    from layerprobe.tasks.loading import TaskSource

KIND = "summarization"
COLUMNS = ("document", "summary")
MIN_DOCUMENTS = 4
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


# ---- files ----------------------------------------------------------------------------------------------


def is_summaries(path: Path) -> bool:
    """Return whether a JSONL file, or the train file of a folder, has a document and a summary in its first line."""
    try:
        file = folder_splits(path)["train"] if path.is_dir() else path
        if file.suffix.lower() != ".jsonl":
            return False
        with file.open(encoding="utf-8-sig") as opened:
            first = json.loads(opened.readline())
    except (OSError, ValueError, TaskError, RecursionError):
        return False
    return isinstance(first, dict) and set(COLUMNS) <= set(first)


def load_summaries(source: TaskSource) -> Task:
    """Load documents with summaries from JSONL: a file, a folder of train, validation and test, or a list of mappings.

    Each line has a `document`, a text or a list of its sentences, and a `summary`, likewise; the columns can have other
    names. Texts become sentences by `sentences_of`. Of each document as many sentences are chosen as training summaries
    have in the median.
    """
    names = COLUMNS if source.columns is None else _names(source.columns)
    rows: dict[str, list[Document]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for role, data in _data(source, notes).items():
        rows[role], remarks = _documents(data, names, f"{source.name} {role}", source)
        warnings += remarks
    one_piece = len(rows) == 1
    rows, drawn = with_all_splits(
        rows,
        [("\n".join(document), "") for document, _ in rows["train"]],
        source.split_ratios,
        seed=source.seed,
        unit="document",
    )
    notes += drawn
    for role in SPLITS:
        if len(rows[role]) < MIN_DOCUMENTS:
            raise TaskError(
                f"expected at least {MIN_DOCUMENTS} documents in the {role} split, got {len(rows[role])}: give more"
            )
    keep = max(1, round(statistics.median(len(summary) for _, summary in rows["train"])))
    short = sum(len(document) <= keep for part in rows.values() for document, _ in part)
    if short:
        warnings.append(
            f"{counted(short, 'document')} of no more than {counted(keep, 'sentence')} leave nothing to choose"
        )
    train, validation, test = (_items(rows[role], keep) for role in SPLITS)
    notes.append(f"chooses {counted(keep, 'sentence')} of each document, as the median training summary has")
    return Task(
        name=source.name,
        kind=KIND,
        train=train,
        validation=validation,
        test=test,
        one_piece=one_piece,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _names(columns: Columns) -> tuple[str, str]:
    listed = [part.strip() for part in columns.split(",")] if isinstance(columns, str) else list(map(str, columns))
    if len(listed) != 2:
        raise TaskError(f"expected two columns, such as document,summary, got {','.join(listed)}")
    return listed[0], listed[1]


def _data(source: TaskSource, notes: list[str]) -> Mapping[str, object]:
    """Return files, or lists of mappings, by split."""
    if not isinstance(source.source, (str, Path)):
        return {role: part for role, (_, part) in splits_of(source.source, source.name).items()} | source.other_splits
    files, remarks = split_files(from_home(source.source), source.other_splits)
    notes += remarks
    return {**files, **source.other_splits}


def _documents(data: object, names: tuple[str, str], what: str, source: TaskSource) -> tuple[list[Document], list[str]]:
    """Return the documents of a file or a list that have both texts, and warnings."""
    cleaner, documents, empty = Cleaner(), list[Document](), list[str]()
    for place, row in _rows(data, what, source.format):
        texts = []
        for name in names:
            if name not in row:
                has = ", ".join(map(str, row)) or "none"
                raise TaskError(
                    f"{place}: expected the columns {' and '.join(names)}, got {has}: name them in --columns"
                )
            texts.append(_sentences(row[name], cleaner, f"{place}, {name}"))
        document, summary = texts
        if not document or not summary:
            empty.append(place)
        elif not readable(" ".join(summary)):
            raise TaskError(f"{place}: expected a summary with letters from a to z or digits, which is all ROUGE reads")
        else:
            documents.append((document, summary))
    if empty and not source.skip_empty:
        raise TaskError(
            f"{counted(len(empty), 'document')} without sentences or without a summary (first: {empty[0]}): go on "
            "without them with --skip-empty (skip_empty=True)"
        )
    warnings = [f"{what}: left out {counted(len(empty), 'document')} without sentences or summary"] if empty else []
    return documents, [*warnings, *cleaner.warnings(what, "text")]


def _rows(data: object, what: str, format: Format) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if isinstance(data, (str, Path)):
        path = from_home(data)
        if path.suffix.lower() != ".jsonl":
            expected = f"expected a JSONL file with the columns {' and '.join(COLUMNS)}"
            raise TaskError(f"{expected}, got {path}{columns_in(path)}")
        check_format(path, format, ("encoding",))
        encoding = format.encoding or encoding_of(path)
        rows: Iterable[tuple[str, Any]] = ((f"{path}, line {i}", row) for i, row in read_json_lines(path, encoding))
    elif isinstance(data, Iterable):
        rows = ((f"{what}[{i}]", row) for i, row in enumerate(data))
    else:
        raise TaskError(f"expected documents with summaries in a JSONL file or a list, got a {type(data).__name__}")
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise TaskError(f"{place}: expected an object with a document and a summary, got {row!r:.40}")
        yield place, row


def _sentences(value: object, cleaner: Cleaner, place: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return sentences_of(cleaner.clean(value))
    if isinstance(value, Sequence) and all(isinstance(sentence, str) for sentence in value):
        cleaned = (" ".join(cleaner.clean(sentence).split()) for sentence in value)
        return tuple(sentence for sentence in cleaned if any(map(str.isalnum, sentence)))
    raise TaskError(f"{place}: expected a text or a list of sentences, got {value!r:.40}")


def _items(rows: Sequence[Document], keep: int) -> SummaryItems:
    documents, summaries = zip(*rows, strict=True)
    oracle = (greedy_oracle(document, summary, keep=keep) for document, summary in rows)
    return SummaryItems(documents=documents, summaries=summaries, oracle=tuple(oracle), keep=keep)
