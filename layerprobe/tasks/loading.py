"""Tasks and texts, loaded. Knows the way from a source to clean splits; formats and columns are elsewhere."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.files import from_home
from layerprobe.tasks.columns import Columns, named_column, text_columns
from layerprobe.tasks.discovery import folder_splits, sibling_splits
from layerprobe.tasks.examples import SPLITS, Row, kind_of, parsed, read_rows, task_of
from layerprobe.tasks.formats import Format
from layerprobe.tasks.hub import hub_tables, is_on_hub
from layerprobe.tasks.kinds.kind import KINDS
from layerprobe.tasks.splitting import check_ratios
from layerprobe.tasks.tables import (
    Table,
    check_file,
    check_format,
    encoding_of,
    found_encoding,
    found_note,
    read_lines,
    read_table,
    with_points,
)
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task, TextFile


def load_task(
    source: str | Path,
    *,
    columns: Columns | None = None,
    kind: str | None = None,
    score_range: tuple[float, float] | None = None,
    split_ratios: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    format: Format | None = None,
) -> Task:
    """Load texts or pairs of texts with gold scores or labels, in three splits.

    A file named `...train...` brings the dev and test file beside it that is named like it. Splits that are
    still missing are drawn at random from the train file; copies of a pair, turned round or not, stay together.
    Examples with an empty text are dropped, control characters become spaces, and texts are cut to 100,000
    characters; the task's warnings count them, and the texts that test and train share; its notes say how the data
    was understood. Every split has at least 4 examples and 2 different targets.

    Args:
        source: A CSV, TSV, TXT (tab separated), JSONL or Parquet file; a folder of such files; `stsb`; or the
            hub name of a data set, with `:config` where it has several.
        columns: First text, second text and target, or text and label: names, or indices from 0, in a list or
            joined by commas. By default usual names are known, and files of texts and a number.
        kind: One of `KINDS`. By default detected in the train split: single texts are classified; pairs are paraphrase
            where all targets are 0 or 1, sts where any is another number, entailment otherwise.
        score_range: What 0 and 1 are in the source, where targets are scores; by default as `detect_range` has it
            for all splits together.
        split_ratios: Shares of train, validation and test where a file is split.
        seed: Of that split.
        validation: A file with the validation split.
        test: A file with the test split.
        format: How files are written, where that is not to be found out; the task's notes say what was.

    Raises:
        TaskError: If a file, the data set, a column, a score or a label is not what it should be, or a split is too
            small.
        DataError: If there is no such kind.
    """
    check_ratios(split_ratios)
    if kind is not None:
        KINDS.check(kind)
    given = {"validation": validation, "test": test}
    files = {role: from_home(path) for role, path in given.items() if path is not None}
    tables, notes = _tables(source, files, format or Format())
    notes += [note for table in tables.values() for note in table.notes]
    warnings = [warning for table in tables.values() for warning in table.warnings]
    rows: dict[str, list[Row]] = {}
    for role, table in tables.items():
        rows[role], changes = read_rows(table, columns, kind)
        warnings.extend(changes)
    kind = kind or kind_of(rows)
    if score_range is not None and KINDS[kind].labelled:
        raise TaskError(f"expected no score range for {kind}, whose targets are labels, got {score_range}")
    return task_of(
        str(source),
        kind,
        {role: parsed(kind, role, split) for role, split in rows.items()},
        ratios=split_ratios,
        seed=seed,
        score_range=score_range,
        notes=notes,
        warnings=warnings,
    )


def load_texts(
    path: str | Path, *, columns: Columns | None = None, documents: str | None = None, format: Format | None = None
) -> TextFile:
    """Load texts without scores.

    Empty texts are dropped, control characters become spaces, and texts are cut to 100,000 characters; the
    warnings count them.

    Args:
        path: A TXT file with one text a line, a table as in `load_task`, or the hub id of a data set, of which the
            train split is taken.
        columns: The text columns of a table: names, or indices from 0 of a file without a header. By default
            usual names are known; a table of sentence pairs gives both sentences, pair by pair.
        documents: The column of a table that says which document a text is from.
        format: How the file is written, where that is not to be found out.

    Returns:
        The texts in the order of the file, copies included.

    Raises:
        TaskError: If the file or a column is not what it should be, or there is no text.
    """
    file, on_hub = from_home(path), is_on_hub(path)
    if not on_hub:
        check_file(file)
    if file.suffix.lower() == ".txt" and documents is not None:
        raise TaskError(f"{file} has lines and no columns: expected a CSV, TSV, JSONL or Parquet file with documents")
    if file.suffix.lower() == ".txt" and columns is None:
        return texts_of_lines(path, format)
    if on_hub:
        check_format(path, format or Format(), ("decimal",))
    table = hub_tables(str(path))["train"] if on_hub else read_table(file, format)
    if documents is not None and not documents.isdecimal():
        table = table.with_header()
    table, indices = text_columns(table, columns)
    label = None if documents is None else named_column(table, documents)
    texts = _text_file(path, [(row[i], None if label is None else row[label]) for row in table.rows for i in indices])
    return replace(texts, notes=table.notes, warnings=(*table.warnings, *texts.warnings))


def texts_of_lines(path: str | Path, format: Format | None = None) -> TextFile:
    """Return the lines of a file, cleaned, as its texts; raise TaskError if there is none, or it cannot be read."""
    file, format = from_home(path), format or Format()
    check_format(file, format, ("encoding",))
    encoding = format.encoding or encoding_of(file)
    lines = ((line.removesuffix("\n").removesuffix("\r"), None) for _, line in read_lines(file, encoding))
    return replace(_text_file(path, lines), notes=found_note(file, found_encoding(encoding, format.encoding)))


def _text_file(path: str | Path, cells: Iterable[tuple[str, str | None]]) -> TextFile:
    """Return the texts of a file, each with its document where it has such a column."""
    file, cleaner = str(from_home(path)), Cleaner()
    kept = [(text, document) for cell, document in cells if cleaner.keeps(text := cleaner.clean(cell))]
    if not kept:
        raise TaskError(f"{file} has no texts: expected at least one")
    texts = tuple(text for text, _ in kept)
    documents = tuple(document.strip() for _, document in kept if document is not None)
    warnings = list(cleaner.warnings(file, "text"))
    if not documents:
        return TextFile(name=str(path), texts=texts, warnings=tuple(warnings))
    if alone := documents.count(""):
        warnings.append(f"{file}: {alone} texts without a document count as documents of their own")
    distinct = set(zip(texts, documents, strict=True))
    if several := sum(n > 1 for n in Counter(text for text, _ in distinct).values()):
        warnings.append(f"{file}: {several} texts are in several documents, the first counts")
    named = (document or f"(none: {text})" for text, document in zip(texts, documents, strict=True))
    return TextFile(name=str(path), texts=texts, documents=tuple(named), warnings=tuple(warnings))


def _tables(source: str | Path, given: Mapping[str, Path], format: Format) -> tuple[dict[str, Table], list[str]]:
    """Return a table by split and where they come from; files that were given go before those that were found."""
    path = from_home(source)
    if is_on_hub(source):
        if not given:
            check_format(source, format, ("decimal",))
        tables = {role: with_points(table, format.decimal) for role, table in hub_tables(str(source)).items()}
        return tables | {role: read_table(file, format) for role, file in given.items()}, []
    if path.is_dir():
        files = {**folder_splits(path), **given}
        notes = [f"found in {path}: {', '.join(f'{files[role].name} as {role}' for role in files)}"]
    else:
        siblings = sibling_splits(path, [role for role in SPLITS[1:] if role not in given])
        files = {"train": path, **siblings, **given}
        notes = [f"took {file} as the {role} split, named like {path.name}" for role, file in siblings.items()]
    return {role: read_table(file, format) for role, file in files.items()}, notes
