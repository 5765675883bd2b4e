"""Triplets of texts, from tables with the columns anchor, positive and negative. Knows texts; knows no models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerprobe.errors import DataError, TaskError
from layerprobe.kinds.triplets.kind import TRIPLETS
from layerprobe.tasks.columns import training_columns
from layerprobe.tasks.examples import MIN_EXAMPLES, SPLITS
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.loading import TaskSource, source_tables
from layerprobe.tasks.splitting import split_by_ratio
from layerprobe.tasks.tables import Table
from layerprobe.tasks.texts import Cleaner, EmptyCells, check_empty
from layerprobe.tasks.values import Items, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Triplets(Items):
    """Texts, each with one that is to be closer to it than another."""

    anchors: tuple[str, ...]
    """The texts."""
    positives: tuple[str, ...]
    """What is to be closer."""
    negatives: tuple[str, ...]
    """What is to be farther away."""

    def __post_init__(self) -> None:
        lengths = tuple(map(len, self.sides))
        if len(set(lengths)) > 1:
            raise DataError(f"expected as many anchors as positives and negatives, got {lengths}")

    def __len__(self) -> int:
        return len(self.anchors)

    def __repr__(self) -> str:
        return f"<Triplets: {len(self):,}>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """Anchors, positives and negatives."""
        return self.anchors, self.positives, self.negatives

    @property
    def gold(self) -> Any:
        """(n,) ones: the sign that the difference of cosines should have."""
        import numpy as np  # which `--help` does without

        return np.ones(len(self))

    def take(self, rows: Sequence[int]) -> "Triplets":
        """Return the triplets of these numbers, in this order."""
        anchors, positives, negatives = (tuple(side[i] for i in rows) for side in self.sides)
        return Triplets(anchors=anchors, positives=positives, negatives=negatives)

    def join(self, other: "Triplets") -> "Triplets":
        """Return these triplets and then the others."""
        anchors, positives, negatives = (a + b for a, b in zip(self.sides, other.sides, strict=True))
        return Triplets(anchors=anchors, positives=positives, negatives=negatives)

    def prompted(self, prompt: str) -> "Triplets":
        """Return the triplets with the prompt before every text."""
        anchors, positives, negatives = (tuple(prompt + text for text in side) for side in self.sides)
        return replace(self, anchors=anchors, positives=positives, negatives=negatives)

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError if a text is empty."""
        for side, texts in zip(("anchors", "positives", "negatives"), self.sides, strict=True):
            for i, text in enumerate(texts):
                if not isinstance(text, str) or not text.strip():
                    raise DataError(f"expected a text at {split}.{side}[{i}], got {text!r}: leave such triplets out")


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
