"""Triplets of texts, from tables with the columns anchor, positive and negative. Knows texts; knows no models."""

from layerprobe.errors import TaskError
from layerprobe.kinds.triplets.items import Triplets
from layerprobe.kinds.triplets.kind import TRIPLETS
from layerprobe.tasks.columns import training_columns
from layerprobe.tasks.examples import MIN_EXAMPLES
from layerprobe.tasks.loading import TaskSource, source_tables
from layerprobe.tasks.splitting import with_all_splits
from layerprobe.tasks.tables import Table
from layerprobe.tasks.texts import Cleaner, EmptyCells, check_empty
from layerprobe.tasks.values import Task


def load_triplets(source: TaskSource) -> Task:
    """Load triplets in three splits from what `load_task` takes; splits that are missing are drawn at random."""
    tables, notes = source_tables(source)
    read = {role: _read(table, source) for role, table in tables.items()}
    warnings = [warning for table in tables.values() for warning in table.warnings]
    warnings += check_empty([empty for _, empty, _ in read.values()], skip=source.skip_empty)
    warnings += [warning for _, _, changed in read.values() for warning in changed]
    splits = {role: triplets for role, (triplets, _, _) in read.items()}
    whole = splits["train"]
    filled, drawn = with_all_splits(
        splits,
        zip(whole.anchors, whole.positives, strict=True),
        source.split_ratios,
        seed=source.seed,
        unit="triplet",
        together="those of an anchor and a positive",
    )
    for role, triplets in filled.items():
        if len(triplets) < MIN_EXAMPLES:
            raise TaskError(f"the {role} split has {len(triplets)} triplets, expected at least {MIN_EXAMPLES}")
    return Task(
        name=source.name,
        kind=TRIPLETS.name,
        train=filled["train"],
        validation=filled["validation"],
        test=filled["test"],
        one_piece=len(splits) == 1,
        notes=(*notes, *drawn),
        warnings=tuple(warnings),
    )


def _read(table: Table, source: TaskSource) -> tuple[Triplets, EmptyCells, tuple[str, ...]]:
    table, columns, _ = training_columns(table, source.columns, negatives=(1, 1))
    cleaner, empty, rows = Cleaner(), EmptyCells(table.name, table.unit), list[list[str]]()
    for number, row in zip(table.numbers, table.rows, strict=True):
        texts = [cleaner.clean(row[column]) for column in columns]
        for column, text in zip(columns, texts, strict=True):
            if not text.strip():
                empty.add(table.column(column), number)
        if all(text.strip() for text in texts):
            rows.append(texts)
    anchors, positives, negatives = (tuple(row[i] for row in rows) for i in range(3))
    changed = cleaner.warnings(table.name, "triplet")
    return Triplets(anchors=anchors, positives=positives, negatives=negatives), empty, changed
