"""Tables as CSV. Knows numbers, no HTML."""

import csv
import io
import re
from collections.abc import Iterable

# What a spreadsheet may take for a formula (OWASP, "CSV injection"), a number with its sign aside.
_FORMULA = re.compile(r"(?![+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\Z)[=+\-@\t\r\n＝＋－＠]", re.ASCII | re.IGNORECASE)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows as CSV: full precision, empty where a value is None, flags as 0 and 1, tuples with spaces between.

    A text that a spreadsheet would run as a formula begins with an apostrophe, by which it stays a text.

    Examples:
        >>> csv_text(("layer", "scores", "drop"), [(3, (70.5, 71.0), True), (4, None, False)])
        'layer,scores,drop\n3,70.5 71.0,1\n4,,0\n'
        >>> csv_text(("model", "change"), [("=1+1", -0.5), ("-3", (-0.5, 1.0))])
        "model,change\n'=1+1,-0.5\n-3,-0.5 1.0\n"
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows(map(_cell, row) for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (int, float)):
        return value
    numbers = isinstance(value, tuple) and all(isinstance(item, (int, float)) for item in value)
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    # Python before 3.13 does not quote a lone carriage return, which ends a row elsewhere
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if numbers or _FORMULA.match(text) is None else f"'{text}"
