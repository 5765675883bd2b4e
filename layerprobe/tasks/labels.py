"""Class labels: read and named. Knows cells, not files."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from layerprobe.tasks.scores import is_number

BINARY = {"0": "0", "1": "1", "false": "0", "true": "1"}


def is_binary(cells: AbstractSet[str]) -> bool:
    """Return whether distinct cells are 0 and 1, or false and true; not where there are none."""
    return bool(cells) and cells <= BINARY.keys()


def label_cell(cell: str) -> str:
    """Return the label in a cell; a whole number is written as one, where it is in the usual way.

    Examples:
        >>> label_cell(" NEUTRAL "), label_cell("1.0"), label_cell("01")
        ('NEUTRAL', '1', '01')
    """
    label = cell.strip()
    if (whole := _WHOLE.fullmatch(label)) is None:
        return label
    sign, digits = whole.groups()
    return digits if sign == "+" or digits == "0" else sign + digits


_WHOLE = re.compile(r"([+-]?)(0|[1-9]\d*)(?:\.0+)?", re.ASCII)


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return distinct labels in order: by value where all are numbers, else by alphabet.

    Examples:
        >>> class_names(["10", "2", "2"]), class_names(["b", "a"])
        (('2', '10'), ('a', 'b'))
    """
    distinct = set(labels)
    if all(map(is_number, distinct)):
        return tuple(sorted(distinct, key=lambda label: (float(label), label)))
    return tuple(sorted(distinct))


def written_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the names of classes that `datasets` writes into a Parquet file; none where it did not."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()


def by_name(numbers: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """Return the numbers of classes; more than two by name, and -1, no label, as None.

    Examples:
        >>> by_name([0, -1, 2], ["no", "maybe", "yes"]), by_name([1.0, None], ["no", "yes"])
        (['no', None, 'yes'], [1, None])
    """
    listed = names if len(names) > 2 else range(len(names))
    return [None if number is None or number < 0 else listed[int(number)] for number in numbers]
