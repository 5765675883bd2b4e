"""Numbers, layers and names as a page shows them. Knows no HTML and no plots."""

import re
from collections.abc import Iterable

LABEL_LENGTH = 30
"""Longer model names are cut in plots, where they would not fit."""


def number(value: float, digits: int = 2) -> str:
    """Return a number with a true minus sign, and none for what rounds to 0."""
    return f"{value:z.{digits}f}".replace("-", "−")


def typeset(cell: str) -> str:
    r"""Return a cell of a table with true minus signs and units that do not break from their numbers; a dash for none.

    Examples:
        >>> typeset("-0.50"), typeset("12 %"), typeset("")
        ('−0.50', '12\xa0%', '–')
    """
    return re.sub(r"(?<=\d) (?=M\b)", "\u00a0", typeset_text(cell)) or "–"


def typeset_text(plain: str) -> str:
    r"""Return a sentence with one minus sign, one spelling of percentages, and a sign for times 100.

    Examples:
        >>> typeset_text("R2 x 100 is -0.5 (95% -1.0 to 0.0) of all-MiniLM-L6-v2")
        'R2 × 100 is −0.5 (95\xa0% −1.0 to 0.0) of all-MiniLM-L6-v2'
    """
    signs = re.sub(r"(?<![\w.\-])-(?=[\d.])", "−", plain)
    return re.sub(r"\bx 100\b", "× 100", re.sub(r"(?<=\d) ?%(?![\w{(])", "\u00a0%", signs))


def percent(share: float) -> str:
    """Return a share of 0 .. 1 in percent, with a space that does not break."""
    return f"{number(100 * share, 1).removesuffix('.0')}\u00a0%"


def label(name: str) -> str:
    """Return a name that fits into a plot: a long one without its middle."""
    half = LABEL_LENGTH // 2
    return name if len(name) <= LABEL_LENGTH else f"{name[:half]}…{name[-half + 1 :]}"


def labels(names: Iterable[str]) -> list[str]:
    """Return names that fit into a plot, and differ as the names do: those that would be cut to the same stay whole."""
    names = list(names)
    cut = [label(name) for name in names]
    same = {
        shortened
        for shortened in cut
        if len({name for name, one in zip(names, cut, strict=True) if one == shortened}) > 1
    }
    return [name if shortened in same else shortened for name, shortened in zip(names, cut, strict=True)]


def capitalised(text: str) -> str:
    """Return a text as the start of a sentence; other capitals stay."""
    return text[:1].upper() + text[1:]
