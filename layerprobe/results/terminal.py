"""Results as text for a terminal: answer, facts, a table with bars, checks and next commands."""

from __future__ import annotations

import io
import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layerprobe.errors import one_line, printable
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.results.table import Column, Table

if TYPE_CHECKING:
    from layerprobe.results.conclusion import Choice, Conclusion, Step
    from layerprobe.results.shown import Shown
    from layerprobe.results.table import Chart

WIDTH = 80
"""Characters of a line, unless all columns are requested."""
BAR, SHORTEST_BAR = 30, 16
"""Characters of the bar of an interval: usually, and at least, if other columns need the room."""
NAME = 32
"""Characters of a cell; a longer one may take several lines."""
OVERHANG = 4
"""Characters by which the last label of a scale may exceed it."""
CHECKS = 2
"""Number of checks shown unless everything is requested."""
_ASCII = str.maketrans("■□●○─╌×−–…·✓✗", "#.*o--x--~-yx") | {ord("≤"): "<="}
"""Replacements for signs that an encoding lacks."""

NARROWEST = 20
"""Smallest number of characters of a line."""


def wrapped(text: str, width: int | None) -> str:
    r"""Return a text wrapped between words; lines of a command end in a backslash.

    Examples:
        >>> print(wrapped("the layer to keep is the ninth", 20))
        the layer to keep is
        the ninth
        >>> print(wrapped("  layerprobe export model out", 24))
          layerprobe export \
            model out
    """
    text = printable(text)
    if width is None:
        return text
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


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
    """Return a table as text; columns that do not fit follow below, beside the columns that identify the rows.

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
    keys = len(columns) if sum(room[:-1]) <= width / 2 and not table.numeric[-1] else _telling(table, room, width)
    parts = [list(columns[:keys])]
    used = sum(room[:keys])
    for column, wide in zip(columns[keys:], room[keys:], strict=True):
        if used + wide - 2 > width and len(parts[-1]) > keys:
            parts.append(list(columns[:keys]))
            used = sum(room[:keys])
        parts[-1].append(column)
        used += wide
    texts = [_wrap_last_cells(replace(table, columns=tuple(part), notes=()), width) for part in parts]
    return "\n".join(("\n\n".join(texts), *(wrapped(note, width) for note in table.notes)))


def _telling(table: Table, room: Sequence[int], width: int) -> int:
    """Return how many first columns identify the rows, if they leave half a line to the others; otherwise one."""
    for n in range(1, len(table.shown)):
        if sum(room[:n]) > width / 2:
            break
        if len({line[:n] for line in table.lines}) == len(table):
            return n
    return 1


def _wrap_last_cells(table: Table, width: int) -> str:
    """Return a table as text; last cells that do not fit are wrapped between words."""
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


def shown(
    result: Shown,
    *,
    width: int | None = WIDTH,
    wide: bool = False,
    colour: bool = False,
    encoding: str = "utf-8",
    steps: Sequence[Step] | None = None,
    details: bool = False,
    below: Sequence[str] = (),
) -> str:
    """Return a result as text for a terminal.

    Args:
        result: The result to show.
        width: Characters of a line; None breaks no line.
        wide: Whether to show all columns, and intervals in digits instead of bars.
        colour: Whether to make the answer bold and the chosen row green, by escape codes.
        encoding: Encoding of the terminal; signs that it lacks are replaced.
        steps: Next steps, instead of those of the result.
        details: Whether to show the further tables as well.
        below: Last lines, such as the path of the page.
    """
    conclusion = result.conclusion if steps is None else replace(result.conclusion, steps=tuple(steps))
    answer = _answer(conclusion, width, colour)
    rows, is_whole = _rows(result.table, width, wide=wide, colour=colour)
    last = (*map(one_line, below), "" if is_whole else "All columns: --wide", words.cost(conclusion))
    n_checks = len(conclusion.checks) if wide else CHECKS - answer.count("\n")
    parts = [
        "\n".join(
            (
                answer,
                *_strip(conclusion.choice, is_guess=conclusion.verdict == Verdict.UNDECIDED),
                *_facts(conclusion, width),
                *_checks(conclusion, width, n_checks, every=wide),
            )
        ),
        rows,
        *(
            f"{one_line(one.title)}\n\n{_rows(one, width, wide=wide, colour=colour)[0]}"
            for one in result.details
            if details
        ),
        "\n".join((*_steps(conclusion, width, colour), *_side_by_side(last, width))),
    ]
    text = "\n\n".join(filter(None, parts)).replace("\u00a0", " ")
    try:
        "".join(map(chr, _ASCII)).encode(encoding)
    except UnicodeError:
        text = text.translate(_ASCII)
    except LookupError:
        return text.translate(_ASCII).encode("ascii", "replace").decode()
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _styled(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _answer(conclusion: Conclusion, width: int | None, colour: bool) -> str:
    headline, certainty = words.headline(conclusion), words.certainty(conclusion)
    if not certainty:
        return _styled(wrapped(headline, width), "1", colour)
    certainty = f"({certainty[:1].lower()}{certainty[1:]})"
    is_short = width is None or len(headline) + 2 + len(certainty) <= width
    return f"{_styled(wrapped(headline, width), '1', colour)}{'  ' if is_short else chr(10)}{wrapped(certainty, width)}"


def _side_by_side(texts: Sequence[str], width: int | None) -> list[str]:
    """Return texts in lines, as many per line as fit."""
    lines: list[str] = []
    for text in filter(None, texts):
        if lines and (width is None or len(f"{lines[-1]}    {text}") <= width):
            lines[-1] += f"    {text}"
        else:
            lines.append(text)
    return lines


def _strip(choice: Choice | None, *, is_guess: bool) -> Iterator[str]:
    if choice is not None:
        signs = "".join("■" if block in choice.blocks else "□" for block in range(1, choice.n_blocks + 1))
        last = len(choice.blocks)
        is_cut = 0 < last < choice.n_blocks and choice.blocks == tuple(range(1, last + 1))
        yield f"{signs}  cut after block {last}{'?' if is_guess else ''}" if is_cut else signs


def _facts(conclusion: Conclusion, width: int | None) -> Iterator[str]:
    """Yield the first facts, one line each."""
    rows = words.tiles(conclusion)
    room = max((len(number) for number, _ in rows), default=0)
    for number, what in rows:
        indent = " " * (room + 4)
        lines = textwrap.wrap(what, max(NARROWEST, width - room - 4)) if width else [what]
        yield f"\n{indent}".join([f"  {number:<{room}}  {(lines or [''])[0]}", *lines[1:]])


def _checks(conclusion: Conclusion, width: int | None, most: int, *, every: bool) -> Iterator[str]:
    """Yield every check, or at most `most` checks that did not pass, failed ones before open ones."""
    doubts = sorted((check for check in conclusion.checks if not check.passed), key=lambda check: check.passed is None)
    for check in conclusion.checks if every else doubts[:most]:
        line, _ = words.line(check, conclusion)
        mark = {True: "✓", False: "✗", None: "·"}[check.passed]
        lines = textwrap.wrap(line, max(NARROWEST, width - 4)) if width else [line]
        yield "\n    ".join([f"  {mark} {lines[0]}", *lines[1:]])


def _steps(conclusion: Conclusion, width: int | None, colour: bool) -> Iterator[str]:
    titles = [words.step(step, conclusion)[0] for step in conclusion.steps]
    room = max(map(len, titles), default=0)
    for number, (title, step) in enumerate(zip(titles, conclusion.steps, strict=True)):
        lines = [f"{title:<{room}}    layerprobe"]
        for word in map(shlex.quote, step.command):  # no line ends inside quotes
            if width is not None and len(f"{lines[-1]} {word} \\") > width:
                lines.append("   ")
            lines[-1] += f" {printable(word)}"
        yield _styled(" \\\n".join(lines), "1", colour and not number)


def _rows(table: Table, width: int | None, *, wide: bool, colour: bool) -> tuple[str, bool]:
    """Return the first columns that fit, with bars for the first interval, and whether those are all columns."""
    chart = table.charts[0] if table.charts else None
    rows = len(table)
    every = len(table.shown)
    if not rows:
        return "", True
    if wide:
        return fitted(table, width), True
    if chart is not None and chart.kind == "map":
        return fitted(_square(table, chart), width), True
    for name, value in chart.where if chart is not None else ():
        table = table.where(name, value)
    same = {name for name, _ in chart.where} if chart is not None else set()
    columns = [column for column in table.first if column.name not in same]
    legend = list[str]()
    bar = None if chart is None else _bars(table, chart, BAR)
    if bar is None or chart is None:
        columns = _fitting(columns, width)
    else:
        columns = [column for column in columns if not column.interval]
        if width is not None:
            columns = _fitting(columns, width - SHORTEST_BAR - OVERHANG - 2)
            bar = _bars(table, chart, min(BAR, width - _room(columns) - OVERHANG - 2))
        place = next((i for i, column in enumerate(columns) if column.name == chart.lines[0].column), len(columns) - 1)
        columns[place + 1 : place + 1] = filter(None, [bar])
        legend.append(_legend(table, chart))
    if len(table) < rows:
        legend.append(f"{len(table)} of {rows} rows")
    text = _grid(replace(table, columns=tuple(columns), notes=tuple(legend)), width, colour=colour)
    return text, len(columns) == every and len(table) == rows


def _fitting(columns: list[Column], width: int | None) -> list[Column]:
    """Return the columns that fit, at least two: intervals are dropped first, then the last one before the flag."""
    while width is not None and len(columns) > 2 and _room(columns) > width:
        spare = [column for column in columns[2:] if column.name != "flag"] or columns[2:]
        least = next((column for column in spare if column.interval), spare[-1])
        columns = [column for column in columns if column is not least]
    return columns


def _room(columns: Sequence[Column]) -> int:
    """Return the smallest width of a line of columns, in characters."""
    return sum(2 + _least(column) for column in columns) - 2


def _least(column: Column) -> int:
    """Return the smallest width of a column, in characters: its title and long names may take several lines."""
    return min(NAME, max(map(len, (*column.head.split(" "), *column.cells))))


def _square(table: Table, chart: Chart) -> Table:
    """Return a map as a table of rows and columns."""
    numbers, y, x = (table.column(name) for name in (chart.lines[0].column, chart.y, chart.x))
    cells = dict(zip(zip(y.values, x.values, strict=True), numbers.values, strict=True))
    rows = list(dict.fromkeys(y.values))
    columns = (Column(str(at), [cells[row, at] for row in rows], form=numbers.form) for at in dict.fromkeys(x.values))
    notes = (f"{numbers.head}; rows: {y.head}, columns: {x.head}",)
    return Table(columns=(Column(y.name, rows), *columns), notes=notes)


def _legend(table: Table, chart: Chart) -> str:
    """Return the explanation of dots, numbers and bars."""
    line = chart.lines[0]
    quantity = chart.quantity(table)
    dots = "● run  ○ inferred   " if line.run else ""
    where = f" on {quantity.split}" if quantity.split not in ("", "all") else ""
    return f"{dots}{quantity.unit}{where}; bars: {table.column(line.interval, interval=True).head}"


def _grid(table: Table, width: int | None, *, colour: bool) -> str:
    """Return a table drawn by rich, with the chosen row in green and long titles in several lines."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    columns = table.shown
    for column, right in zip(columns, table.numeric, strict=True):
        grid.add_column(Text(column.head), justify="right" if right else "left", min_width=_least(column))
    for mark, cells in zip(table.marks or [None] * len(table), table.lines, strict=True):
        grid.add_row(*map(Text, cells), style="bold green" if mark == "chosen" else "")
    out = io.StringIO()
    # wide enough for every line if no line may be broken
    room = width or sum(3 + max(map(len, (column.head, *column.cells))) for column in columns)
    about: dict[str, Any] = {"width": room, "force_terminal": colour, "no_color": not colour}
    console = Console(file=out, force_jupyter=False, legacy_windows=False, **about)
    console.print(grid)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join((*lines, *(wrapped(f"  {note}", width) for note in table.notes)))


