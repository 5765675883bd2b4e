"""Class labels: read and named. Knows cells, not files."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from layerprobe.tasks.scores import is_number

BINARY = {"0": "0", "1": "1", "false": "0", "true": "1"}


def is_binary(cells: AbstractSet[str]) -> bool:
    """Return whether distinct cells are 0 and 1, or false and true; not where there are none."""
    return bool(cells) and cells <= BINARY.keys()


def label_cell(cell: str) -> str:
    """Return the label in a cell; a whole number is written as one.

    Examples:
        >>> label_cell(" NEUTRAL "), label_cell("1.0")
        ('NEUTRAL', '1')
    """
    label = cell.strip()
    if is_number(label) and (number := float(label)).is_integer():
        return str(int(number))
    return label


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return distinct labels in order: by value where all are numbers, else by alphabet.

    Examples:
        >>> class_names(["10", "2", "2"]), class_names(["b", "a"])
        (('2', '10'), ('a', 'b'))
    """
    distinct = set(labels)
    return tuple(sorted(distinct, key=float) if all(map(is_number, distinct)) else sorted(distinct))
