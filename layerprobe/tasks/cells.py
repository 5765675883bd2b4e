"""Cells of a table: cleaning texts; checking, scaling and naming gold scores and class labels."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from layerprobe.errors import TaskError, option
from layerprobe.names import counted, plural, some

MAX_CHARACTERS = 100_000

# Control characters except tab and line ends, and lone surrogates, which UTF-8 cannot encode.
_UNUSABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(texts: Sequence[str]) -> Sequence[str]:
    r"""Return texts with a space instead of every lone surrogate; the same sequence if there is none.

    Examples:
        >>> without_surrogates(["a\ud83d b", "c"])
        ['a  b', 'c']
    """
    if not isinstance(texts, list | tuple) or not any(map(_SURROGATE.search, texts)):
        return texts  # spooled texts were cleaned when they were read
    return type(texts)(_SURROGATE.sub(" ", text) for text in texts)


def plain(text: str) -> str:
    """Return a normalised text for comparison: lower case, single spaces, composed accents.

    Examples:
        >>> plain(" A  man sleeps. ")
        'a man sleeps.'
    """
    return unicodedata.normalize("NFC", " ".join(text.split()).casefold())


@dataclass(slots=True)
class TableLog:
    """Changes in the texts of a table, and its rows that cannot be used."""

    table: str = ""
    """Name of the table."""
    unit: str = "row"
    """Unit of the numbers of rows: line or row."""
    with_control: int = 0
    """Number of texts in which control characters became a space."""
    cut: int = 0
    """Number of texts cut to `MAX_CHARACTERS`."""
    names: set[str] = field(default_factory=set)
    """Names or ids of the rows so far, for items that have such."""
    left_out: dict[tuple[str, str], list[object]] = field(default_factory=dict)
    """Numbers or names of rows, by problem and the argument that leaves such rows out."""

    def clean(self, text: str) -> str:
        r"""Return the text without control characters, cut to `MAX_CHARACTERS`.

        Examples:
            >>> TableLog().clean("a\x00b")
            'a b'
        """
        cleaned = _UNUSABLE.sub(" ", text)
        self.with_control += cleaned != text
        self.cut += len(cleaned) > MAX_CHARACTERS
        return cleaned[:MAX_CHARACTERS]

    def leave_out(self, problem: str, name: object, skip: str = "skip_empty") -> None:
        """Count a row that cannot be used, by its number or name."""
        self.left_out.setdefault((problem, skip), []).append(name)

    @property
    def problems(self) -> str:
        """Problems of the rows that are left out, in words."""
        parts = []
        for (problem, _), names in self.left_out.items():
            unit = f"{self.unit}{'s' * (len(names) > 1)} " if isinstance(names[0], int) else ""
            parts.append(f"{len(names):,} {problem} ({unit}{some(names)})")
        return ", ".join(parts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Changes in the texts, in words."""
        changes = (
            (self.with_control, f"replaced control characters by spaces in {counted(self.with_control, 'text')}"),
            (self.cut, f"cut {counted(self.cut, 'text')} to {MAX_CHARACTERS:,} characters"),
        )
        return tuple(f"{self.table}: {change}" for n, change in changes if n)


class UnusableRowError(TaskError):
    """A row that cannot be used: an error, or left out and counted if the user says so."""

    def __init__(self, problem: str, *, name: str = "", skip: str = "skip_empty") -> None:
        """Set the problem, the name of the row, and the argument that leaves such rows out.

        Args:
            problem: The problem, such as `with an empty score`.
            name: Name of the row; by default its number.
            skip: The argument that leaves such rows out.
        """
        super().__init__(problem)
        self.name, self.skip = name, skip


def check_left_out(logs: Sequence[TableLog], *, skip: Collection[str], item: str) -> tuple[str, ...]:
    """Return warnings of rows left out; raise TaskError with all of them unless they may be skipped.

    Args:
        logs: Problems of the rows of tables.
        skip: The active arguments that leave rows out.
        item: Name of a row.
    """
    wrong = [log for log in logs if log.left_out]
    needed = dict.fromkeys(name for log in wrong for _, name in log.left_out if name not in skip)
    if not needed:
        return tuple(f"{log.table}: left out {plural(item)} that cannot be used, {log.problems}" for log in wrong)
    listed = "; ".join(f"{log.table}: {log.problems}" for log in wrong)
    n = counted(sum(len(names) for log in wrong for names in log.left_out.values()), item)
    switches = " ".join(option(name, True) for name in needed)
    raise TaskError(f"{n} cannot be used: {listed}: fix or drop them, or skip them with {switches}")


