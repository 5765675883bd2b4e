"""Triplets of texts, from tables with the columns anchor, positive and negative. Knows texts; knows no models."""

from layerprobe.errors import TaskError
from layerprobe.kinds.triplets.items import Triplets
from layerprobe.kinds.triplets.kind import TRIPLETS
from layerprobe.tasks.columns import training_columns
from layerprobe.tasks.examples import MIN_EXAMPLES, SPLITS
from layerprobe.tasks.loading import TaskSource, source_tables
from layerprobe.tasks.splitting import split_by_ratio
from layerprobe.tasks.tables import Table
from layerprobe.tasks.texts import Cleaner, EmptyCells, check_empty
from layerprobe.tasks.values import Task


def load_triplets(source: TaskSource) -> Task:
    """Load triplets in three splits from what `load_task` takes; splits that are missing are drawn at random.

    Raises:
        TaskError: If a table or a column is not what it should be, a text is empty, or a split is too small.
    """
    tables, notes = source_tables(source)
    read = {role: _read(table, source) for role, table in tables.items()}
    warnings = [warning for table in tables.values() for warning in table.warnings]
    warnings += check_empty([empty for _, empty, _ in read.values()], skip=source.skip_empty)
    warnings += [warning for _, _, changed in read.values() for warning in changed]
    splits = {role: triplets for role, (triplets, _, _) in read.items()}
    drawn = [role for role in SPLITS if role == "train" or role not in splits]
    if drawn != ["train"]:
        whole = splits["train"]
        ratios = [ratio for role, ratio in zip(SPLITS, source.split_ratios, strict=True) if role in drawn]
        keys = [(anchor, positive) for anchor, positive in zip(whole.anchors, whole.positives, strict=True)]
        parts = split_by_ratio(keys, ratios, seed=source.seed)
        splits |= {role: whole.take(part) for role, part in zip(drawn, parts, strict=True)}
        sizes = ", ".join(f"{len(splits[role])} {role}" for role in drawn)
        notes.append(
            f"split {len(whole)} triplets at random with seed {source.seed} into {sizes}; those of an anchor and a "
            "positive are in one split"
        )
    for role in SPLITS:
        if len(splits[role]) < MIN_EXAMPLES:
            raise TaskError(f"the {role} split has {len(splits[role])} triplets, expected at least {MIN_EXAMPLES}")
    return Task(
        name=source.name,
        kind=TRIPLETS.name,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        notes=tuple(notes),
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