def _bars(table: Table, chart: Chart, size: int) -> Column | None:
    """Return the numbers of a chart with their intervals as a column of bars of a given size, titled by the scale."""
    line = chart.lines[0]
    if chart.kind != "line" or not line.interval or chart.by:
        return None
    column, ends = table.column(line.column), table.column(line.interval, interval=True)
    measured = [bool(value) for value in table.column(line.run).values] if line.run else [True] * len(table)
    rows: list[Any] = list(zip(column.values, ends.values, strict=True))
    points = [end for value, bounds in rows if value is not None for end in (value, *(bounds or ()))]
    points = [column.scale * point for point in points if math.isfinite(point)]
    if not points or min(points) == max(points):
        return None
    low, high = min(points), max(points)

    def at(value: float) -> int:
        return int(min(max((size - 1) * (column.scale * value - low) / (high - low) + 0.5, 0), size - 1))

    cells = []
    for (value, bounds), is_measured in zip(rows, measured, strict=True):
        signs = [" "] * size
        if value is not None and not any(map(math.isnan, (value, *(bounds or ())))):
            for place in range(at(bounds[0]), at(bounds[1]) + 1) if bounds else ():
                signs[place] = "─" if is_measured else "╌"
            signs[at(value)] = "●" if is_measured else "○"
        cells.append("".join(signs).rstrip() or None)
    return Column("bar", cells, title=_scale(low, high, size))


def _scale(low: float, high: float, size: int) -> str:
    """Return a scale of round numbers between two ends, as wide as a bar."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    digits = max(0, -math.floor(math.log10(step)))
    signs = [" "] * (size + OVERHANG)
    first = math.ceil(low / step)
    for number in range(first, math.floor(high / step) + 1):
        label = f"{number * step:z.{digits}f}"
        place = round((size - 1) * (number * step - low) / (high - low))
        if (
            place + len(label) <= size + OVERHANG - 1
            and not "".join(signs[max(place - 1, 0) : place + len(label)]).strip()
        ):
            signs[place : place + len(label)] = label
    return "".join(signs).rstrip()