# From narrow to wide; the first that holds all scores is the range.
USUAL_RANGES = ((0.0, 1.0), (0.0, 4.0), (0.0, 5.0), (0.0, 10.0), (0.0, 100.0))


def is_number(cell: object) -> bool:
    """Return whether a cell reads as a number, finite or not; neither 1_000 nor a list does."""
    try:
        return isinstance(cell, str) and float(cell) is not None and "_" not in cell
    except ValueError:
        return False


def parse_score(cell: str, place: str) -> float:
    """Return the score in a cell; raise TaskError, with the place, if it is not a finite number."""
    if not is_number(cell):
        raise TaskError(f"{place}: expected a number as the score, got {cell[:40]!r}")
    score = float(cell)
    if not math.isfinite(score):
        raise TaskError(f"{place}: expected a finite score, got {cell[:40]!r}")
    return score


def detect_range(scores: Sequence[float], *, observe: bool = False) -> tuple[float, float]:
    """Return the usual range for scores.

    1 to 5 if the minimum is exactly 1 and the maximum exactly 5, or else the narrowest of 0 to 1, 0 to 4,
    0 to 5, 0 to 10 and 0 to 100 that contains all of them; with `observe`, their minimum and maximum if none of these
    does.

    Examples:
        >>> detect_range([0.2, 4.8])
        (0.0, 5.0)
        >>> detect_range([1, 3.5, 5]), detect_range([-20.5, 1990], observe=True)
        ((1.0, 5.0), (-20.5, 1990))
    """
    if not scores:
        raise TaskError("no scores are left to detect their range: give examples with non-empty texts")
    low, high = min(scores), max(scores)
    if (low, high) == (1, 5):
        return 1.0, 5.0
    for usual in USUAL_RANGES:
        if usual[0] <= low and high <= usual[1]:
            return usual
    if observe and low < high:
        return low, high
    raise TaskError(
        f"scores from {low:g} to {high:g} fit no usual range: give it, as in "
        f"{option('score_range', f'{low:g},{high:g}')}"
    )


def check_range(score_range: tuple[float, float]) -> tuple[float, float]:
    """Return a range as floats; raise TaskError unless it is two finite numbers, the lower one first."""
    if len(score_range) != 2 or not all(map(math.isfinite, score_range)) or score_range[0] >= score_range[1]:
        raise TaskError(f"expected a score range as low,high, got {','.join(f'{end:g}' for end in score_range)}")
    return float(score_range[0]), float(score_range[1])


def scale(score: float, score_range: tuple[float, float]) -> float:
    """Return (score - low) / (high - low).

    Examples:
        >>> scale(4, (1, 5))
        0.75
    """
    low, high = score_range
    return (score - low) / (high - low)


