"""Text and tables as wide as a terminal: no word is broken, and what has no room stands below."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from layerprobe.results.table import Table

NARROWEST = 20
"""Characters that a line has at least."""
_PERCENT = re.compile(r"(?<=\d)%(?![\w{(])")


def wrapped(text: str, width: int | None) -> str:
    r"""Return a text whose lines end between words; of a command, with what lets a shell go on reading.

    Examples:
        >>> print(wrapped("the layer to keep is the ninth", 20))
        the layer to keep is
        the ninth
        >>> print(wrapped("  layerprobe export model out", 24))
          layerprobe export \
            model out
    """
    if width is None:
        return text
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def spelled(text: str, width: int | None) -> str:
    r"""Return a wrapped text with percentages as tables spell them; commands, which are indented, as they are.

    Examples:
        >>> spelled("95% sure\n  layerprobe find --budget 15%", None)
        '95 % sure\n  layerprobe find --budget 15%'
    """
    lines = (line if line.startswith("  ") else _PERCENT.sub("\u00a0%", line) for line in text.split("\n"))
    return wrapped("\n".join(lines), width).replace("\u00a0", " ")


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    command = line.lstrip().startswith("layerprobe ")
    further = f"{indent}  " if command else indent
    lines = textwrap.wrap(
        line.strip(),
        width - 2 * command,
        initial_indent=indent,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return (" \\\n" if command else "\n").join(lines)


def fitted(table: Table, width: int | None) -> str:
    """Return a table as text; columns for which a line has no room stand below, again beside what tells rows apart.

    Examples:
        >>> from layerprobe.results.table import Column, Table
        >>> columns = Column("layer", (0, 1)), Column("score of the test", (5, 6)), Column("parameters", (7, 8))
        >>> print(fitted(Table(columns=columns), 25))
        layer  score of the test
        -----  -----------------
            0                  5
            1                  6
        <BLANKLINE>
        layer  parameters
        -----  ----------
            0           7
            1           8
    """
    columns = table.shown
    if width is None or not columns:
        return table.text()
    room = [2 + max(map(len, (column.head, *column.cells))) for column in columns]
    if sum(room) - 2 <= width:
        return replace(table, notes=tuple(wrapped(note, width) for note in table.notes)).text()
    keys = _telling(table, room, width)
    parts, used = [list(columns[:keys])], sum(room[:keys])
    for column, wide in zip(columns[keys:], room[keys:], strict=True):
        if used + wide - 2 > width and len(parts[-1]) > keys:
            parts.append(list(columns[:keys]))
            used = sum(room[:keys])
        parts[-1].append(column)
        used += wide
    texts = [_in_lines(replace(table, columns=tuple(part), notes=()), width) for part in parts]
    return "\n".join(("\n\n".join(texts), *(wrapped(note, width) for note in table.notes)))


def _telling(table: Table, room: Sequence[int], width: int) -> int:
    """Return how many of the first columns tell the rows apart, if they leave half of a line to the others; or one."""
    for n in range(1, len(table.shown)):
        if sum(room[:n]) > width / 2:
            break
        if len({line[:n] for line in table.lines}) == len(table):
            return n
    return 1


def _in_lines(table: Table, width: int) -> str:
    """Return a table as text whose last cells go on in further lines, at words, where they have no room."""
    text = table.text()
    if max(map(len, text.splitlines())) <= width:
        return text
    before = sum(2 + max(map(len, (column.head, *column.cells))) for column in table.shown[:-1])
    room = max(NARROWEST, width - before)
    lines = []
    for line in text.splitlines():
        if set(line) <= {"-", " "}:
            lines.append(line[: before + room])
            continue
        first, *others = wrapped(line[before:].strip(), room).split("\n")
        lines += [f"{line[:before]}{first}".rstrip(), *(" " * before + other for other in others)]
    return "\n".join(lines)
