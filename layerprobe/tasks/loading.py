"""STS tasks and texts, loaded. Knows the way from a source to clean splits; formats and columns are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.results import SentencePairs, STSTask, TextFile
from layerprobe.tasks.columns import Columns, named_column, pair_columns, text_columns
from layerprobe.tasks.discovery import folder_splits, sibling_splits
from layerprobe.tasks.hub import hub_tables, is_hub_name
from layerprobe.tasks.scores import check_range, detect_range, parse_score, scale
from layerprobe.tasks.splitting import check_ratios, split_by_ratio
from layerprobe.tasks.tables import SUFFIXES, Table, check_file, read_table, read_text
from layerprobe.tasks.texts import Cleaner

SPLITS = ("train", "validation", "test")
MIN_PAIRS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredPair:
    first: str
    second: str
    score: float
    """As in the source."""
    place: str
    """File and line."""


def load_task(
    source: str | Path,
    *,
    columns: Columns | None = None,
    score_range: tuple[float, float] | None = None,
    split_ratios: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    validation: str | Path | None = None,
    test: str | Path | None = None,
) -> STSTask:
    """Load sentence pairs with gold scores, in three splits, scores scaled to 0 .. 1.

    A file named `...train...` brings the dev and test file beside it that is named like it. Splits that are
    still missing are drawn at random from the train file; copies of a pair, turned round or not, stay together.
    Pairs with an empty text are dropped, control characters become spaces, and texts are cut to 100,000
    characters; the task's warnings count them, its notes say how the data was understood.

    Args:
        source: A CSV, TSV, TXT (tab separated), JSONL or Parquet file; a folder of such files; `stsb`; or the
            hub name of a data set, with `:config` where it has several.
        columns: First sentence, second sentence and score: names, or indices from 0, in a list or joined by
            commas. By default usual names are known, and files of two texts and a number.
        score_range: What 0 and 1 are in the source. By default decided by the minimum and maximum of all
            splits together: 1 to 5 where they are exactly 1 and 5, else the narrowest of 0 to 1, 0 to 4, 0 to
            5, 0 to 10 and 0 to 100 that holds them.
        split_ratios: Shares of train, validation and test where a file is split.
        seed: Of that split.
        validation: A file with the validation split.
        test: A file with the test split.

    Returns:
        The task; every split has at least 4 pairs and 2 different scores.

    Raises:
        TaskError: If a file, the data set, a column or a score is not what it should be, or a split is too small.
    """
    check_ratios(split_ratios)
    given = {"validation": validation, "test": test}
    tables, notes = _tables(source, {role: Path(path).expanduser() for role, path in given.items() if path is not None})
    splits: dict[str, list[_ScoredPair]] = {}
    warnings: list[str] = []
    for role, table in tables.items():
        splits[role], changes = _scored_pairs(table, columns)
        warnings.extend(changes)
    splits, splitting = _with_all_splits(splits, dict(zip(SPLITS, split_ratios, strict=True)), seed)
    for role in SPLITS:
        _check_split(role, splits[role])
    score_range, scaling = _score_range([pair for role in SPLITS for pair in splits[role]], score_range)
    return STSTask(
        name=str(source),
        train=_scaled(splits["train"], score_range),
        validation=_scaled(splits["validation"], score_range),
        test=_scaled(splits["test"], score_range),
        score_range=score_range,
        notes=(*notes, *splitting, scaling),
        warnings=tuple(warnings),
    )


def load_texts(path: str | Path, *, columns: Columns | None = None, documents: str | None = None) -> TextFile:
    """Load texts without scores.

    Empty texts are dropped, control characters become spaces, and texts are cut to 100,000 characters; the
    warnings count them.

    Args:
        path: A TXT file with one text a line, or a table as in `load_task`.
        columns: The text columns of a table: names, or indices from 0 of a file without a header. By default
            usual names are known; a table of sentence pairs gives both sentences, pair by pair.
        documents: The column of a table that says which document a text is from.

    Returns:
        The texts in the order of the file, copies included.

    Raises:
        TaskError: If the file or a column is not what it should be, or there is no text.
    """
    file = Path(path).expanduser()
    check_file(file)
    if file.suffix.lower() == ".txt" and documents is not None:
        raise TaskError(f"{file} has lines and no columns: expected a CSV, TSV, JSONL or Parquet file with documents")
    if file.suffix.lower() == ".txt" and columns is None:
        lines = [line.removesuffix("\r") for line in read_text(file).split("\n")]
        found = [(line, "") for line in (lines[:-1] if lines[-1] == "" else lines)]  # no line after the last end
    else:
        found = _cells(file, columns, documents)
    cleaner = Cleaner()
    kept = [(text, document) for cell, document in found if cleaner.keeps(text := cleaner.clean(cell))]
    if not kept:
        raise TaskError(f"{file} has no texts: expected at least one")
    return TextFile(
        name=str(path),
        texts=tuple(text for text, _ in kept),
        documents=None if documents is None else _documents(kept),
        warnings=(*cleaner.warnings(str(file), "text"), *_odd_documents(file, kept, documents)),
    )


def _documents(kept: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the document of every text; one without is a document of its own."""
    return tuple(document.strip() or f"(none: {text})" for text, document in kept)


