"""Cleans texts that would break a tokenizer or a pooling. Knows characters, not files."""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from layerprobe.errors import TaskError, option
from layerprobe.names import counted, plural, some

MAX_CHARACTERS = 100_000

# Control characters but tab and line ends, and lone surrogates, which no UTF-8 can hold.
_UNUSABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(texts: Sequence[str]) -> Sequence[str]:
    r"""Return texts with a space in the place of every lone surrogate; the same sequence where there is none.

    Examples:
        >>> without_surrogates(["a\ud83d b", "c"])
        ['a  b', 'c']
    """
    if not isinstance(texts, list | tuple) or not any(map(_SURROGATE.search, texts)):
        return texts  # what is spooled was cleaned when it was read
    return type(texts)(_SURROGATE.sub(" ", text) for text in texts)


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

    def warnings(self, source: str) -> tuple[str, ...]:
        """Return what was changed, in plain words."""
        changes = (
            (self.with_control, f"replaced control characters by a space in {counted(self.with_control, 'text')}"),
            (self.cut, f"cut {counted(self.cut, 'text')} to {MAX_CHARACTERS:,} characters"),
        )
        return tuple(f"{source}: {change}" for n, change in changes if n)


class UnusableRowError(TaskError):
    """A row that makes no item: an error, or left out and counted where the user says so."""

    def __init__(self, problem: str, *, name: str = "", skip: str = "skip_empty") -> None:
        """Say what is wrong, such as `with an empty score`, what the row is called; and what leaves such rows out.

        Args:
            problem: What is wrong.
            name: What the row is called; by default its number.
            skip: The argument by which such rows are left out.
        """
        super().__init__(problem)
        self.name, self.skip = name, skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rows of a table that make no items, by what is wrong with them."""

    table: str
    """Its name."""
    unit: str
    """What the numbers of rows count: line or row."""
    problems: dict[tuple[str, str], list[object]] = field(default_factory=dict)
    """Numbers of rows, or their names, by problem and the argument that leaves such rows out."""

    def add(self, problem: str, name: object, skip: str = "skip_empty") -> None:
        """Count a row by its number, or its name."""
        self.problems.setdefault((problem, skip), []).append(name)

    def __len__(self) -> int:
        return sum(map(len, self.problems.values()))

    def __str__(self) -> str:
        parts = []
        for (problem, _), names in self.problems.items():
            unit = f"{self.unit}{'s' * (len(names) > 1)} " if isinstance(names[0], int) else ""
            parts.append(f"{len(names):,} {problem} ({unit}{some(names)})")
        return ", ".join(parts)


def check_left_out(tables: Sequence[LeftOut], *, skip: Collection[str], item: str) -> tuple[str, ...]:
    """Return warnings of what is left out; raise TaskError with all of it unless that is to be skipped.

    Args:
        tables: What is wrong with their rows.
        skip: The arguments that are set of those that leave rows out.
        item: What a row is called.
    """
    wrong = [table for table in tables if len(table)]
    needed = dict.fromkeys(name for table in wrong for _, name in table.problems if name not in skip)
    if not needed:
        return tuple(f"{table.table}: left out {plural(item)} that cannot be used, {table}" for table in wrong)
    listed = "; ".join(f"{table.table}: {table}" for table in wrong)
    n, switches = counted(sum(map(len, wrong)), item), " ".join(option(name, True) for name in needed)
    raise TaskError(f"{n} cannot be used: {listed}: mend or drop them, or go on without them with {switches}")