# Whole numbers, numbers with a decimal comma, and numbers with commas between thousands.
_COMMA_NUMBER = re.compile(r"[+-]?\d+(?:,\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_POINT_NUMBER = re.compile(rf"{_GROUPED.pattern}|[+-]?\d+(?:\.\d+)?", re.ASCII)


def decimal_points(cells: Iterable[str], decimal: str | None) -> tuple[Callable[[str], str] | None, str]:
    """Return how to write the numbers of a column with decimal points, and a number with two readings.

    A column has decimal commas if all its cells are whole numbers and numbers such as 1,5; with the decimal mark "."
    commas group thousands. The function is None if nothing changes; the text is empty if a mark is given, or some
    number can only be read in one way.
    """
    present = [cell for cell in cells if cell]
    with_comma = [cell for cell in present if "," in cell]
    if with_comma and decimal != "." and all(map(_COMMA_NUMBER.fullmatch, present)):
        two_ways = decimal is None and all(map(_GROUPED.fullmatch, with_comma))
        return with_point, with_comma[0] if two_ways else ""
    if with_comma and decimal == "." and all(map(_POINT_NUMBER.fullmatch, present)):
        return ungrouped, ""
    return None, ""


def with_point(cell: str) -> str:
    """Return a number such as 1,5 with a point; other cells unchanged."""
    return cell.replace(",", ".") if _COMMA_NUMBER.fullmatch(cell.strip()) else cell


def ungrouped(cell: str) -> str:
    """Return a number such as 1,234 without commas; other cells unchanged."""
    return cell.replace(",", "") if _GROUPED.fullmatch(cell.strip()) else cell


BINARY = {"0": "0", "1": "1", "false": "0", "true": "1"}


def is_binary(cells: AbstractSet[str]) -> bool:
    """Return whether the distinct cells are 0 and 1, or false and true; False without cells."""
    return bool(cells) and cells <= BINARY.keys()


def label_cell(cell: str) -> str:
    """Return the label in a cell; a whole number in the usual notation is written without decimals.

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
    """Return distinct labels in order: by value if all are numbers, else alphabetically.

    Examples:
        >>> class_names(["10", "2", "2"]), class_names(["b", "a"])
        (('2', '10'), ('a', 'b'))
    """
    distinct = set(labels)
    if all(map(is_number, distinct)):
        return tuple(sorted(distinct, key=lambda label: (float(label), label)))
    return tuple(sorted(distinct))


def spelled_alike(counts: Mapping[str, int], what: str = "classes") -> tuple[str, ...]:
    """Return a warning about classes that may be spellings of one class; empty without any.

    Spellings differ in case, white space, hyphens, quotes, a full stop, forms of Unicode or the notation of a number;
    true and 1, and false and 0, count as spellings.

    Examples:
        >>> spelled_alike({"yes": 20, "Yes": 3, "no": 9})[0][:53]
        "2 classes may be spellings of 1: 'yes' (20), 'Yes' (3"
    """
    by_form: dict[str | float, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        by_form.setdefault(_form(label), []).append(label)
    groups = [labels for labels in by_form.values() if len(labels) > 1]
    if not groups:
        return ()
    listed = [", ".join(f"{_visible(label)} ({counts[label]:,})" for label in group) for group in groups[:_SHOWN]]
    more = "; ..." if len(groups) > _SHOWN else ""
    n = sum(map(len, groups))
    return (
        f"{n} {what} may be spellings of {len(groups)}: {'; '.join(listed)}{more}; they are kept separate: if they are "
        "the same, unify them in the data",
    )


_SHOWN = 5


def _form(label: str) -> str | float:
    """Return the normal form of a label: a number or a text."""
    form = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    form = "".join(sign for sign in form if unicodedata.category(sign) != "Cf")  # such as zero-width characters
    form = re.sub("[‘’]", "'", form).strip()
    form = re.sub(r"^[\"'“„«](\w(?:.*\w)?)[\"'”“»]$|(?<=[^\W\d]{2})\.$", r"\1", form)  # quotes, and a full stop
    form = BINARY.get(form, form)
    if is_number(form) and math.isfinite(float(form)):
        return int(form) if form.isdecimal() else float(form)  # some large numbers are equal as floats
    return re.sub(r"(?<=\w)[\s_\-‐‑–]+(?=\w)", " ", form)


def _visible(label: str) -> str:
    """Return a label in quotes, with escapes if two forms would look the same."""
    written = label if len(label) <= 40 else f"{label[:37]}..."
    return repr(written) if unicodedata.is_normalized("NFC", written) else ascii(written)


def written_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Return the names of classes that `datasets` wrote into a Parquet file; empty without them."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()


def class_cells(numbers: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """Return the numbers of two classes, or the names of more; -1 (no label) becomes None.

    Examples:
        >>> class_cells([0, -1, 2], ["no", "maybe", "yes"]), class_cells([1.0, None], ["no", "yes"])
        (['no', None, 'yes'], [1, None])
    """
    listed = names if len(names) > 2 else range(len(names))
    return [None if number is None or number < 0 else listed[int(number)] for number in numbers]
