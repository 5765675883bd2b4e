"""Loading of tasks and texts, from a source to clean splits; formats and columns are in other modules."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError, option
from layerprobe.files.inputs import FASTA, from_home, spooled
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted
from layerprobe.tasks.cells import TableLog, check_left_out, label_cell
from layerprobe.tasks.formats import (
    Format,
    Readers,
    check_file,
    check_format,
    check_regular,
    detection_note,
    encoding_note,
    find_encoding,
    read_grid,
    read_lines,
)
from layerprobe.tasks.kind import KINDS, LABEL_COLUMNS, Kind, detect_kind
from layerprobe.tasks.rows import (
    ColumnLayout,
    Columns,
    ItemT,
    Row,
    TaskSource,
    layouts_of,
    place_of,
    plain_name,
    read_alike,
    read_rows,
    text_columns,
)
from layerprobe.tasks.sources import Data, grids_of, hub_grids, is_on_hub
from layerprobe.tasks.splitting import (
    MIN_EXAMPLES,
    SPLITS,
    Example,
    Whole,
    check_ratios,
    parsed,
    task_of,
    with_all_splits,
    with_counts,
    without_overlaps,
)
from layerprobe.tasks.values import RATIOS, Items, Task, TaskSettings, TextFile


def checked_splits(
    source: TaskSource, splits: Mapping[str, Whole], keys: Iterable[tuple[str, ...]], *, unit: str, together: str = ""
) -> tuple[dict[str, Whole], list[str]]:
    """Return splits like `with_all_splits`, with ratios and seed of a source; TaskError if one is too small."""
    filled, notes = with_all_splits(
        splits, keys, source.ratios, seed=source.settings.split_seed, unit=unit, together=together
    )
    for role in SPLITS:
        if (n := len(filled[role])) < MIN_EXAMPLES:
            other = "" if role == "train" else f", or another file with --{role}"
            raise TaskError(
                f"the {role} split has {counted(n, unit)}, expected at least {MIN_EXAMPLES}: give more{other}"
            )
    return filled, notes


def load_rows(
    source: TaskSource,
    kind: Kind,
    item_of: Callable[[Row], ItemT],
    splits_of: Callable[[Mapping[str, Sequence[ItemT]], list[str], list[str]], Mapping[str, Items]],
    *,
    key: Callable[[ItemT], tuple[str, ...]],
    together: str = "",
    layout: ColumnLayout | None = None,
    readers: Readers | None = None,
) -> Task:
    """Load a task of a kind whose items are rows.

    Args:
        source: Files, a data set or data in memory.
        kind: Kind of task, which declares the columns.
        item_of: Function from a row to its item; it raises UnusableRowError if there is none.
        splits_of: Function from the items of all splits, notes and warnings (which it may extend) to the splits.
        key: Function from an item to a key; items with equal keys stay in one split when splits are drawn.
        together: Name of such items, for the note.
        layout: Columns of an item; by default those that the kind declares, with any cells.
        readers: Readers of files that are not tables, as in `read_rows`.
    """
    layout = layout or ColumnLayout(columns=kind.columns, lists=True)
    read, notes, warnings = read_rows(source, [layout], item_of, item=kind.unit, readers=readers)
    parts, drawn = checked_splits(source, read, map(key, read["train"]), unit=kind.unit, together=together)
    notes += drawn
    splits: dict[str, Any] = {**splits_of(parts, notes, warnings)}
    return Task(
        name=source.name,
        kind=kind.name,
        **splits,
        labels=getattr(splits["train"], "labels", ()),
        one_piece=len(read) == 1,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


DATA = "data"
"""Default name of data in memory."""


def load_task(
    source: Data,
    *,
    columns: Columns | None = None,
    kind: str | None = None,
    validation: Data | None = None,
    test: Data | None = None,
    format: Format | str | None = None,
    skip_empty: bool = False,
    name: str | None = None,
    score_range: tuple[float, float] | None = None,
    split_ratios: tuple[float, float, float] = RATIOS,
    seed: int = 0,
    skip_broken: bool = False,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    keep_overlaps: bool = False,
) -> Task:
    """Load texts or pairs of texts with gold scores or labels, in three splits.

    With a file named `...train...`, the dev and test files beside it with the same name are loaded, too. Splits that
    are still missing are drawn at random from the train file; duplicates, including swapped pairs, stay together.
    Items in two splits are left out of the one that trains or chooses, see `layerprobe.tasks.splitting`.
    Control characters become spaces, and texts are cut to 100,000 characters; the task's warnings count these, items
    left out, and the texts that splits share; its notes say how the data was read. Every split has at least 4 examples
    and 2 different targets.

    Args:
        source: A CSV, TSV, TXT (also a table), JSONL or Parquet file; a folder of such files; `stsb`; the hub name of a
            data set, with `:config` if it has several; or data in memory: a pandas DataFrame, a `datasets.Dataset`, a
            mapping of columns, a list of mappings or of rows, or a mapping of splits to any of these.
        columns: First text, second text and target, or text and label: names, or indices from 0, in a list or
            joined by commas. By default usual names are recognised; a table of two or three columns without header
            has the texts first, and the target last.
        kind: One of `KINDS`. By default detected in the train split: single texts are classification, or regression
            if targets are numbers with fractions (many whole numbers with gaps could be either: the name of their
            column decides, such as rating, or you do); pairs are paraphrase if all
            targets are 0 or 1, sts if any is another number, entailment otherwise.
        validation: A file or data in memory with the validation split.
        test: A file or data in memory with the test split.
        format: Format of files, if it does not follow from their ending; also a text such as
            `delimiter=;,decimal=,`. Encoding and decimal commas are detected, as the task's notes then say.
        skip_empty: Leave out rows with an empty cell; otherwise they are an error.
        name: Name of the task; by default the source, or `data`.
        score_range: Lowest and highest possible score in the source, if targets are scores; by default that of
            `detect_range` for all splits together.
        split_ratios: Shares of train, validation and test, if a file is split.
        seed: Seed of that split.
        skip_broken: Leave out images that do not open; otherwise they are an error.
        query_prompt: Prompt before every query of a retrieval task, such as "query: "; by default the model's.
        document_prompt: Prompt before every document; likewise.
        keep_overlaps: Keep items that are in two splits in both; scores are then unreliable, and results claim nothing
            from them.

    Raises:
        TaskError: If a file, the data set, a column, a score or a label is invalid, or a split is too small, also
            without the items of other splits.
        DataError: If there is no such kind.
    """
    _check_lists(source)
    title, form = name or (str(source) if isinstance(source, (str, Path)) else DATA), Format.of(format)
    others = {"validation": validation, "test": test}
    settings = TaskSettings(
        source=title,
        kind=kind,
        columns=columns,  # type: ignore[arg-type]
        score_range=score_range,
        split_seed=seed,
        skip_empty=skip_empty,
        skip_broken=skip_broken,
        keep_overlaps=keep_overlaps,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        **{field.name: getattr(form, field.name) for field in fields(Format)},
    )
    data = {"train": source} | {role: other for role, other in others.items() if other is not None}
    check_ratios(split_ratios)
    if len(split_ratios) != len(SPLITS):
        raise TaskError(f"expected a ratio for each of {', '.join(SPLITS)}, got {len(split_ratios)}")
    return _loaded(TaskSource(data=data, name=title, settings=settings, ratios=split_ratios))


def _loaded(source: TaskSource) -> Task:
    """Return the task of a source; its splits have no common items unless these are kept."""
    settings = source.settings
    kind = settings.kind or _recognised(source.data["train"])
    if (settings.query_prompt or settings.document_prompt) and (kind is None or not KINDS[kind].prompts):
        kinds = ", ".join(name for name, kind in KINDS.usable().items() if kind.prompts)
        raise TaskError(f"prompts of queries and documents are only for tasks of kind {kinds}: use prompt")
    if kind is None or (loader := KINDS[kind].loader) is None:
        task = _task_of_tables(source, kind)
    elif settings.score_range is not None:
        raise TaskError(f"expected no score range for {kind}, got {settings.score_range}")
    else:
        task = loader(replace(source, settings=replace(settings, kind=kind)))
    task = replace(task, keep_overlaps=settings.keep_overlaps)
    task = with_counts(without_overlaps(task, ratios=source.ratios, seed=settings.split_seed))
    return replace(task, warnings=(*task.warnings, *_primary_warnings(task)))


def _check_lists(source: object) -> None:
    """Raise TaskError for texts alone, and say how to give them with scores or labels."""
    if isinstance(source, list | tuple) and source and all(isinstance(item, str) for item in source):
        raise TaskError(
            "expected texts with scores or labels, got a list of texts: use load_task({'text': texts, 'label': "
            "labels}); functions without labels, such as extract and predict, take the list itself"
        )


def _task_of_tables(source: TaskSource, kind: str | None) -> Task:
    """Return the task of tables of texts."""
    settings = source.settings
    targets = dict[str, None]()

    def named_example_of(row: Row) -> Example:
        targets[row.columns[-1]] = None
        return example_of(row)

    read, notes, warnings = read_rows(source, layouts_of(kind), named_example_of, item="row")
    kind = kind or kind_of(read["train"], next(iter(targets), ""))
    if settings.score_range is not None and KINDS[kind].labelled:
        raise TaskError(f"expected no score range for {kind}, whose targets are labels, got {settings.score_range}")
    return task_of(
        source.name,
        kind,
        {role: parsed(kind, role, rows, skip_empty=settings.skip_empty) for role, rows in read.items()},
        ratios=source.ratios,
        seed=settings.split_seed,
        score_range=settings.score_range,
        notes=notes,
        warnings=warnings,
    )


def example_of(row: Row) -> Example:
    """Return the example of a row: one text or two, and the target."""
    first, *second, cell = row.texts()
    return Example(first=first, second=second[0] if second else None, cell=cell, place=row.place)


def kind_of(rows: Sequence[Example], column: str) -> str:
    """Return the kind of task that rows belong to.

    Many whole numbers are classes or values: TaskError if the name of their column does not decide.
    """
    cells, pairs = {label_cell(row.cell) for row in rows}, any(row.second is not None for row in rows)
    kind = KINDS[detect_kind((row.cell for row in rows), pairs=pairs)]
    named = plain_name(column) in {*kind.target_columns} - {*LABEL_COLUMNS}
    if cells and not (pairs or kind.labelled or named) and all(cell.lstrip("+-").isdecimal() for cell in cells):
        labelled = next(one for one in KINDS.usable().values() if one.labelled and not (one.pairs or one.loader))
        raise TaskError(
            f"the {len(cells)} different whole numbers of the target could be classes or values: say which, with "
            f"{option('kind', labelled.name)} or {option('kind', kind.name)}"
        )
    return kind.name


def _primary_warnings(task: Task) -> Iterator[str]:
    """Yield the reason if the primary metric is not the first of the kind."""
    for metric in task.unusual_primary:
        number, n = min(task.class_sizes.items(), key=lambda pair: pair[1])
        share = f"{n:,} of {counted(task.class_sizes.total(), KINDS[task.kind].unit)}"
        usual = metric_title(KINDS[task.kind].metrics[0])
        yield (
            f"{metric_title(metric)} is the primary metric instead of {usual}, which says little about rare classes: "
            f"{share} are {task.labels[int(number)][:40]!r}"
        )


def _recognised(source: object) -> str | None:
    """Return the only possible kind of task of a file or folder; None if it is a table, or on the Hub."""
    if not isinstance(source, (str, Path)) or is_on_hub(source):
        return None
    path = from_home(source)
    check_regular(path)
    return next((name for name, kind in KINDS.usable().items() if kind.loader and kind.recognises(path)), None)


def load_texts(
    source: Data,
    *,
    columns: Columns | None = None,
    groups: str | None = None,
    format: Format | str | None = None,
    skip_empty: bool = False,
    skip_broken: bool = False,
    name: str | None = None,
) -> TextFile:
    """Load texts without scores; or images, with or without captions, see `layerprobe.kinds.images`.

    Control characters become spaces, and texts are cut to 100,000 characters; the warnings count them.

    Args:
        source: A TXT file with one text per line or a FASTA file, also with .gz, a table as in `load_task`, the hub id
            of a data set, whose train split is used, or a list or Series of texts.
        columns: The text columns of a table: names, or indices from 0 for a file without a header. By default usual
            names are recognised; a table of sentence pairs gives both sentences, pair by pair. Of a table of two or
            three columns without header, the last one is left out, as a score or label.
        groups: The column of a table with the group of each text.
        format: Format of the file, if it does not follow from its ending.
        skip_empty: Leave out empty texts; otherwise they are an error.
        skip_broken: Leave out images that do not open; otherwise they are an error.
        name: Name in messages; by default the file, or `data`.

    Returns:
        The texts in the order of the file, including copies.

    Raises:
        TaskError: If the file or a column is invalid, texts are empty, or there are none.
    """
    format = Format.of(format)
    file = from_home(source) if isinstance(source, (str, Path)) else None
    title = name or (DATA if file is None else str(source))
    if file is not None:
        check_regular(file)
    kind = None
    if file is not None and not is_on_hub(file):
        kinds = (kind for kind in KINDS.usable().values() if kind.unlabelled is not None)
        kind = next((kind for kind in kinds if kind.recognises(file)), None)
    if kind is not None and kind.unlabelled is not None:
        if groups is not None:
            raise TaskError(f"expected no groups with images, got {groups}: each image is already a group")
        return kind.unlabelled(
            file,
            columns=columns,
            format=format,
            skip_broken=skip_broken,
            skip_empty=skip_empty,
            name=title,
        )
    if file is None or is_on_hub(file):
        grids = grids_of(source, title) if file is None else hub_grids(str(source))
        grid = read_alike(grids, format, title)["train"]
    else:
        lines = file.name.lower().endswith((".txt", ".txt.gz", *FASTA))
        check_file(file, [file.suffix.lower()] if lines else ())
        if lines and groups is not None:
            raise TaskError(f"{file} has lines but no columns: for groups, use a CSV, TSV, JSONL or Parquet file")
        if lines and (columns is None or file.suffix.lower() == ".gz"):
            return texts_of_lines(file, format, skip_empty=skip_empty, name=title)
        grid = read_grid(file, format)
    grid, indices = text_columns(grid, columns, [] if groups is None else [groups])
    label = None if groups is None else place_of(grid, groups)
    grid.check_cells([] if label is None else [label])
    cells = (
        (row[i], number, grid.column(i), None if label is None else row[label])
        for number, row in zip(grid.numbers, grid.rows, strict=True)
        for i in indices
    )
    texts = _text_file(grid.name, cells, unit=grid.unit, skip_empty=skip_empty)
    return replace(texts, name=title, notes=grid.notes, warnings=(*grid.warnings, *texts.warnings))


def texts_of_lines(
    path: str | Path, format: Format | None = None, *, skip_empty: bool = False, name: str | None = None
) -> TextFile:
    """Return the cleaned lines of a file, or the sequences of a FASTA file, as its texts.

    Raises:
        TaskError: If a text is empty and `skip_empty` is not set, if there is none, or the file cannot be read.
    """
    file, format = from_home(path), format or Format()
    check_format(file, format, ("encoding",))
    encoding = format.encoding or find_encoding(file)
    lines = (
        (line.removesuffix("\n").removesuffix("\r"), number, "line", None)
        for number, line in read_lines(file, encoding)
    )
    cells = _sequences(file, lines) if file.name.lower().endswith(FASTA) else lines
    texts = _text_file(str(file), cells, unit="line", skip_empty=skip_empty)
    return replace(texts, name=name or str(path), notes=detection_note(file, encoding_note(encoding, format.encoding)))


def _sequences(file: Path, lines: Iterable[_TextCell]) -> Iterator[_TextCell]:
    """Yield the sequence of each record of a FASTA file, without `*` at its end, named by its header."""
    header, parts = "", list[str]()
    for line, number, *_ in itertools.chain(lines, [(">", 0, "", None)]):
        if line.startswith(">"):
            if header:
                yield "".join(parts).removesuffix("*"), header, "sequence", None
            header, parts = [*line[1:].split(), f"line {number}"][0], []
        elif header:
            parts += line.split()
        elif line.strip():
            raise TaskError(f"{file}, line {number}: expected a header that begins with >, got {line[:40]!r}")


_TextCell = tuple[str, object, str, str | None]
"""A text, its line, row or id, its column and its group."""


def _text_file(name: str, cells: Iterable[_TextCell], *, unit: str, skip_empty: bool) -> TextFile:
    """Return the texts of cells, with their groups if there is such a column."""
    log, groups = TableLog(name, unit), list[str]()

    def clean() -> Iterator[str]:
        for cell, number, column, group in cells:
            text = log.clean(cell)
            if text.strip():
                if group is not None:
                    groups.append(group.strip())
                yield text
            else:
                log.leave_out(f"with an empty {column}", number)

    texts = spooled(clean())
    if not texts:
        raise TaskError(f"{name} has no texts: expected at least one")
    skip = ["skip_empty"] if skip_empty else []
    warnings = [*check_left_out([log], skip=skip, item="text"), *log.warnings]
    if not groups:
        return TextFile(name=name, texts=texts, warnings=tuple(warnings))
    if alone := groups.count(""):
        warnings.append(f"{name}: {alone} texts without a group count as separate groups")
    distinct = set(zip(texts, groups, strict=True))
    if several := sum(n > 1 for n in Counter(text for text, _ in distinct).values()):
        warnings.append(f"{name}: {several} texts are in several groups; the first one counts")
    named = (group or f"(none: {text})" for text, group in zip(texts, groups, strict=True))
    return TextFile(name=name, texts=texts, groups=tuple(named), warnings=tuple(warnings))


def load_corpus(paths: Sequence[str | Path], *, columns: str | None = None, format: Format | None = None) -> TextFile:
    """Load texts without scores from several files in turn.

    Files, columns and format are as in `load_texts`; empty texts are left out, since blank lines separate
    paragraphs. A text file with one text per line can also be compressed, `.txt.gz`.
    """
    if not paths:
        raise DataError("expected at least one file with texts, got none")
    for path in map(str, paths):
        if path.lower().endswith(".gz") and not path.lower().endswith((".txt.gz", *FASTA)):
            raise DataError(f"expected compressed texts to be a .txt.gz file with one per line, got {path}")
    files = [load_texts(path, columns=columns, format=format, skip_empty=True) for path in paths]
    return TextFile(
        name=", ".join(file.name for file in files),
        texts=tuple(text for file in files for text in file.texts),
        notes=tuple(note for file in files for note in file.notes),
        warnings=tuple(warning for file in files for warning in file.warnings),
    )


def load_settings(settings: TaskSettings) -> Task:
    """Load a task by its settings."""
    if settings.merge:
        kinds = KINDS.usable().items()
        merged = next(kind.merged for name, kind in kinds if kind.merged and settings.kind in (None, name))
        return merged(settings.source, seed=settings.split_seed, format=settings.format, skip_empty=settings.skip_empty)
    named = {"train": settings.source, "validation": settings.validation, "test": settings.test}
    data = {role: source for role, source in named.items() if source is not None}
    return _loaded(TaskSource(data=data, name=settings.source, settings=settings))
