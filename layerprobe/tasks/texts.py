"""Cleans texts that would break a tokenizer or a pooling. Knows characters, not files."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from layerprobe.errors import TaskError
from layerprobe.names import counted, some

MAX_CHARACTERS = 100_000

# Control characters but tab and line ends, and lone surrogates, which no UTF-8 can hold.
_UNUSABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    """Return a text without what does not make another one of it: upper case, how words are spaced and accents written.

    Examples:
        >>> plain(" A  man sleeps. ")
        'a man sleeps.'
    """
    return unicodedata.normalize("NFC", " ".join(text.split()).casefold())


@dataclass(slots=True)
class Cleaner:
    """Cleans texts one by one and counts what it changed."""

    with_control: int = 0
    """Texts in which control characters became a space."""
    cut: int = 0
    """Texts cut to `MAX_CHARACTERS`."""
    empty: int = 0
    """Pairs or texts dropped because nothing but white space was in them."""

    def clean(self, text: str) -> str:
        r"""Return the text without control characters and not longer than `MAX_CHARACTERS`.

        Examples:
            >>> Cleaner().clean("a\x00b")
            'a b'
        """
        cleaned = _UNUSABLE.sub(" ", text)
        self.with_control += cleaned != text
        self.cut += len(cleaned) > MAX_CHARACTERS
        return cleaned[:MAX_CHARACTERS]

    def keeps(self, *texts: str) -> bool:
        """Return whether none of the texts is empty or white space; count it where one is."""
        whole = all(text.strip() for text in texts)
        self.empty += not whole
        return whole

    def warnings(self, source: str, unit: str) -> tuple[str, ...]:
        """Return what was changed, in plain words; `unit` is what is dropped, such as pair."""
        changes = (
            (self.empty, f"dropped {counted(self.empty, unit)} with an empty text"),
            (self.with_control, f"replaced control characters by a space in {counted(self.with_control, 'text')}"),
            (self.cut, f"cut {counted(self.cut, 'text')} to {MAX_CHARACTERS:,} characters"),
        )
        return tuple(f"{source}: {change}" for n, change in changes if n)


@dataclass(frozen=True, slots=True)
class EmptyCells:
    """The empty cells of a table, by column."""

    name: str
    """Of the table."""
    unit: str
    """What numbers count: line or row."""
    places: dict[str, list[int]] = field(default_factory=dict)
    """Numbers by column."""

    def add(self, column: str, number: int) -> None:
        """Count an empty cell."""
        self.places.setdefault(column, []).append(number)

    def __len__(self) -> int:
        return sum(map(len, self.places.values()))

    def __str__(self) -> str:
        columns = []
        for column, numbers in self.places.items():
            columns.append(f"{len(numbers):,} in {column} ({self.unit}{'s' * (len(numbers) > 1)} {some(numbers)})")
        return f"{self.name}: {', '.join(columns)}"


def check_empty(cells: Sequence[EmptyCells], *, skip: bool) -> tuple[str, ...]:
    """Return warnings of empty cells; raise TaskError with all of them unless they are to be skipped."""
    filled = [cell for cell in cells if len(cell)]
    if skip or not filled:
        return tuple(
            f"{cell.name}: left out what has an empty cell, {str(cell).removeprefix(f'{cell.name}: ')}"
            for cell in filled
        )
    n = sum(map(len, filled))
    raise TaskError(
        f"{counted(n, 'cell')} {'is' if n == 1 else 'are'} empty: {'; '.join(map(str, filled))}: fill or leave out "
        "these rows, or go on without them with --skip-empty (skip_empty=True)"
    )
