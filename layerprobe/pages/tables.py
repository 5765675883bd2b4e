"""Tables as CSV. Knows numbers, no HTML."""

import csv
import io
from collections.abc import Iterable


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows as CSV: full precision, empty where a value is None, flags as 0 and 1, tuples with spaces between.

    Examples:
        >>> csv_text(("layer", "scores", "drop"), [(3, (70.5, 71.0), True), (4, None, False)])
        'layer,scores,drop\n3,70.5 71.0,1\n4,,0\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_cell, row) for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return int(value) if isinstance(value, bool) else value