def _odd_documents(file: Path, kept: Sequence[tuple[str, str]], column: str | None) -> list[str]:
    if column is None:
        return []
    alone = sum(not document.strip() for _, document in kept)
    homes: dict[str, set[str]] = {}
    for text, document in kept:
        homes.setdefault(text, set()).add(document.strip())
    several = sum(len(documents) > 1 for documents in homes.values())
    found = [f"{file}: {alone} texts without a document count as documents of their own"] if alone else []
    return [*found, *([f"{file}: {several} texts are in several documents, the first counts"] if several else [])]


def _cells(file: Path, columns: Columns | None, documents: str | None) -> list[tuple[str, str]]:
    """Return every text of a table with its document."""
    table = read_table(file)
    if documents is not None and not documents.isdecimal():
        table = table.with_header()
    table, indices = text_columns(table, columns)
    label = None if documents is None else named_column(table, documents)
    return [(row[i], "" if label is None else row[label]) for row in table.rows for i in indices]


def _tables(source: str | Path, given: Mapping[str, Path]) -> tuple[dict[str, Table], list[str]]:
    """Return a table by split and where they come from; files that were given go before those that were found."""
    path = Path(source).expanduser()
    if not path.exists() and path.suffix.lower() not in SUFFIXES and is_hub_name(str(source)):
        tables = hub_tables(str(source))
        return tables | {role: read_table(file) for role, file in given.items()}, []
    if path.is_dir():
        files = {**folder_splits(path), **given}
        notes = [f"found in {path}: {', '.join(f'{files[role].name} as {role}' for role in files)}"]
    else:
        siblings = sibling_splits(path, [role for role in SPLITS[1:] if role not in given])
        files = {"train": path, **siblings, **given}
        notes = [f"took {file} as the {role} split, named like {path.name}" for role, file in siblings.items()]
    return {role: read_table(file) for role, file in files.items()}, notes


def _scored_pairs(table: Table, columns: Columns | None) -> tuple[list[_ScoredPair], tuple[str, ...]]:
    table, (first, second, score) = pair_columns(table, columns)
    cleaner, pairs = Cleaner(), []
    for i, row in enumerate(table.rows):
        texts = cleaner.clean(row[first]), cleaner.clean(row[second])
        if cleaner.keeps(*texts):
            place = table.place(i)
            pairs.append(
                _ScoredPair(first=texts[0], second=texts[1], score=parse_score(row[score], place), place=place)
            )
    return pairs, cleaner.warnings(table.name, "pair")


def _with_all_splits(
    splits: Mapping[str, list[_ScoredPair]], ratios: Mapping[str, float], seed: int
) -> tuple[dict[str, list[_ScoredPair]], list[str]]:
    """Draw the splits that are missing from the train split."""
    drawn = [role for role in SPLITS if role == "train" or role not in splits]
    if drawn == ["train"]:
        return dict(splits), []
    train = splits["train"]
    parts = split_by_ratio([(p.first, p.second) for p in train], [ratios[role] for role in drawn], seed=seed)
    filled = dict(splits) | {role: [train[i] for i in part] for role, part in zip(drawn, parts, strict=True)}
    shares = ", ".join(f"{len(filled[role])} {role}" for role in drawn)
    equal = "copies of a pair, turned round or not, are in one split"
    return filled, [f"split {len(train)} pairs at random with seed {seed} into {shares}; {equal}"]


def _check_split(role: str, pairs: Sequence[_ScoredPair]) -> None:
    if len(pairs) < MIN_PAIRS:
        advice = f"give more pairs, or another file with --{role}" if role != "train" else "give more pairs"
        raise TaskError(f"the {role} split has {len(pairs)} pairs, expected at least {MIN_PAIRS}: {advice}")
    if all(pair.score == pairs[0].score for pair in pairs):
        found = f"all {len(pairs)} scores of the {role} split are {pairs[0].score:g} (from {pairs[0].place})"
        raise TaskError(f"{found}: expected different scores; is this split without labels?")


def _score_range(pairs: Sequence[_ScoredPair], given: tuple[float, float] | None) -> tuple[tuple[float, float], str]:
    if given is None:
        low, high = detect_range([pair.score for pair in pairs])
        return (low, high), f"scaled scores from {low:g} .. {high:g} to 0 .. 1, a range detected from the data"
    low, high = check_range(given)
    for pair in pairs:
        if not low <= pair.score <= high:
            raise TaskError(f"{pair.place}: expected a score from {low:g} to {high:g}, got {pair.score:g}")
    return (low, high), f"scaled scores from {low:g} .. {high:g} to 0 .. 1, the range that was given"


def _scaled(pairs: Sequence[_ScoredPair], score_range: tuple[float, float]) -> SentencePairs:
    return SentencePairs(
        first=tuple(pair.first for pair in pairs),
        second=tuple(pair.second for pair in pairs),
        scores=tuple(scale(pair.score, score_range) for pair in pairs),
    )
