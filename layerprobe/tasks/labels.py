"""Kinds of tasks and class labels: found out, read and numbered. Knows cells and places, not files."""

from __future__ import annotations

from collections.abc import Iterable

from layerprobe.errors import TaskError
from layerprobe.metrics.names import TaskKind
from layerprobe.tasks.columns import is_number

BINARY = {"0": "0", "1": "1", "false": "0", "true": "1"}
PARAPHRASE_LABELS = ("0", "1")


def detect_kind(targets: Iterable[str], *, pairs: bool) -> TaskKind:
    """Return the kind of task that target cells belong to.

    Single texts are classified. Pairs are paraphrase where every target is 0 or 1, sts where any is a number, and
    entailment otherwise.

    Example:
        >>> detect_kind(["0", "1"], pairs=True), detect_kind(["0", "0.5"], pairs=True), detect_kind(["yes"], pairs=True)
        ('paraphrase', 'sts', 'entailment')
    """
    if not pairs:
        return "classification"
    distinct = {label_cell(cell).lower() for cell in targets} - {""}
    if distinct and distinct <= BINARY.keys():
        return "paraphrase"
    return "sts" if not distinct or any(map(is_number, distinct)) else "entailment"


def label_cell(cell: str) -> str:
    """Return the label in a cell; a whole number is written as one.

    Example:
        >>> label_cell(" NEUTRAL "), label_cell("1.0")
        ('NEUTRAL', '1')
    """
    label = cell.strip()
    if is_number(label) and (number := float(label)).is_integer():
        return str(int(number))
    return label


def binary_label(cell: str, place: str) -> str:
    """Return the label of paraphrase in a cell; empty where it is missing.

    Raises:
        TaskError: If it is not 0 or 1; names the place.
    """
    label = label_cell(cell).lower()
    if label and label not in BINARY:
        raise TaskError(
            f"{place}: expected 0 or 1 as the label of a paraphrase, got {cell[:40]!r}: mend it, or choose --kind"
        )
    return BINARY.get(label, "")


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return distinct labels in order: by value where all are numbers, else by alphabet.

    Example:
        >>> class_names(["10", "2", "2"]), class_names(["b", "a"])
        (('2', '10'), ('a', 'b'))
    """
    distinct = set(labels)
    return tuple(sorted(distinct, key=float) if all(map(is_number, distinct)) else sorted(distinct))
